"""Real participants on the nodes of a cluster: Slurm, by submitit, or Ray.

The engine places processes, and nothing else of the run changes: each participant is the process that `run --on local`
starts, told what it is by a line of JSON, and what they leave is put together by the same collector.
"""
