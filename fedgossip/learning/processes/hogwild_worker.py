"""One of the processes of a Hogwild client: it steps on the shared line whenever it has a gradient; see `hogwild`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from fedgossip.base.vectors import Vector
from fedgossip.learning.one_model.batches import BatchPlan
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.module_engine import ModuleLoop, Spread, remembered
from fedgossip.learning.one_model.weights import FlatWeights, Line
from fedgossip.learning.processes.group import Team
from fedgossip.learning.processes.ipc import COUNTER, LINE, Channel, Setup, TrainOrder, TrainReply
from fedgossip.learning.processes.module_member import Arrays, ModuleMember, examples_of, job_of, judged_by, module_of
from fedgossip.learning.processes.serving import LifeSigns
from fedgossip.learning.processes.shared_memory import SharedArrays

CPU = torch.device("cpu")


class SharedWeights:
    """A module that computes on a line that other processes write to, or else on memory of its own: `weights.Held`.

    While the line is shared it is the job's vector already, and it stays where it is: nothing is loaded or stored.
    """

    def __init__(self, module: nn.Module, layout: Layout, own: Layout) -> None:
        self._alone, self._parts = FlatWeights(module, layout, own, CPU), ((own, 0), (layout, own.length))
        self._module, self._trained = module, own.length + layout.parameters
        self.places, self.values = self._alone.places, self._alone.values
        self._private = [(tensor, tensor.data) for _, tensor in module.named_parameters()]
        self._counter: torch.Tensor | None = None
        self.written = 0

    def share(self, shared: Arrays) -> None:
        """Compute on the shared line from now on, and count where there is a counter."""
        line = torch.from_numpy(shared[LINE])
        for layout, start in self._parts:
            layout.place(self._module, line[start : start + layout.length])
        self.values = (line[: self._trained].unsqueeze(0),)
        self._counter = torch.from_numpy(shared[COUNTER]) if COUNTER in shared else None
        self.written = 0

    def keep_apart(self) -> None:
        """Compute on memory of this process's own again."""
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
