"""Many runs of one experiment: a grid of keys and seeds, each cell an ordinary run directory: `fedgossip sweep`.

It imports `drivers`, `runs` and `report`.  `grid` makes the cells of a file, `claims` lets each cell run in one
process, also on several machines that share the folder, `worker` runs cells until none is open, and `table`
compares them.
"""
