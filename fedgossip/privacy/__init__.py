"""The differential privacy of a run: its account, the budget that stops it, and the forecast before it starts.

It imports `base`, and opacus for sub-sampling.

    accounting.py   epsilon of any sequence of (sub-sampled) Gaussians, and the noise for a wanted epsilon
    budget.py       the spent and the remaining budget; rebuilt from records after a restart
    forecast.py     epsilon and noise of a plan, as numbers and text, before training
    membership.py   tests whether the holder of a model can distinguish its training records from similar ones

`plans.federated.secure_encoding` has the clip that follows the updates.  Functions take and return plain numbers;
`secure.noise` draws the noise, `learning.dp_sgd.private` protects records.  Sub-sampling needs opacus
(`fedgossip[privacy]`), one module of it, and torch for PRV alone.  docs/privacy/privacy.md explains the promise of an
epsilon.

A round: `budget` computes the epsilon with one more release by `accounting`, and the machine
(`protocols.federated.aggregation_round`) logs the spend before the release; `plans.federated` has the ledger.
"""
