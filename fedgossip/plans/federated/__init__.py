"""Plans of federated runs: encoding, budget, ledger, policy."""
