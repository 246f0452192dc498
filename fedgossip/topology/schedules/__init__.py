"""Schedules: another graph in each round.

It imports `base` and the other folders of `topology`.  "base:1" with n = 25: `cycles` makes a cycle of mixings
whose product is the exact mean; `schedules` gives the mixing of round r.
"""
