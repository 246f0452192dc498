"""Advice which way to train together is done sooner over given links: `fedgossip topology advise`.

It imports `lab.costs`, `topology` and `plans`.  `candidates` lists the graphs and the other ways, `lab.costs` gives
the time of a round, `rates` or `learned` the rounds, and their product is the order of the table.
"""
