"""A process that measures the links of a participant's processes, one per axis of a mesh, by small steps of that axis.

A message of n bytes takes a + n/b by the closed forms of `step_costs`.  a includes the work of torch, which differs by
axis: DTensor's sum of 4 kB takes three times as long as gloo's alone, and FSDP's gathering of rows as long as a sum.
So each axis sends its own messages here, between as many processes as the mesh has:

    data      a sum of gradients                            rows      a layer by FSDP: gathered twice, scattered once
    tensor    two layers: a sum forward, one back           pipeline  pieces through stages, forward and back
    context   blocks to the next process                    expert    an all-to-all
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from fedgossip.data.objectives import Objective
from fedgossip.lab.costs.base import shortest
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.processes.context import ContextGroup
from fedgossip.learning.processes.grid import CONTEXT, DATA, PIPELINE, TENSOR, ProcessGrid
from fedgossip.learning.processes.ipc import Channel, Message, Setup, SharedArrays, TrainOrder, TrainReply
from fedgossip.learning.processes.parts import divide, shard
from fedgossip.learning.processes.pipeline import StagePasses
from fedgossip.learning.processes.processes import serve
from fedgossip.learning.processes.step_costs import FLOAT, LINKED
from fedgossip.learning.processes.worker import meet
from fedgossip.learning.settings import RING

TIMES = 10
"""Number of timed steps of a size.  The shortest counts, because other load only adds."""

WIDTH = 256
"""Width of the measured layers: their computation is short beside their messages."""


class LinkMember:
    """A process that measures with the others: an order has the bytes and the axis, the reply has the seconds."""

    def __init__(self, setup: Setup, channel: Channel, boards: Mapping[str, SharedArrays]) -> None:  # noqa: ARG002
        torch.set_num_threads(1)
        self._settings, self._device, self._rank = setup.train, meet(setup), setup.rank

    def answer(self, order: Message) -> Message:
        """Time the steps of an axis."""
        assert isinstance(order, TrainOrder)
        axis = LINKED[order.round]
        step = getattr(self, f"_{axis}")(order.node // FLOAT)
        step()
        return TrainReply(shortest(step, TIMES), 0)

    def _grid(self, axis: str) -> ProcessGrid:
        size: Any = {axis: self._settings.processes}
        settings = replace(self._settings, mesh=replace(self._settings.mesh, **size))
        return ProcessGrid.build(settings, self._device, self._rank, lambda: None)

    def _data(self, numbers: int) -> Callable[[], object]:
        line = torch.zeros(numbers)
        return lambda: distributed.all_reduce(line)

    def _rows(self, numbers: int) -> Callable[[], object]:
        module = nn.Sequential(nn.Linear(WIDTH, numbers // WIDTH, bias=False))
        shard(module, self._grid(DATA).mesh[DATA])
        return lambda: module(torch.zeros(1, WIDTH)).sum().backward()

    def _tensor(self, numbers: int) -> Callable[[], object]:
        inner = self._settings.processes
        module = nn.Sequential(nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH))
        divide(module, {"0": ColwiseParallel(), "1": RowwiseParallel()}, self._grid(TENSOR))
        x = torch.zeros(numbers // WIDTH, WIDTH, requires_grad=True)
        return lambda: module(x).sum().backward()

    def _pipeline(self, numbers: int) -> Callable[[], object]:
        grid, criterion = self._grid(PIPELINE), Criterion(Objective())
        stage = nn.PReLU()
        passes = StagePasses(stage, stage, grid, self._settings, criterion, self._device)
        rows = self._settings.microbatches * numbers // WIDTH
        x, y = torch.zeros(rows, WIDTH), torch.zeros(rows, dtype=torch.int64)
        return lambda: passes.backward(x, y, 1.0, 1.0, lambda _: nullcontext())

    def _context(self, numbers: int) -> Callable[[], object]:
        grid = self._grid(CONTEXT)
        group = ContextGroup(grid.mesh.get_group(CONTEXT), grid.place(CONTEXT), grid.size(CONTEXT), RING)
        block = torch.zeros(numbers)
        return lambda: group.passed_on([block])

    def _expert(self, numbers: int) -> Callable[[], object]:
        count = self._settings.processes
        rows = torch.zeros(numbers // count * count)
        return lambda: distributed.all_to_all_single(torch.empty_like(rows), rows)


def member_of(setup: Message, channel: Channel, boards: Mapping[str, SharedArrays]) -> LinkMember:
    """Return the process that `setup` requests."""
    assert isinstance(setup, Setup)
    return LinkMember(setup, channel, boards)


if __name__ == "__main__":
    serve(member_of)
