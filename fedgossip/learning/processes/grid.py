"""The position of a process in the group that trains one client: its stage, its part of each batch and of each layer.

Ranks count along tensor first, then expert, context, data, pipeline: parts of the same layers are neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fedgossip.learning.processes.group import Team
from fedgossip.learning.settings import TrainSettings

PIPELINE, DATA, CONTEXT, EXPERT, TENSOR = AXES = ("pipeline", "data", "context", "expert", "tensor")


@dataclass(frozen=True, eq=False)
class ProcessGrid:
    """The processes by axes, as torch's DeviceMesh, and this process's team: those with parts of one batch."""

    mesh: DeviceMesh
    team: Team

    @classmethod
    def build(
        cls, settings: TrainSettings, device: torch.device, rank: int, progressed: Callable[[], None]
    ) -> ProcessGrid:
        """Return the grid of process `rank`; every process of torch's default group calls it."""
        axes = settings.mesh
        sizes = axes.pipeline, settings.parts_of_batch, axes.context, axes.expert, axes.tensor
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=AXES)
        stage, part, place, expert, shard = (mesh.get_local_rank(axis) for axis in AXES)
        losses = _group_shard(sizes, rank) if axes.within > 1 else None
        speaks = shard == expert == place == 0 and stage == axes.pipeline - 1
        team = Team(part, sizes[1], progressed, losses, speaks=speaks, stage=stage)
        return cls(mesh, team)

    def size(self, axis: str) -> int:
        return int(self.mesh.size(AXES.index(axis)))

    def place(self, axis: str) -> int:
        """Return this process's index along an axis."""
        return self.mesh.get_local_rank(axis)


def _group_shard(sizes: tuple[int, int, int, int, int], rank: int) -> distributed.ProcessGroup:
    """Return the group for a sum of losses: all stages and batch parts, one of each layer's and text's parts."""
    found: distributed.ProcessGroup | None = None
    within = math.prod(sizes[2:])
    for shard in range(within):
        ranks = [(stage * sizes[1] + part) * within + shard for stage, part in product(*map(range, sizes[:2]))]
        group = distributed.new_group(ranks)  # called by all, including non-members
        if rank in ranks:
            found = group
    assert found is not None
    return found
