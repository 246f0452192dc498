"""Differential privacy of single records: clipped gradients of each example, and noise.

It imports `one_model`, `secure` for the noise, and torch.  A step of `private` draws its records (`record_privacy`),
clips the gradient of each (`private`: by formulas in `layer_gradients`, otherwise by opacus), adds noise to the sum and
steps.
"""
