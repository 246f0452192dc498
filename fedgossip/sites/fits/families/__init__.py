"""Statistics of all sites' tables, one file each, from named sums with a common layout and task.

It imports `data.agreed`, `data.columns`, `secure` and `sites.fits.glm`.  `family` has the protocol, the layout, the
task and tables.json; `likelihoods` Newton's method.  A new one is a file with the members of `SumsFamily`, and a line
in `sites.plans.fits.FAMILIES`.
"""
