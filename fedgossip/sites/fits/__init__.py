"""Statistical models of all sites' tables, fitted by secure sums.

It imports `data.agreed`, `data.columns` and `secure`; a folder for each model: `glm`, `cox`, `survival`, `trees`. Each
has the sums (`glm_sums`), the task of a site that computes them (`glm_task`), the solution (`glm`) and the file
(`glm_result`).
"""
