"""Real participants on the nodes of a cluster: Slurm, by submitit, or Ray.

It imports `drivers` and `net`.  The engine only places processes: a participant is the process of `run --on local`, and
the same collector reads its files.  `placing` makes the folder RUN/cluster (`meeting`), `slurm` submits a job with one
task each, `node` starts and ends the participant.
"""
