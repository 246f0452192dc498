"""Mixing weights of a graph: the share of each neighbour in a weighted mean."""
