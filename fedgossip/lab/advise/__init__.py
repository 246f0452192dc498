"""Advice which way to train together is done sooner over given links: `fedgossip topology advise`.

It imports `lab.costs`, `topology` and `plans`.  `candidates` lists graphs and other ways, `lab.costs` times a round,
`rates` or `learned` count rounds; their product orders the table.
"""
