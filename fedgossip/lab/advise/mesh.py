"""Which mesh of a participant's processes fits their memory, and takes a step soonest: `fedgossip advise mesh`.

All products of data x tensor x pipeline x context of so many processes are tried, by each attention, with whole models
(ddp) and with rows of them (fsdp, zero 2 and 3).  An experiment with that mesh is read as `run` reads it, its layers
are divided, and its memory is that of `process_memory`: what these refuse is refused for their reason.

A step of the rest, for P processes on k processors:

    work      pieces (A + B rows) / S, rows = batch / (data context tensor pieces), of S stages; times P / k for P > k
    idle      S - 1 turns of (A + B rows) / S; with P > k others compute meanwhile
    messages  sums and copies by the closed forms of `lab.costs`: tensor, by each divided layer forward and back;
              pipeline, by each turn there and back; context, blocks of keys and values or all-to-alls; data, gradients,
              and the rows of FSDP

A + B rows are the seconds of one process for a batch of so many rows: measured, or B alone as given.  Links are
measured by all-reduces of P processes over gloo, or given.  Not counted: steps of the optimiser, and torch's own work
for each message.

As Zheng and others, Alpa: automating inter- and intra-operator parallelism, OSDI 2022, and Jia and others, Whale,
USENIX ATC 2022, search plans by a cost model; here all plans of a mesh are few enough to be tried.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from fedgossip.algorithms.collectives.names import EqualLinks, all_gather, all_reduce
from fedgossip.base.errors import ConfigError
from fedgossip.core.task import Job
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import CONVEX, Objective
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.lab.costs.base import FittedLink, fitted
from fedgossip.learning.dp_sgd.record_privacy import check_private
from fedgossip.learning.linear.word_tables import word_table
from fedgossip.learning.models import models
from fedgossip.learning.models.models import Transformer
from fedgossip.learning.one_model import loading
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.processes.ipc import Channel, Message, Setup, SharedArrays, TrainOrder, TrainReply
from fedgossip.learning.processes.plans import Plan, plan_of, stages_of
from fedgossip.learning.processes.process_memory import memory_of
from fedgossip.learning.processes.processes import Group, serve
from fedgossip.learning.processes.worker import meet
from fedgossip.learning.settings import ATTENTIONS, LET_GO, RING, TrainSettings
from fedgossip.learning.task import TorchTask
from fedgossip.plans import compose
from fedgossip.plans.tasks import examples_of
from fedgossip.report.page.numbers import data_size

FLOAT = 4  # bytes

STEPS, REPEATS, PASSES = 6, 3, 30
"""Steps of a timed job, timed jobs or sums, timed passes: the shortest counts, other work of the machine only adds."""

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)
"""Bytes of the sums that measure the links of processes."""

WAYS = (("ddp", LET_GO), ("fsdp", 2), ("fsdp", LET_GO))


@dataclass(frozen=True)
class StepCosts:
    """The costs of this machine, or of another: a batch in one process, links between processes, processors."""

    compute: FittedLink
    """Seconds of one process's forward and backward pass over a batch of so many rows."""
    links: EqualLinks
    cores: int


@dataclass(frozen=True)
class AdvisedMesh:
    """A mesh with what a process holds and its step, in bytes and seconds; or why it is refused."""

    data: int
    tensor: int
    pipeline: int
    context: int
    how: str
    """ddp, fsdp with its zero, and the kind of attention."""
    keys: tuple[str, ...]
    """As `--set` and an experiment file take them."""
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
        return f"{self.data} x {self.tensor} x {self.pipeline} x {self.context}"

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
    """Bytes of a process."""
    experiment: Experiment
    train: Dataset

    @classmethod
    def of(cls, path: Path, overrides: Sequence[str], processes: int, memory: float) -> MeshAsked:
        """Read the experiment and its examples.  Raises ConfigError where torch trains no model by it."""
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
    """Return all meshes, the soonest first, and those that are refused behind."""
    module = asked.module()
    models.check_whole(module, asked.experiment.model.source, f"with {asked.processes} processes")
    found = [_advised(asked, costs, module, *one) for one in _candidates(asked.processes)]
    return sorted(found, key=lambda one: (bool(one.refused), one.seconds))


