"""Costs of a round of each way to train in parallel, by formula: the alpha-beta model, with the simulator's links.

It imports `algorithms`, `protocols`, `simulation` and `topology`.  A ring of m workers: `methods` takes its 2 (m - 1)
steps, each a + s/b, and `timeline` adds the training times.  Tests compare every formula with the simulator, whose
messages really pass through those links.
"""
