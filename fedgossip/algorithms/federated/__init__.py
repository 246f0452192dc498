"""Federated algorithms: one small file each, that reads like its paper.

It imports `base`, `core`, `algorithms.codecs`, `algorithms.gossip` and `algorithms.descent`.  An algorithm is a client
rule, an aggregation and a server rule (`base`), put together in `names`.  FedAvg (`fedavg`): the client uploads its
update, `sums` adds the weighted updates in one exact sum, and the server adds lr times their mean to the model.
"""
