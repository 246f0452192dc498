"""Exposure: what a curious node can compute of other nodes' models.

It imports `topology` and numpy.  `exposure` puts what a node receives in some rounds into one linear system and lists
the vectors that it determines; `exposure` says on which graphs private gossip hides a neighbour's model in a sum.
"""
