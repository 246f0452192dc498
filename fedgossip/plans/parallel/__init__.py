"""Plans of workers on one model: all-reduce, parameter servers, MapReduce.

It imports `protocols.allreduce`, `protocols.servers` and `plans`.  `parallel` makes the plan of [parallel] by its
method; `shared_steps` has the common part, and `parameter_server` adds servers.
"""
