"""What differential privacy a run has: the account, the budget that stops it, and the forecast before it starts.

    accounting.py   epsilon of any sequence of (sub-sampled) Gaussians, and the noise for a wanted epsilon
    budget.py       what was spent, what may be spent still; rebuilt from records after a restart
    forecast.py     epsilon and noise of a plan, in numbers and in words, before anything is trained
    adaptive.py     the clip that follows a quantile of the updates' norms

Plain numbers in and out, no model and no data; the noise itself is drawn in `secure.noise`, records are protected in
`learning.private`.  Numbers with sub-sampling come from opacus, imported when the first is asked for: it is the
extra `fedgossip[privacy]`, and brings torch with it.  docs/privacy.md says what an epsilon here promises, and to whom.
"""
