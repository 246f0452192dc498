"""One client trained by several processes together.

It imports `one_model` and torch.distributed; `processes`, `ipc` and `serving` import no torch.  A
client with `processes` starts a group that shares a mapped board; each process trains on its part of every batch (DDP,
or FSDP2), and a step equals that of one process to rounding (`engine`, `group`).  The task's process is no member.
When one process of the group fails, all are ended, the error is typed, and the next job starts a new group; when the
peer is gone, they end.

With `train.mesh` the processes stand in a grid: pipeline, data, tensor (`grid`).  torch's DTensors divide layers by a
plan (`plans`); `parts` holds the result as places of the vector (`weights`: a cut of a tensor, and a stretch of
it), so nothing else knows of meshes.  `pipeline` passes a batch through stages, as a `losses.Passes`.

With `parallel` = "hogwild" they make no group of torch's: all step on the vector that the task's process has put on
the board, and each has a gradient of its own (`engine`).
"""
