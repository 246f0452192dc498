"""Federated algorithms: one small file each, which follows its paper.

It imports `base`, `core`, `algorithms.codecs`, `algorithms.gossip` and `algorithms.descent`.  An algorithm is a client
rule, an aggregation and a server rule (`base`), combined in `names`.
"""
