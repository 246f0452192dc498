"""Plans of workers on one model: all-reduce, parameter servers, MapReduce.

It imports `protocols.allreduce`, `protocols.servers` and `plans`.  `parallel` makes the plan of an experiment with
[parallel] by its method: `shared_steps` has what all have in common, workers with one model and a step on the mean of
their gradients, and decides what is added up and sent with a codec; `parameter_server` adds servers of shards.
"""
