"""Many runs of one experiment: a grid of keys and seeds, each cell an ordinary run directory: `fedgossip sweep`.

It imports `drivers`, `runs` and `report`.  `grid` makes the cells, `cells` ensures that one process runs each, also
across machines that share the folder, `worker` runs them, `table` compares them.
"""
