"""Statistical models of all sites' tables, fitted by secure sums.

It imports `data.agreed`, `data.columns` and `secure`; a folder for each model: `glm`, `cox`, `survival`, each with the
sums and a site's task (`glm_sums`), the solution (`glm`) and the file (`glm_result`).  Boosted trees: `tree_sums`, of a
round per level, and `tree_result`.
"""
