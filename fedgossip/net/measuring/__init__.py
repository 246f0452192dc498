"""Measured times of links.

It imports `net` and `net.links`.  `link_survey` measures two peers of this machine, and all links between machines, one
after the other, of which `lab` fits latency and bandwidth; `relay_reach` measures the way to a relay.
"""
