"""Generalised linear models with canonical links, fitted by Newton's method.

A fit (`glm_sums`) is a run of 1 + 16 sums, a Newton step each.  All participants compute the next point from the filled
positions of the vector: no point is sent, and a lost round is requested again; further steps have length zero.  Sums
could disclose single records if they are few, hence the refusals of `sites.plans.fits`.
"""
