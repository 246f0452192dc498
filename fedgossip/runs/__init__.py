"""A run's files on disk: what a run leaves, and how it is read again.

It imports `plans`, `report` and all below.  `run_directory` names the files; `row_keeper` passes each row to
metrics.jsonl, to memory, to watchers and to `tracking`.  A peer of a real run writes `peer_files` into a folder of its
own, and `collect` makes one run of these folders: while the peers run, or later from copies of several machines.
"""
