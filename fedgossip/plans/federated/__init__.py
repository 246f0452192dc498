"""Plans of federated runs: encoding, budget, ledger, policy.

It imports `protocols.federated`, `secure`, `privacy` and `plans`.  `federation_checks` makes the plan of [coordinator]
(`federation`), or raises what cannot be.

A spend is a line of the ledger beside the key (by unit and data, or the records' digest, `data.record_groups`) and of
the run's log, on disk before its release.  A site's limit over all runs (`TotalBudget`) is a line of that ledger too,
and no key of an experiment; releases without noise are noted there.
"""
