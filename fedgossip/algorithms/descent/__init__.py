"""Steps on the mean gradient, for methods that exchange gradients and not models: a small file per paper.

Local training has its own optimisers in learning/; sgd, momentum, adam and adamw give the same bits here and there.
"""
