"""The differential privacy of a run: its account, the budget that stops it, and the forecast before it starts.

It imports `base`, and opacus where sub-sampling needs it.

    accounting.py   epsilon of any sequence of (sub-sampled) Gaussians, and the noise for a wanted epsilon
    budget.py       what was spent, and what may still be spent; rebuilt from records after a restart
    forecast.py     epsilon and noise of a plan, in numbers and in words, before anything is trained
    adaptive.py     the clip that follows a quantile of the updates' norms

Functions take and return plain numbers; `secure.noise` draws the noise, `learning.dp_sgd.private` protects records.
Sub-sampling needs opacus (`fedgossip[privacy]`), one module of it, and torch for PRV alone.  docs/privacy/privacy.md
says what an epsilon promises.

A round: `budget` asks `accounting` for the epsilon with one more release, and the machine
(`protocols.federated.aggregation_round`) logs the spend before it; `plans.federated` has the ledger.
"""
