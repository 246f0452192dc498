"""Commands of research: compare, forecast, model, repro, sweep.

It imports `lab` and `drivers`.  `fedgossip sweep FILE` calls `lab.sweeps.sweep` and prints its table.
"""
