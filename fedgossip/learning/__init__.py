"""What a peer learns: data and their partitions, models, and tasks that turn a vector into an update.

Torch is imported by `models`, `flat`, `task` and the modules that train for it; `data`, `partitions`, `settings` and
`analytic` are numpy alone, so that checking an experiment file does not cost the seconds of `import torch`.
"""
