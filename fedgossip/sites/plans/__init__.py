"""Runs of secure sums: the plan of each kind of fit, of statistics and of an evaluation.

It imports `plans`, `data.agreed` and `sites`.  Each is a federated run whose vector is sums of whole numbers (`sums`).

All exact sums of a run are of the same sites: the coordinator keeps to those of the first, and a site consents to no
other, in later runs of the same numbers neither (`plans.federated.ledger`).  A site's task checks what it received
before it answers (`SumsTask.check`), and that enough records count.
"""
