"""Published numbers and claims, reproduced: `fedgossip repro`.

It imports `lab.sweeps`, `lab.costs`, `topology` and `drivers`.  A file in `results` names a paper's number and the
function that computes it; `published` compares them within its tolerance.
"""
