"""The classical methods of parallel training, compared from one file: `fedgossip compare`.

It imports `lab.costs`, `lab.sweeps` and `drivers`.  `cells` makes and runs each paradigm's experiment, `measured`
chooses its learning rate, `verdict` makes the table.
"""
