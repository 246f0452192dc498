"""Gossip methods, a file per paper: a local step and a weighted mean of the neighbours' vectors.

It imports `base`, `core`, `algorithms.codecs` and `algorithms.robust`.  A method is an algorithm and a line in
`names`: checks, plan, wire (as many vectors as slots), dry run and members follow from its `slots` and `needs`.  Each
need is checked before anything runs (`plans.gossip.gossip_checks`).  A user's own class, "module:Class", or object
stands beside them; a check in `names` wraps it, so that what it returns or raises names it and its round.

D-PSGD (`dsgd`): `start` stores x; `trained` returns x + update, which is sent; `mixed` takes the weighted sum as x.
"""
