"""Runs of secure sums: the plan of each kind of fit, of statistics and of an evaluation.

It imports `plans`, `data.agreed` and `sites`.  Each is a federated run whose vector is sums of whole numbers (`sums`).

All exact sums of a run are of the same sites: the coordinator keeps those of the first sum, and a site consents to no
others, also in later runs of the same numbers (`plans.federated.ledger`).  Before it replies, a site's task checks the
received vector (`SumsTask.check`), and that enough records count.
"""
