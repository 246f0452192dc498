"""Real participants on the nodes of a cluster: Slurm, by submitit, or Ray.

It imports `drivers` and `net`.  The engine places processes, and nothing else of the run changes: each participant is
the process that `run --on local` starts, with its seat as a line of JSON, and the same
collector reads what it writes.  `fedgossip launch EXPERIMENT --on slurm`: `placing` makes the folder RUN/cluster
(`meeting`), `slurm` submits a job with a task each, `node` starts the participant on its node and ends it with the
job.
"""
