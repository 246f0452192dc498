"""Plans of federated runs: encoding, budget, ledger, policy.

It imports `protocols.federated`, `secure`, `privacy` and `plans`.  `federation_checks` makes the plan of an experiment
with [coordinator], or raises what cannot be; `federation` is the plan: who takes part, what a sum contains, and the
machines of coordinator and clients.

A budget (`privacy_budget`, `ledger`).  A spend is a line of the ledger beside the key (by unit and source of data, or
by the digest of the records, `data.record_groups`) and of the run's log, on disk before its release; both are read
again at a start. A site's limit over all runs (`TotalBudget`) is a line of that ledger too, and no key of an
experiment or policy: it belongs to the records, and binds the statistics as well.  Releases without noise are noted
there.
"""
