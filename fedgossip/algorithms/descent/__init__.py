"""Steps on the mean gradient, for methods that exchange gradients and not models: a small file per paper.

It imports `base`, `core` and the federated and gossip rules.  A worker of all-reduce, or a server for its shard, calls
`step` of a descent on a state that holds the model (`base`); the state is a checkpoint's.  Local training has its own
optimisers in learning/; sgd, momentum, adam and adamw give the same bits here and there.
"""
