"""Differential privacy of single records: clipped gradients of each example, and noise.

It imports `one_model`, `secure` for the noise, and torch.  `record_privacy` draws the records of a step; `private`
clips each record's gradient (formulas in `layer_gradients`, else opacus) and adds noise to the sum.
"""
