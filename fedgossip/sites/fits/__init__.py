"""Statistical models of all sites' tables, fitted by secure sums.

It imports `data.agreed`, `data.columns` and `secure`; a folder for each model: `glm`, `cox`, `survival`, `trees`, each
with the sums and a site's task (`glm_sums`), the solution (`glm`) and the file (`glm_result`).
"""
