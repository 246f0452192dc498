"""Advice on the fastest way to train together over given links: `fedgossip topology advise`.

It imports `lab.costs`, `topology` and `plans`.  `candidates` lists graphs and other methods, `lab.costs` computes the
time of a round, `rates` or `learned` count rounds; their product orders the table.
"""
