"""Plans of federated runs: encoding, budget, ledger, policy.

It imports `protocols.federated`, `secure`, `privacy` and `plans`.  `federation_checks` makes the plan of [coordinator]
(`federation`), or raises an error for invalid settings.

A spend is a line of the ledger next to the key (by unit and data, or by the records' digest, `data.record_groups`) and
of the run's log; both are on disk before the release.  A site's limit over all runs (`TotalBudget`) is a line of that
ledger, not a key of an experiment; the ledger also records releases without noise.
"""
