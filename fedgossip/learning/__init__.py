"""Tasks that turn a vector into an update: models, their training, and what it is measured by.

It imports `data`, `algorithms` and `core`.  Torch is imported by `models`, `one_model`, `many_nodes` and `task`;
`settings`, `analytic` and `linear` are numpy alone, so that checking an experiment file does not cost the seconds of
`import torch`.

A job: `task.train` takes jobs of (node, round, vector); `one_model.batches` draws the batches from (seed, node,
round); `one_model.module_engine`, or an engine of `many_nodes` or `processes`, takes the local steps; the update is
the difference. A node's state changes when its job is done, so that a job can be repeated: out of memory, or after a
fault.
"""
