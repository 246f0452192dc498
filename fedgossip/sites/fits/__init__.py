"""Statistical models of all sites' tables, fitted by secure sums.

It imports `data.agreed`, `data.columns` and `secure`; a folder for each model: `glm`, `cox`, `survival`, `trees`. Each
has the sums and the task of a site that computes them (`glm_sums`), the solution (`glm`) and the file
(`glm_result`).
"""
