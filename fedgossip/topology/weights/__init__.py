"""Mixing weights of a graph: the share of each neighbour in a weighted mean.

It imports `base` and `topology.graphs`.  `weights` applies a rule to a topology ("metropolis": 1 / (1 + the larger
degree) per edge, and each node keeps the rest); `mixing_matrix` validates the sums.
"""
