"""Kaplan-Meier curves of all sites' records, from counts at agreed times.

It imports `data.agreed`, `secure` and `sites.fits.glm`.  `survival_sums`: the times of all, then events and records at
risk on the grid; `survival_curves`: intervals, medians and the test of groups.
"""
