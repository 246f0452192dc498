"""Eigenvalues of mixing matrices and of schedules, and the convergence that they imply.

It imports `base` and the other folders of `topology`.  Small mixings are solved densely, circulants and lattices by
formulas (`eigen`), large graphs by Lanczos with proven ends (`spectrum`); `convergence` derives rounds.
"""
