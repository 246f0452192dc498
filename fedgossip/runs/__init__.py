"""A run's files on disk: how they are written, and how they are read again.

It imports `plans`, `report` and all below.  `run_directory` names the files; `tracking` passes rows to metrics.jsonl,
memory, watchers and trackers.  A real peer writes `peer_files`; `collect` makes one run of these folders, also later
from several machines.
"""
