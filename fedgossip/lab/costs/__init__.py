"""Costs of a round of each method of parallel training, by formula: the alpha-beta model, with the simulator's links.

It imports `algorithms`, `protocols`, `simulation` and `topology`.  `methods` follows a round's steps, each a + s/b,
`timeline` adds training times; tests compare every formula with the simulator.
"""
