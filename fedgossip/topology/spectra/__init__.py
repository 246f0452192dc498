"""Eigenvalues of mixing matrices and of schedules, and the convergence that they promise.

It imports `base` and the other folders of `topology`.  A mixing of 16 nodes is solved densely (`eigen`), circulants
and lattices have formulas (`eigen`), large graphs Lanczos with proven ends (`spectrum`); `forecasting` makes
rounds of them.
"""
