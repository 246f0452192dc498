"""Runs of secure sums: the plan of each kind of fit, of statistics and of an evaluation.

It imports `plans`, `data.agreed` and `sites`.  `sums` has what all have in common; each is a federated run whose
vector is sums of whole numbers (see `data.agreed`).

Which sites (`RingEncoding.together`, `secure.session_history`): all exact sums of a run are of the same sites.  The
coordinator keeps to those of the first sum, and a site consents to no other, in later runs of the same numbers neither
(`plans.federated.ledger`). Before a site answers, its task checks what it received (`SumsTask.check`): the start, an
earlier question, or what follows from that, and enough records that count.
"""
