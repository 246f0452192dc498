"""Kaplan-Meier curves of all sites' records, from counts at agreed times.

It imports `data.agreed`, `secure` and `sites.fits.glm`.  Two rounds (`survival_sums`): the times of all, then the
events and the records at risk at each time of the grid (`survival_sums`); `survival_curves` makes intervals, medians
and the test of groups.
"""