def _candidates(processes: int) -> Iterator[tuple[tuple[int, int, int, int], str, int, str]]:
    axes = [number for number in range(1, processes + 1) if processes % number == 0]
    for tensor, pipeline, context in product(axes, repeat=3):
        within = tensor * pipeline * context
        if processes % within:
            continue
        for parallel, zero in WAYS if processes > within else WAYS[:1]:
            for attention in ATTENTIONS if context > 1 else ATTENTIONS[:1]:
                yield (processes // within, tensor, pipeline, context), parallel, zero, attention


def _advised(
    asked: MeshAsked, costs: StepCosts, module: nn.Module, axes: tuple[int, int, int, int], parallel: str, zero: int,
    attention: str,
) -> AdvisedMesh:  # fmt: skip
    data, tensor, pipeline, context = axes
    mesh = f"data = {data}, tensor = {tensor}, pipeline = {pipeline}, context = {context}"
    attends = f', attention = "{attention}"' if context > 1 else ""
    keys = (f"train.processes={asked.processes}", f"train.mesh={{ {mesh}{attends} }}", f'train.parallel="{parallel}"',
            f"train.zero={zero}")  # fmt: skip
    how = ", ".join([parallel if parallel == "ddp" else f"fsdp, zero {zero}", *([attention] if context > 1 else [])])
    found = AdvisedMesh(*axes, how, keys)
    e, places = asked.experiment, asked.train.shape[0]
    try:
        settings = asked.settings_of(keys)
        plan = plan_of(module, e.model.source, None, settings.mesh, asked.train.shape)
        stages = [module] if pipeline == 1 else stages_of(module, e.model.source, None, pipeline)
    except ConfigError as error:
        return replace(found, refused=str(error))
    memory = max(memory_of(module, stages, plan, settings, places), key=lambda one: one.total)
    found = replace(found, memory=memory.total, counted=memory.activations is not None)
    if memory.total > asked.memory:
        sizes = data_size(memory.total), data_size(asked.memory)
        return replace(found, refused="a process holds {}, and may hold {}".format(*sizes))
    whole = memory_of(module, stages, plan, replace(settings, parallel="ddp", zero=LET_GO, offload=False), places)
    held = max(one.parameters for one in whole)
    return _timed(found, costs, StepShape.of(module, stages, plan, settings, asked.train, held))


# --- the seconds of a step --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepShape:
    """What a process of a mesh computes and sends in a step."""

    settings: TrainSettings
    rows: float
    """Examples of a process in a piece of a batch."""
    pieces: int
    places: int
    """Rows of a linear layer for an example: places of a text that a process has, else 1."""
    held: int
    """Bytes of parameters of a process that has no rows of them."""
    units: int
    """Layers that FSDP gathers one by one."""
    passed: float
    """Bytes of an example between two stages, the most."""
    divided: tuple[tuple[float, float, float], ...]
    """Of each divided layer: bytes of a row that are summed forward, summed back, and gathered forward."""
    blocks: int
    """Attention layers of a process."""
    width: int
    """Of a place between the layers, of its own heads alone."""
    logits: int

    @classmethod
    def of(
        cls, module: nn.Module, stages: Sequence[nn.Module], plan: Plan, settings: TrainSettings, train: Dataset,
        held: int,
    ) -> StepShape:  # fmt: skip
        mesh, text = settings.mesh, isinstance(module, Transformer)
        pieces = settings.microbatches if mesh.pipeline > 1 else 1
        first = next(iter(module.named_parameters()))[0].rpartition(".")[0]
        divided = tuple(
            _sums(module.get_submodule(name), style, gives_back=name != first) for name, style in plan.items()
        )
        lists = [part for part in module.modules() if isinstance(part, nn.Sequential | nn.ModuleList)]
        return cls(
            settings,
            rows=settings.batch_size / (settings.parts_of_batch * pieces),
            pieces=pieces,
            places=train.shape[0] // mesh.context if text else 1,
            held=held,
            units=1 + sum(next(layer.parameters(), None) is not None for part in lists for layer in part),
            passed=_passed(stages, train),
            divided=divided,
            blocks=-(-len(module.blocks) // mesh.pipeline) if isinstance(module, Transformer) else 0,
            width=module.behind.normalized_shape[0] // mesh.tensor if isinstance(module, Transformer) else 0,
            logits=module.layer.out_features if isinstance(module, Transformer) else 0,
        )


def _sums(layer: nn.Module, style: ParallelStyle, *, gives_back: bool) -> tuple[float, float, float]:
    outputs = int(getattr(layer, "out_features", 0) or getattr(layer, "embedding_dim", 0))
    inputs = int(getattr(layer, "in_features", 0))
    if isinstance(style, RowwiseParallel):
        return FLOAT * outputs, 0, 0
    if isinstance(style, ColwiseParallel):
        gathered = FLOAT * outputs if any(isinstance(one, Replicate) for one in style.output_layouts) else 0
        return 0, FLOAT * inputs * gives_back, gathered
    return 0, 0, 0


def _passed(stages: Sequence[nn.Module], train: Dataset) -> float:
    """Return the bytes of an example between two stages, the most."""
    if len(stages) == 1:
        return 0.0
    (h, _), most = _batch(train, 1), 0
    with torch.no_grad():
        for stage in stages[:-1]:
            h = stage(h)
            most = max(most, h.numel())
    return float(FLOAT * most)


def _batch(train: Dataset, rows: int) -> loading.Batch:
    data = loading.examples(train.subset(np.arange(min(rows, len(train)))), torch.device("cpu"), 0)
    with data.batches([np.arange(rows) % len(train)]) as batches:
        return next(iter(batches))


def _timed(found: AdvisedMesh, costs: StepCosts, shape: StepShape) -> AdvisedMesh:
    """Return the mesh with the seconds of a step."""
    mesh, processes, links = shape.settings.mesh, shape.settings.processes, costs.links
    divisor = mesh.tensor * mesh.context
    turn = costs.compute.seconds(shape.rows / divisor) / mesh.pipeline
    work, turns = shape.pieces * turn, shape.pieces + mesh.pipeline - 1
    crowded = max(1.0, processes / costs.cores)
    idle = max(0.0, turns * turn - work * crowded)
    row = shape.rows * shape.places
    sent = 0.0
    for forward, back, gathered in shape.divided:
        for size in (forward, back):
            sent += shape.pieces * all_reduce("ring", mesh.tensor, row * size, links) if size else 0.0
        if gathered:
            sent += shape.pieces * all_gather("ring", mesh.tensor, row * gathered / mesh.tensor, 0.0, links)
    sent /= mesh.pipeline  # a stage has its own layers alone
    if mesh.pipeline > 1:
        sent += 2 * (turns - 1) * links.one(shape.rows * shape.passed)
    if mesh.context > 1:
        sent += _of_context(shape, links) + all_reduce("ring", mesh.context, shape.held, links)
    data = shape.settings.parts_of_batch
    if shape.settings.parallel == "ddp":
        sent += all_reduce("ring", data, shape.held, links)
    else:  # rows of each layer: gathered once or twice, and gradients scattered
        times = 2 if shape.settings.zero == 2 else 3
        sent += times * shape.units * all_gather("ring", data, shape.held / data / shape.units, 0.0, links)
    return replace(found, work=work * crowded, idle=idle, messages=sent)


def _of_context(shape: StepShape, links: EqualLinks) -> float:
    """Return the seconds of attention's messages, and of the logits that are brought together."""
    mesh = shape.settings.mesh
    count, part = mesh.context, FLOAT * shape.rows * shape.places * shape.width
    if mesh.attention == RING:  # keys and values; back their gradients too, and home
        block = (count - 1) * links.one(2 * part) + count * links.one(4 * part)
    else:  # queries, keys, values, and what was seen, forward and back
        block = 8 * ((count - 1) * links.latency + (count - 1) / count * part / links.rate)
    whole = all_gather("ring", count, FLOAT * shape.rows * shape.places * shape.logits, 0.0, links)
    return shape.blocks * block + whole


# --- measurements -----------------------------------------------------------------------------------------------------


def measured_compute(asked: MeshAsked) -> FittedLink:
    """Return the seconds of a forward and backward pass of one process, by the rows of a batch, fitted to three sizes.

    Its `latency` is what a pass takes whatever its rows, its `rate` rows per second.
    """
    module, settings = asked.module(), asked.experiment.train
    criterion = Criterion(asked.objective)
    sizes = sorted({max(1, settings.batch_size // part) for part in (1, 2, 2 * asked.processes)})
    kept = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        seconds = [_pass_seconds(module, criterion, *_batch(asked.train, size)) for size in sizes]
    finally:
        torch.set_num_threads(kept)
    try:
        return fitted(sizes, seconds)
    except ValueError:  # one size, or the rows are lost in what a pass takes by itself
        return FittedLink(min(seconds), math.inf, 0.0)


def _pass_seconds(module: nn.Module, criterion: Criterion, x: torch.Tensor, y: torch.Tensor) -> float:
    def once() -> None:
        module.zero_grad()
        criterion.mean(module(x), y).backward()  # type: ignore[no-untyped-call]

    once()
    return shortest(once, PASSES)


def shortest(call: Callable[[], object], times: int) -> float:
    """Return the seconds of the shortest of some calls: whatever else the machine does only adds."""
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return min(found)


def measured_links(asked: MeshAsked) -> EqualLinks:
    """Return the links of so many processes of this machine, by all-reduces over gloo of several sizes.

    A ring's 2 (P - 1) (a + s / (P b)) is taken for the line that is fitted.
    """
    settings = replace(asked.experiment.train, processes=asked.processes)
    empty: Any = {"source": "", "base": None, "seed": 0, "classes": 0, "kind": "", "loss": "", "metrics": (),
                  "label_scale": ((), ()), "vocabulary": None, "examples": []}  # fmt: skip
    how: Any = {"size": asked.processes, "device": "cpu", "settings": asdict(settings), "silence": 60.0}
    setup = Setup(rank=0, store="", **how, **empty)
    group = Group(setup, {}, "fedgossip.lab.advise.mesh")
    try:
        found = [group.ask(TrainOrder(size, REPEATS, 0.0, None, 1, [], [])) for size in SIZES]
    finally:
        group.close()
    seconds = [max(reply.loss for reply in replies if isinstance(reply, TrainReply)) for replies in found]
    line, messages = fitted(SIZES, seconds), 2 * (asked.processes - 1)
    rate = line.rate * messages / asked.processes
    return EqualLinks(line.latency / messages, rate, rate)


class SumsMember:
    """A process that sums with the others: an order names the bytes and the repeats, the reply has the seconds."""

    def __init__(self, setup: Message, channel: Channel, boards: Mapping[str, SharedArrays]) -> None:  # noqa: ARG002
        assert isinstance(setup, Setup)
        torch.set_num_threads(1)
        meet(setup)

    def answer(self, order: Message) -> Message:
        """Time an all-reduce."""
        assert isinstance(order, TrainOrder)
        line = torch.zeros(order.node // FLOAT)
        distributed.all_reduce(line)
        return TrainReply(shortest(lambda: distributed.all_reduce(line), order.round), 0)


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


if __name__ == "__main__":
    serve(SumsMember)
