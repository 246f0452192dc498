"""Tasks that turn a vector into an update: models, their training, and their metrics.

It imports `data`, `algorithms` and `core`.  `settings`, `analytic` and `linear` use only numpy, so checking an
experiment file does not import torch.

A job: `task.train` takes jobs of (node, round, vector); `one_model.batches` draws the batches from (seed, node, round);
an engine (`one_model.module_engine`, `many_nodes`, `processes`) takes the local steps; the update is the difference.  A
node's state changes when its job is complete, so a job can be repeated.
"""
