"""The classical ways to train in parallel, each from one file, beside each other: `fedgossip compare`.

It imports `lab.costs`, `lab.sweeps` and `drivers`.  `cells` makes and runs each paradigm's experiment, `measured`
chooses its learning rate, `verdict` makes the table.
"""
