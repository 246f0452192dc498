"""Graphs by name, by formula and from files.

It imports `base` and the other folders of `topology`.  `names` tries a file first.  Otherwise `grammar` finds the
family and calls its function in `families`, which returns a `Topology` (`graph`).
"""
