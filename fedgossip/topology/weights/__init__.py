"""Mixing weights of a graph: the share of each neighbour in a weighted mean.

It imports `base` and `topology.graphs`.  `weights` applies a rule to a topology: "metropolis" gives an edge 1 / (1 +
the larger degree) and each node what is left; `mixing_matrix` validates the sums and gives rows.
"""
