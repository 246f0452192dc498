"""Research: sweeps, comparisons, costs, advice, published numbers, small devices.

It imports the core; the core never imports it.  `fedgossip sweep FILE`: `sweeps.grid` makes the cells, `sweeps.worker`
runs each as an ordinary run, `sweeps.table` compares them.
"""
