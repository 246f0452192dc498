"""Measured traffic and times of links.

It imports `net` and `net.links`.  `traffic` counts the bytes of vectors on each link of a run; `link_survey` measures
two peers of this machine, and `link_survey` all links between machines, one after the other, of which `lab` fits
latency and bandwidth.
"""
