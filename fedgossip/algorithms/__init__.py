"""The mathematics of one round, without network: for one peer's vectors [d] and for all peers' arrays [n, d].

It imports `base` and the task protocol of `core`.  Each method is one file that follows its paper; `gossip.names`,
`federated.names`, `descent.methods`, `collectives.names` and `codecs.names` list them, docs/design.md has the recipes.

The machine of a peer calls `gossip.dsgd` with its vectors [d], `simulation.stacked` with all nodes' [n, d], and the
digests are equal: a method has no loop over peers, and sums are `vectors.linear` or `vectors.ordered_mix`.
"""
