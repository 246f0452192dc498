"""A process that trains one client with others, by torch.distributed or Hogwild: builds its module, replies
to orders.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from fedgossip.base import seeds
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Terms
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import Objective
from fedgossip.data.ragged import from_parts
from fedgossip.learning.many_nodes.stacked_engine import State
from fedgossip.learning.models import models
from fedgossip.learning.one_model import devices
from fedgossip.learning.one_model.batches import BatchPlan
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.one_model.module_engine import Assignment, ModuleLoop, Spread, compiled, remembered
from fedgossip.learning.one_model.scoring import Scoring
from fedgossip.learning.one_model.sharing import GpuSharing
from fedgossip.learning.one_model.weights import FlatWeights, Line
from fedgossip.learning.processes.grid import ProcessGrid
from fedgossip.learning.processes.group import Team, joined
from fedgossip.learning.processes.ipc import (
    COUNTER,
    LINE,
    STATE,
    Channel,
    Evaluated,
    EvaluateOrder,
    Message,
    Setup,
    SharedArrays,
    TrainOrder,
    TrainReply,
)
from fedgossip.learning.processes.processes import LifeSigns, OrderTaker, serve
from fedgossip.learning.settings import BF16, HOGWILD, TrainSettings, rank_of

Arrays = Mapping[str, npt.NDArray[Any]]


class ModuleMember(ABC):
    """A process of a group, set up; `_loop` trains and evaluates its module."""

    _loop: ModuleLoop

    def __init__(self, boards: Mapping[str, SharedArrays]) -> None:
        self._boards, self._sharing = boards, GpuSharing()

    def answer(self, order: Message) -> Message:
        """Execute an order."""
        assert isinstance(order, TrainOrder | EvaluateOrder)
        self._sharing.pieces = order.pieces
        given = self._boards["given"].views(order.given)
        if isinstance(order, TrainOrder):
            return self._train(order, given, self._boards["found"].views(order.found))
        found = self._loop.sums(given["vector"], state_in(given) if order.own else None)
        sums = [np.sum(parts, axis=0).tolist() for parts in zip(*(one.sums for one in found.tallies), strict=True)]
        return Evaluated(found.loss, found.predicted, sums)

    @abstractmethod
    def _train(self, order: TrainOrder, given: Arrays, found: Arrays) -> TrainReply: ...


def job_of(order: TrainOrder, given: Arrays) -> Assignment:
    terms = None if order.pull is None else Terms(order.pull, given.get("correction"))
    plan = BatchPlan(given["indices"], given["counts"])
    return Assignment((order.node, order.round), given["vector"], plan, order.lr, state_in(given), terms)


def state_in(arrays: Arrays) -> State:
    """Return the node's state among the arrays of a job."""
    return {name.removeprefix(STATE): array for name, array in arrays.items() if name.startswith(STATE)}


def examples_of(setup: Setup, board: SharedArrays) -> tuple[Dataset, Dataset]:
    views = board.views(setup.examples)
    train, test = (
        Dataset(
            name,
            from_parts(views, f"{name}.x"),
            from_parts(views, f"{name}.y"),
            setup.classes,
            vocabulary=setup.vocabulary,
            kind=setup.kind,
            label_mean=setup.label_scale[0],
            label_deviation=setup.label_scale[1],
        )
        for name in ("train", "test")
    )
    return train, test


def module_of(setup: Setup, data: Dataset) -> nn.Module:
    base = None if setup.base is None else Path(setup.base)
    size = None if setup.vocabulary is None else len(setup.vocabulary)
    return models.build(setup.source, data.shape, data.outputs, setup.seed, size, base=base)


def judged_by(setup: Setup, test: Dataset) -> dict[str, Any]:
    """Return the criterion and the scoring as keyword arguments of `ModuleLoop`."""
    base = None if setup.base is None else Path(setup.base)
    objective = Objective(setup.kind, setup.loss, setup.metrics)
    return {"criterion": Criterion(objective, base), "scoring": Scoring(objective, test, base)}


