"""The fastest mesh of a participant's processes that fits their memory: `fedgossip advise mesh`.

Tries all products data x tensor x pipeline x context of the given number of processes, with each attention, ddp and
fsdp (zero 2 and 3), and for a model with experts their division, as `run` would read them; refused meshes keep their
reasons.  Memory and seconds are those of
`learning/processes/step_costs`: A + B rows is measured, or B given; links are measured by axis (`axis_links`),
or given.

As Zheng and others, Alpa: automating inter- and intra-operator parallelism, OSDI 2022, and Jia and others, Whale,
USENIX ATC 2022, search plans by a cost model; here all are tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedgossip.algorithms.collectives.names import EqualLinks
from fedgossip.base.errors import ConfigError
from fedgossip.core.task import Job
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import CONVEX, Objective
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.lab.costs.base import FittedLink, fitted, shortest
from fedgossip.learning.dp_sgd.record_privacy import check_private
from fedgossip.learning.linear.word_tables import word_table
from fedgossip.learning.models import models
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.processes.grid import CONTEXT, DATA, EXPERT, PIPELINE, TENSOR
from fedgossip.learning.processes.ipc import Setup, TrainOrder, TrainReply
from fedgossip.learning.processes.processes import Group
from fedgossip.learning.processes.step_costs import (
    LINKED,
    ROWS,
    WAYS,
    Links,
    StepShape,
    batch_of,
    experts_of,
    name_way,
)
from fedgossip.learning.settings import ATTENTIONS, LET_GO, MeshSettings, TrainSettings
from fedgossip.learning.task import TorchTask
from fedgossip.plans import compose
from fedgossip.plans.tasks import examples_of
from fedgossip.report.page.numbers import data_size

FLOAT = 4  # bytes

STEPS, REPEATS, PASSES = 6, 3, 30
"""Number of steps of a timed job, of timed jobs, and of timed passes.  The shortest time counts, because other
load only adds.
"""

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)
"""Bytes of the messages that measure the links of processes."""

LINKS_PROGRAM = "fedgossip.lab.advise.axis_links"


@dataclass(frozen=True)
class StepCosts:
    """The costs of this machine, or of another: a batch in one process, links between processes, processors."""

    compute: FittedLink
    """Rows of a batch -> seconds of one process's forward and backward pass."""
    links: Links
    cores: int


@dataclass(frozen=True)
class AdvisedMesh:
    """A mesh with a process's memory in bytes and the step in seconds; or the reason of its refusal."""

    data: int
    tensor: int
    pipeline: int
    context: int
    expert: int
    how: str
    """ddp, fsdp with its zero, and the kind of attention."""
    keys: tuple[str, ...]
    """Keys in the form of `--set` and an experiment file."""
    refused: str = ""
    memory: int = 0
    counted: bool = True
    """Whether activations are in `memory`."""
    work: float = 0.0
    idle: float = 0.0
    messages: float = 0.0
    measured: float | None = None

    @property
    def name(self) -> str:
        experts = f" x {self.expert}" if self.expert > 1 else ""
        return f"{self.data} x {self.tensor} x {self.pipeline} x {self.context}{experts}"

    @property
    def seconds(self) -> float:
        return math.inf if self.refused else self.work + self.idle + self.messages


