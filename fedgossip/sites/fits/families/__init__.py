"""Statistics of all sites' tables, each a file of its own, from named sums that one layout and one task carry.

It imports `data.agreed`, `data.columns`, `secure` and `sites.fits.glm`.  `family` has the protocol, the layout, the
task and the file tables.json; `names` the table of all; `likelihoods` Newton's method for those with a likelihood.  A
new one is a file with the members of `SumsFamily`, and a line in `names.FAMILIES`.

model.source = "table1?by=ward": `table_one.TableOne` names the counts of its round, each site's `FamilyTask` sends its
own, and all make the same tables of the sums.
"""
