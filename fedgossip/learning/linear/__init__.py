"""Linear models with their own numpy code: convex problems, sparse rows, tables of words.

It imports `data`, `algorithms` and numpy, no torch.  `sparse_steps` chooses the rows that a batch needs
(`RowsChosen`), computes the gradient at these rows alone, and the server steps on them.
"""
