"""Gossip whose models are masked: a neighbour learns the weighted sum alone.

It imports `gossip`, `secure` and `topology`.  Each neighbour masks its model for one receiver, so that only the sum
over all neighbours opens; with one part missing the receiver does not mix (`skipped_mix`).  Each life of a peer draws
the keys of its masks, signs them and sends them to its neighbours, which pass them on (RunKeys).  A peer begins when
it has the keys of all peers that send where it sends.  docs/privacy/private-gossip.md has what is promised.
"""
