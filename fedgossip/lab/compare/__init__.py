"""The classical ways to train in parallel, each from one file, beside each other: `fedgossip compare`.

It imports `lab.costs`, `lab.sweeps` and `drivers`.  `cells` makes the experiment of each paradigm from the one
file, `measured` chooses its learning rate, `cells` runs it for each seed, and `verdict` makes the table.
"""
