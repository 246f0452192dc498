"""Published numbers and claims, computed again: `fedgossip repro`.

It imports `lab.sweeps`, `lab.costs`, `topology` and `drivers`.  A file in `results` names a number of a paper and the
function that computes it (graph, run, sweep, time, attack or learned measures); `published` compares both within the
file's tolerance.
"""
