"""Commands of sites: shared statistics, fits, plans, budgets, audits, releases."""
