"""Gossip methods, one file per paper: a local step and a weighted mean of the neighbours' vectors.

It imports `base`, `core`, `algorithms.codecs` and `algorithms.robust`.  A method is an algorithm and a line in `names`:
checks (`plans.gossip.gossip_checks`), plan, wire, dry run and members follow from its `slots` and `needs`.  A user's
own class, "module:Class", is wrapped in checks; their errors name it and its round.

D-PSGD (`dsgd`): `start` stores x; `trained` returns x + update, which is sent; `mixed` takes the weighted sum as x.
"""