@dataclass(frozen=True)
class MeshAsked:
    """An experiment's model, examples and settings, and the processes of a participant."""

    path: Path
    overrides: tuple[str, ...]
    processes: int
    memory: float
    """Bytes available to a process."""
    experiment: Experiment
    train: Dataset

    @classmethod
    def from_experiment(cls, path: Path, overrides: Sequence[str], processes: int, memory: float) -> MeshAsked:
        """Read the experiment and its examples.  Raises ConfigError if torch does not train its model."""
        alone = (*overrides, "train.processes=1", "train.mesh={}", 'train.parallel="ddp"', f"train.zero={LET_GO}")
        plan = compose.plan(load_experiment(path, alone))
        e = plan.experiment
        if not e.learns or e.task.kind == CONVEX or word_table(e.model.source):
            text = f"{path}: torch trains no model by it, so there is none to divide"
            raise ConfigError(text, "Name an experiment with a model.source such as gpt:2-64-4.")
        if e.budget is not None and e.budget.unit == "record":
            try:
                check_private(replace(e.train, processes=processes))
            except ConfigError as error:
                advice = "A private participant trains in one process, without a mesh; advice is for other experiments."
                raise ConfigError(f"{path}: {error}", advice) from None
        train = examples_of(e, range(plan.learners), plan.learners).train
        return cls(path, tuple(overrides), processes, memory, e, train)

    @property
    def objective(self) -> Objective:
        return replace(self.experiment.objective, kind=self.train.kind)

    def module(self) -> nn.Module:
        """Return the model on the CPU."""
        size = None if self.train.vocabulary is None else len(self.train.vocabulary)
        e = self.experiment
        return models.build(e.model.source, self.train.shape, self.train.outputs, e.seed, size)

    def settings_of(self, keys: Sequence[str]) -> TrainSettings:
        """Return [train] with these keys.  Raises ConfigError as a run would."""
        return load_experiment(self.path, (*self.overrides, *keys)).train


def advised(asked: MeshAsked, costs: StepCosts) -> list[AdvisedMesh]:
    """Return all meshes, the fastest first, followed by the refused ones."""
    module = asked.module()
    found = [_advised(asked, costs, module, *one) for one in _candidates(asked.processes, bool(experts_of(module)))]
    return sorted(found, key=lambda one: (bool(one.refused), one.seconds))


Axes = tuple[int, int, int, int, int]


