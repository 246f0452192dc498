"""Generalised linear models with canonical links, fitted by Newton's method.

A fit (`sites.plans.fits`, `glm_sums`) is a run of 1 + 16 sums, a Newton step each.  The vector has a place for every
round, and all compute the next point from the filled places: no site receives a point, and a lost round is requested
again.  A run of a fixed number of rounds does no harm at its end: further steps have length zero.  The spectrum of the
records could be read from the sums where there are few records, hence the refusals of `sites.plans.fits`.
"""
