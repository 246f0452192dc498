"""Commands of sites: shared statistics, fits, plans, budgets, audits, releases.

It imports `sites`, `plans`, `audit` and `privacy`.  `fedgossip plan show FILE` makes the statement of a run and prints
it in plain words.
"""
