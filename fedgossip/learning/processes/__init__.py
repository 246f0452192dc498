"""One client trained by several processes together.

It imports `one_model` and torch.distributed; `processes` and `ipc` import no torch.  A group shares a mapped board;
each process trains on its part of every batch (DDP, or FSDP2), and a step equals that of one process to rounding
(`engine`, `group`).  The task's process is no member: when one of the group fails, all are ended, the error is typed,
and the next job starts a new group.

With `train.mesh` the processes form a grid (`grid`): DTensors divide layers by a plan (`plans`), `parts` maps the
result to places of the vector, `pipeline` passes a batch through stages.  With `parallel` = "hogwild" all step on one
shared vector.
"""
