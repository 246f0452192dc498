"""Rules that combine models in spite of liars, and the attacks that they are tested against.

It imports `base`.  `robust_mixing` makes a peer's new model from its own and its neighbours': a weighted sum, or a rule
such as the trimmed mean; `attacks` gives an attacker its message as a function of the honest models of the round.
"""
