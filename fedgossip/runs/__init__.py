"""A run's files on disk: what a run leaves, and how it is read again.

It imports `plans`, `report` and all below.  `run_directory` names the files; `tracking` passes rows to metrics.jsonl,
memory, watchers and `tracking`.  A real peer writes `peer_files`, and `collect` makes one run of such folders, also
later from several machines.
"""
