"""Multiple imputation by chained equations on sums, and the pooling of the fits of the completed tables.

`chained_equations` has the models of empty cells, from sums, and a site's drawn cells; `imputed_sums` the run of an
imputation and of the fits after it; `rubin` pools their estimates.
"""
