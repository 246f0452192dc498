"""Measured times of links (`link_survey`, from which `lab` fits latency and bandwidth), and of the way to a relay
(`relay_reach`).  It imports `net` and `net.links`.
"""
