"""Descent methods: steps on the mean gradient, for methods that exchange gradients and not models.

It imports `base`, `core` and the federated and gossip rules.  A worker of all-reduce, or a server for its shard, calls
`step` on a state with the model (`base`).  sgd, momentum, adam and adamw have the same bits as local training
(learning/).
"""
