"""Gossip on directed graphs: a peer sends shares of its vector and weight, and each share is counted once.

It imports `gossip`, `algorithms` and `core`.  A peer's model is its vector divided by its weight (`push_sum`).  A
parcel belongs to its sender until it is accepted, and counts once (`push_peer`): the mass of all peers and parcels is
constant despite losses.
"""
