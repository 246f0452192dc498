"""Exposure: what a curious node can compute of other nodes' models.

It imports `topology` and numpy.  `exposure` solves the linear system of what a node receives, and decides on which
graphs private gossip hides a neighbour's model in a sum.
"""
