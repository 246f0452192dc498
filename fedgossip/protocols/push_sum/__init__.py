"""Gossip on directed graphs: a peer sends shares of its vector and weight, and each share is counted once.

It imports `gossip`, `algorithms` and `core`.  A peer gives shares of its vector and of its weight to all its
out-neighbours and keeps the rest; its model is the vector divided by the weight (`push_sum`: in rounds, and without
them).  A parcel belongs to its sender until the receiver accepts it, is sent again until then, and counts once
(`push_peer`): the mass of all peers and of all parcels under way is constant, whatever is lost.
"""
