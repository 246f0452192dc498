"""The differential privacy of a run: its account, the budget that stops it, and the forecast before it starts.

It imports `base`, and opacus where sub-sampling needs it.

    accounting.py   epsilon of any sequence of (sub-sampled) Gaussians, and the noise for a wanted epsilon
    budget.py       what was spent, and what may still be spent; rebuilt from records after a restart
    forecast.py     epsilon and noise of a plan, in numbers and in words, before anything is trained
    adaptive.py     the clip that follows a quantile of the updates' norms

Functions take and return plain numbers, no model and no data; `secure.noise` draws the noise,
`learning.dp_sgd.private` protects records.  Numbers with sub-sampling are computed by opacus, the extra
`fedgossip[privacy]`: one module of it is loaded when the first is requested, and all of it, with torch, for the
accountant PRV.  Without sub-sampling neither is needed.  docs/privacy/privacy.md says what an epsilon here promises,
and to whom.

A round of a budget: `budget` asks `accounting` for the epsilon with one more release, refuses one that does not fit,
and the machine (`protocols.federated.aggregation_round`) logs the spend before the release leaves; `plans.federated`
has the ledger.
"""
