"""Linear models with their own numpy code: convex problems, sparse rows, tables of words.

It imports `data`, `algorithms` and numpy, no torch.
"""