class CollectiveWorker(ModuleMember):
    """A process of a team that takes every step together."""

    def __init__(self, setup: Setup, channel: Channel, boards: Mapping[str, SharedArrays]) -> None:
        super().__init__(boards)
        settings = setup.train
        torch.set_num_threads(settings.threads)
        device = meet(setup)
        grid = ProcessGrid.build(settings, device, setup.rank, LifeSigns(channel).progressed)
        train, test = examples_of(setup, boards["examples"])
        module = joined(module_of(setup, train), grid.team)
        layout = Layout.from_module(module, settings.buffers, settings.stays)
        judged = judged_by(setup, test)
        if settings.in_parts:
            from fedgossip.learning.processes.parts import divided  # only here: it loads much of torch

            spread = divided(setup, module, layout, train.shape, judged["criterion"], grid, device)
        else:
            spread = _copied(module, layout, settings, device, grid.team, setup)
        how = {"seed": setup.seed, "device": device, "sharing": self._sharing, "spread": spread}
        self._loop = ModuleLoop(module, layout, train, test, settings, **judged, **how)  # type: ignore[arg-type]

    def _train(self, order: TrainOrder, given: Arrays, found: Arrays) -> TrainReply:
        job = job_of(order, given)
        if order.gradient:
            done = self._loop.gradient_into(job, found["vector"])
        else:
            done = self._loop.train_into(job, found["vector"], state_in(found))
        return TrainReply(done.loss, done.skipped)


def meet(setup: Setup) -> torch.device:
    """Create torch's process group with the others; return the device of this process."""
    device = torch.device("cuda", setup.rank) if setup.device == "cuda" else torch.device(setup.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        devices.check_precision(setup.settings["precision"], device)  # the task's process stays away from the GPUs
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=torch.distributed.FileStore(setup.store, setup.size),  # type: ignore[attr-defined]
        rank=setup.rank,
        world_size=setup.size,
        timeout=timedelta(seconds=setup.silence),
    )
    return device


def _copied(
    module: nn.Module, layout: Layout, settings: TrainSettings, device: torch.device, team: Team, setup: Setup
) -> Spread:
    module.to(device)
    held = FlatWeights(module, layout, Layout.personal_of(module, settings.stays), device)
    found = DistributedDataParallel(
        module,
        device_ids=[device] if device.type == "cuda" else None,
        find_unused_parameters=models.is_own(setup.source),  # a step may leave some without gradient
        **_without_buffers(),
    )
    team = replace(team, begins=compress(found, settings, setup.seed))
    return Spread(team, held, compiled(found) if settings.compile else found)


def _without_buffers() -> dict[str, Any]:
    """Return DDP's option, by torch version, to leave buffers to `TeamNorm`."""
    known = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def member_of(setup: Message, channel: Channel, boards: Mapping[str, SharedArrays]) -> OrderTaker:
    """Return the process that `setup` requests."""
    assert isinstance(setup, Setup)
    return (HogwildWorker if setup.settings["parallel"] == HOGWILD else CollectiveWorker)(setup, channel, boards)


# Compressed gradients between processes that each have the whole model: the hooks of torch's DDP.
#
#     powersgd:RANK   each gradient is a matrix M; P = M Q and Q = M' P are summed in place of it,
#                     RANK (rows + columns) numbers each step; the error is added to the next step's gradient
#     bf16            two bytes a number in place of four, over NCCL
#
# A matrix for which this would save less than half is sent uncompressed, and so are biases.  A job begins without an
# error and with a Q derived from its name, so its bits do not depend on earlier jobs of these processes; its first two
# steps are not compressed, as torch requires.
#
# Source: Vogels et al., PowerSGD: practical low-rank gradient compression for distributed optimization, NeurIPS 2019.


WHOLE_STEPS = 2
"""Number of a job's first steps without compression: torch rebuilds its buckets after the first, and requires two."""

LEAST_SAVING = 2.0
"""Minimum reduction factor of a matrix for compression."""


def compress(module: DistributedDataParallel, settings: TrainSettings, seed: int) -> Callable[[tuple[int, int]], None]:
    """Install compression of the processes' gradients; return the function to call at a job's start (node, round)."""
    if settings.compression == BF16:
        module.register_comm_hook(distributed.group.WORLD, default_hooks.bf16_compress_hook)
    if (rank := rank_of(settings.compression)) is None:
        return lambda _: None
    state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=WHOLE_STEPS,
        min_compression_rate=LEAST_SAVING,
    )
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def begin(job: tuple[int, int]) -> None:
        for memory in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            memory.clear()
        state.rng = np.random.RandomState(seeds.integer(seed, "compression", *job) % (1 << 32))
        state.iter = 0

    return begin


