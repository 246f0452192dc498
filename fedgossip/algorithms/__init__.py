"""The mathematics of one round, without network: for one peer's vectors [d] and for all peers' arrays [n, d].

It imports `base` and the task protocol of `core`.  `gossip.names` lists the gossip methods, `federated.names` the
rules of a coordinator, `descent.names` the optimisers of a mean gradient, `collectives.names` the all-reduces,
`codecs.names` the codecs.  A method is one file that reads like its paper; docs/design.md has the recipes.

The same source runs for one peer and for all at once: the machine of a peer calls `gossip.dsgd` with its vectors [d],
`simulation.stacked` with all nodes' [n, d], and the digests are equal.  So a method has no loop over peers, and
weighted sums are `vectors.linear` or `vectors.ordered_mix`.
"""
