"""The evaluation of one model on all sites' examples, by secure sums.

It imports `data.agreed`, `learning` and `secure`.  `sites.plans.evaluation` runs two rounds: first at how many sites
each group of records is, then the counts, losses and histograms of the model's answers at each site.  It is a command
after the training: a round at its end would evaluate a model that is not chosen yet, on records that a budget counts.
The model's hash is in the Hello.  Under a budget the sums carry noise (`evaluation_sums`), and the result its error.
"""
