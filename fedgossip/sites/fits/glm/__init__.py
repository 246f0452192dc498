"""Generalised linear models with canonical links, fitted by Newton's method.

A fit (`glm_sums`) is a run of 1 + 16 sums, a Newton step each.  All compute the next point from the vector's filled
places: no site receives a point, and a lost round is requested again; further steps have length zero.  Few records
could be read from the sums, hence the refusals of `sites.plans.fits`.
"""
