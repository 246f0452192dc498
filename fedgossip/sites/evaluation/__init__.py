"""The evaluation of one model on all sites' examples, by secure sums.

It imports `data.agreed`, `learning` and `secure`.  `sites.plans.evaluation` runs two rounds: the number of sites per
group of records, then counts, losses and histograms of the model's outputs.  It is a command after the training: a
round at the end of training would evaluate a model before its selection, on records that a budget counts.  The model's
hash is in the Hello.
"""
