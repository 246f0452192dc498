"""Many runs of one experiment: a grid of keys and seeds, each cell an ordinary run directory: `fedgossip sweep`.

It imports `drivers`, `runs` and `report`.  `grid` makes the cells, `cells` lets each run in one process, also across
machines with the folder, `worker` runs them, `table` compares them.
"""
