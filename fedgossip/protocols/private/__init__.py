"""Gossip whose models are masked: a neighbour learns the weighted sum alone.

It imports `gossip`, `secure` and `topology`; `private_gossip` has the protocol, docs/privacy/private-gossip.md the
promises.
"""
