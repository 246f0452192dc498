"""Batches through stages: each process has some of the layers, and microbatches pass forward and back through them.

    stage 0   F1 F2 F3 F4 .. .. .. B1 .. B2 ..       "gpipe": all forward, then all back
    stage 1   .. F1 F2 F3 F4 B1 B2 B3 B4             "1f1b": one backward before the next forward

Uses torch's PipelineStage and schedules.  A batch that does not divide evenly passes as one piece.  Only the last stage
has outputs and losses.

Sources: Huang and others, GPipe: efficient training of giant neural networks using pipeline parallelism, NeurIPS 2019;
Narayanan and others, Memory-efficient pipeline-parallel DNN training, ICML 2021.
"""

from __future__ import annotations

import math

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from fedgossip.learning.one_model.losses import Criterion, Watch
from fedgossip.learning.processes.grid import PIPELINE, ProcessGrid
from fedgossip.learning.settings import TrainSettings

MOST_SCHEDULES = 16  # one for each size of a microbatch: full batches, and the last of an epoch
MOST_AXES = 8  # of a stage's output


class StagePasses:
    """See `passes.Passes`; `stage` is this process's part of `module`."""

    def __init__(
        self,
        module: nn.Module,
        stage: nn.Module,
        grid: ProcessGrid,
        settings: TrainSettings,
        criterion: Criterion,
        device: torch.device,
    ) -> None:
        self._module, self._stage, self._grid, self._settings = module, stage, grid, settings
        self._criterion, self._device = criterion, device
        self._group, self._number, self._count = (
            grid.mesh.get_group(PIPELINE),
            grid.place(PIPELINE),
            grid.size(PIPELINE),
        )
        self._schedules: dict[tuple[int, int], ScheduleGPipe | Schedule1F1B] = {}
        self._even, self._scale = True, 1.0

    @property
    def _first(self) -> bool:
        return self._number == 0

    @property
    def _last(self) -> bool:
        return self._number == self._count - 1

    def announce(self, rows: int) -> None:
        size = self._grid.team.size
        self._even = rows < size or rows % size == 0  # else others have a row more, and cut it otherwise

    def backward(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        weight: float,
        factor: float,
        watched: Watch,  # noqa: ARG002  what is final in a pass over stages is told by nobody
    ) -> torch.Tensor:
        pieces = math.gcd(len(x), self._settings.microbatches) if self._even else 1
        self._stage.train(self._module.training)
        self._scale = weight * factor / pieces
        losses: list[torch.Tensor] = []
        inputs = [x] if self._first else []
        schedule = self._schedule(len(x) // pieces, pieces)
        if self._last:
            schedule.step(*inputs, target=y, losses=losses, return_outputs=False)
        else:
            schedule.step(*inputs, return_outputs=False)
        if not losses:
            return torch.zeros((), device=self._device)
        return torch.stack([loss.detach() for loss in losses]).sum() / factor

    def _schedule(self, rows: int, pieces: int) -> ScheduleGPipe | Schedule1F1B:
        """Return the schedule of `pieces` microbatches of `rows` rows."""
        found = self._schedules.get((rows, pieces))
        if found is None:
            if len(self._schedules) == MOST_SCHEDULES:
                self._schedules.clear()
            stage = PipelineStage(self._stage, self._number, self._count, self._device, group=self._group)
            early = self._settings.mesh.schedule == "1f1b" and pieces >= self._count  # torch's has no fewer
            kind = Schedule1F1B if early else ScheduleGPipe
            found = self._schedules[rows, pieces] = kind(stage, pieces, loss_fn=self._loss, scale_grads=False)
        return found

    def _loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self._criterion.mean(outputs, labels) * self._scale

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        self._stage.train(self._module.training)
        found: torch.Tensor = self._stage(x if self._first else self._received())
        if not self._last:
            self._send(found)
        return found

    def _received(self) -> torch.Tensor:
        before = distributed.get_global_rank(self._group, self._number - 1)
        shape = torch.zeros(MOST_AXES, dtype=torch.int64, device=self._device)
        distributed.recv(shape, before, group=self._group)
        found = torch.empty([int(size) for size in shape if size], device=self._device)
        distributed.recv(found, before, group=self._group)
        return found

    def _send(self, found: torch.Tensor) -> None:
        behind = distributed.get_global_rank(self._group, self._number + 1)
        shape = torch.tensor([*found.shape, *[0] * (MOST_AXES - found.dim())], device=self._device)
        distributed.send(shape, behind, group=self._group)
        distributed.send(found.contiguous(), behind, group=self._group)