# A process of a Hogwild client: it steps on the shared line for each gradient, without waiting; see `engine`.


CPU = torch.device("cpu")


class SharedWeights:
    """A module that computes on a line shared with other processes, or else on private memory: `weights.Held`.

    A shared line is the job's vector already: nothing is loaded or stored.
    """

    def __init__(self, module: nn.Module, layout: Layout, own: Layout) -> None:
        self._alone, self._parts = FlatWeights(module, layout, own, CPU), ((own, 0), (layout, own.length))
        self._module, self._trained = module, own.length + layout.parameters
        self.places, self.values = self._alone.places, self._alone.values
        self._private = [(tensor, tensor.data) for _, tensor in module.named_parameters()]
        self._counter: torch.Tensor | None = None
        self.written = 0

    def share(self, shared: Arrays) -> None:
        """Compute on the shared line from now on, and count writes if a counter is given."""
        line = torch.from_numpy(shared[LINE])
        for layout, start in self._parts:
            layout.place(self._module, line[start : start + layout.length])
        self.values = (line[: self._trained].unsqueeze(0),)
        self._counter = torch.from_numpy(shared[COUNTER]) if COUNTER in shared else None
        self.written = 0

    def keep_apart(self) -> None:
        """Compute on private memory again."""
        for tensor, data in self._private:
            tensor.data = data
        self.values = self._alone.values

    @property
    def gradients(self) -> Sequence[torch.Tensor]:
        return self._alone.gradients

    def forget_gradients(self) -> None:
        self._alone.forget_gradients()

    def combine_gradients(self) -> None:
        pass

    def clip(self, longest: float) -> None:
        self._alone.clip(longest)

    def finite(self) -> bool:
        return self._alone.finite()

    def refresh(self) -> None:
        """Count a finished step, with the same race as its writes."""
        if self._counter is not None:
            self._counter.add_(1)
            self.written += len(self._counter)

    @property
    def _shared(self) -> bool:
        return self.values is not self._alone.values

    def load(self, vector: Vector) -> None:
        if not self._shared:
            self._alone.load(vector)

    def load_own(self, personal: Line | None) -> None:
        if not self._shared:
            self._alone.load_own(personal)

    def store(self, vector: Line, personal: Line) -> None:
        pass


class HogwildWorker(ModuleMember):
    """A process that takes every P-th batch of a job, and steps without waiting for the others."""

    def __init__(self, setup: Setup, channel: Channel, boards: Mapping[str, SharedArrays]) -> None:
        super().__init__(boards)
        settings = setup.train
        torch.set_num_threads(settings.threads)
        self._rank, self._size = setup.rank, setup.size
        train, test = examples_of(setup, boards["examples"])
        module = module_of(setup, train)
        layout = Layout.from_module(module, settings.buffers, settings.stays)
        self._held = SharedWeights(module, layout, Layout.personal_of(module, settings.stays))
        self._kept = {
            name: np.empty(shape, kind) for name, (kind, shape) in remembered(module, layout, settings).items()
        }
        alone, testers = Team(progressed=LifeSigns(channel).progressed), Team(setup.rank, setup.size)
        spread = Spread(alone, self._held, module, testers=testers)
        how = {"seed": setup.seed, "device": CPU, "sharing": self._sharing, "spread": spread}
        self._loop = ModuleLoop(module, layout, train, test, settings, **judged_by(setup, test), **how)  # type: ignore[arg-type]

    def _train(self, order: TrainOrder, given: Arrays, found: Arrays) -> TrainReply:
        job = job_of(order, given)
        mine = BatchPlan(job.plan.indices[self._rank :: self._size], job.plan.counts[self._rank :: self._size])
        if not len(mine.counts):
            return TrainReply(0.0, 0)
        self._held.share(found)
        try:
            done = self._loop.train_into(replace(job, plan=mine), found[LINE], self._kept)
        finally:
            self._held.keep_apart()
        return TrainReply(done.loss, 0, len(mine.counts), self._held.written)


if __name__ == "__main__":
    serve(member_of)
