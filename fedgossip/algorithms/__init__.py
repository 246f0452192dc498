"""The mathematics of one round, without network: for one peer's vectors [d] and for all peers' arrays [n, d].

`gossip.names` lists the gossip methods, `federated.names` the rules of a coordinator, `descent.names` the optimisers
of a mean gradient, `collectives.names` the all-reduces, `algorithms.codecs.names` the codecs.  A method is one file
that reads like its paper.
"""