def _candidates(processes: int, experts: bool) -> Iterator[tuple[Axes, str, int, str]]:
    if experts:
        yield (1, 1, 1, 1, processes), *WAYS[0], ATTENTIONS[0]
    axes = [number for number in range(1, processes + 1) if processes % number == 0]
    for tensor, pipeline, context in product(axes, repeat=3):
        within = tensor * pipeline * context
        if processes % within:
            continue
        for parallel, zero in WAYS if processes > within else WAYS[:1]:
            for attention in ATTENTIONS if context > 1 else ATTENTIONS[:1]:
                yield (processes // within, tensor, pipeline, context, 1), parallel, zero, attention


def _advised(
    asked: MeshAsked, costs: StepCosts, module: nn.Module, axes: Axes, parallel: str, zero: int, attention: str
) -> AdvisedMesh:
    data, tensor, pipeline, context, expert = axes
    mesh = f"data = {data}, tensor = {tensor}, pipeline = {pipeline}, context = {context}"
    mesh += f", expert = {expert}" if expert > 1 else ""
    attends = f', attention = "{attention}"' if context > 1 else ""
    keys = (f"train.processes={asked.processes}", f"train.mesh={{ {mesh}{attends} }}", f'train.parallel="{parallel}"',
            f"train.zero={zero}")  # fmt: skip
    how = ", ".join([name_way(parallel, zero), *([attention] if context > 1 else [])])
    found = AdvisedMesh(*axes, how, keys)
    try:
        settings = asked.settings_of(keys)
        if expert == 1:
            models.check_whole(module, asked.experiment.model.source, f"with {asked.processes} processes")
        shape = StepShape.from_module(module, asked.experiment.model.source, None, settings, asked.train)
    except ConfigError as error:
        return replace(found, refused=str(error))
    held = shape.fullest
    found = replace(found, memory=held.total, counted=held.activations is not None)
    if held.total > asked.memory:
        sizes = data_size(held.total), data_size(asked.memory)
        return replace(found, refused="a process holds {}, and may hold {}".format(*sizes))
    times = shape.times(costs.compute.seconds, costs.links, costs.cores)
    return replace(found, work=times.work, idle=times.idle, messages=sum(times.messages.values()))


# --- measurements -----------------------------------------------------------------------------------------------------


def measured_compute(asked: MeshAsked) -> FittedLink:
    """Return the seconds of one process's passes by the rows of a batch, fitted to three sizes: `latency`, and `rate`,
    rows per second.
    """
    module, settings = asked.module(), asked.experiment.train
    criterion = Criterion(asked.objective)
    sizes = sorted({max(1, settings.batch_size // part) for part in (1, 2, 2 * asked.processes)})
    kept = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        seconds = [_pass_seconds(module, criterion, *batch_of(asked.train, size)) for size in sizes]
    finally:
        torch.set_num_threads(kept)
    return _fitted(sizes, seconds)


def _fitted(sizes: Sequence[float], seconds: Sequence[float]) -> FittedLink:
    try:
        return fitted(sizes, seconds)
    except ValueError:  # one size, or the fixed cost hides that of the size
        return FittedLink(min(seconds), math.inf, 0.0)


def _pass_seconds(module: nn.Module, criterion: Criterion, x: torch.Tensor, y: torch.Tensor) -> float:
    def once() -> None:
        module.zero_grad()
        criterion.mean(module(x), y).backward()  # type: ignore[no-untyped-call]

    once()
    return shortest(once, PASSES)


def measured_links(asked: TrainSettings, processes: int) -> Links:
    """Return the link of each axis between local processes; pieces and schedule of stages are those asked for."""
    settings = TrainSettings(processes=processes, microbatches=asked.microbatches, device="cpu",
                             batch_size=processes * asked.microbatches,
                             mesh=MeshSettings(schedule=asked.mesh.schedule))  # fmt: skip
    empty: Any = {"source": "", "base": None, "seed": 0, "classes": 0, "kind": "", "loss": "", "metrics": (),
                  "label_scale": ((), ()), "vocabulary": None, "examples": []}  # fmt: skip
    how: Any = {"size": processes, "device": "cpu", "settings": asdict(settings)}
    group = Group(Setup(rank=0, store="", silence=60.0, **how, **empty), {}, LINKS_PROGRAM)
    found = {}
    try:
        for number, axis in enumerate(LINKED):
            replies = [group.ask(TrainOrder(size, number, 0.0, None, 1, [], [])) for size in SIZES]
            seconds = [max(one.loss for one in each if isinstance(one, TrainReply)) for each in replies]
            line, (messages, share) = _fitted(SIZES, seconds), _count(axis, settings, processes)
            rate = line.rate * messages * share
            found[axis] = EqualLinks(line.latency / messages, rate, rate)
    finally:
        group.close()
    return found


def _count(axis: str, settings: TrainSettings, processes: int) -> tuple[int, float]:
    """Return the messages in turn of a measured step, by the closed forms, and the share of the bytes in each."""
    ring = processes - 1
    return {
        DATA: (2 * ring, 1 / processes),
        ROWS: (3 * ring, 1 / processes),
        TENSOR: (2 * 2 * ring, 1 / processes),
        PIPELINE: (2 * (settings.microbatches + processes - 2), 1.0),
        CONTEXT: (1, 1.0),
        EXPERT: (ring, 1 / processes),
    }[axis]


def with_measured(asked: MeshAsked, found: AdvisedMesh) -> AdvisedMesh:
    """Return the mesh with the seconds of a step in real processes of this machine: the shortest of some jobs."""
    settings = replace(asked.settings_of(found.keys), local_steps=STEPS, local_epochs=None)
    train, e = asked.train, asked.experiment
    how: Any = {"seed": e.seed, "rounds": REPEATS + 1, "objective": asked.objective}
    task = TorchTask(train, train.subset(np.arange(1)), [np.arange(len(train))], e.model.source, settings, **how)
    rounds = iter(range(REPEATS + 1))

    def job() -> None:
        task.train([Job(0, next(rounds), task.initial(0))])

    try:
        job()  # starts the processes
        return replace(found, measured=shortest(job, REPEATS) / STEPS)
    finally:
        task.end_processes()
