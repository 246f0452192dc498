"""The interface between drivers and training: a source of initial vectors, updates and evaluations.

`fedgossip.learning` implements it with torch or with numpy alone; any other object can too.  A run needs `LocalTask`
only; each optional capability is a protocol:

    StatefulTask    state next to the vector, so that a peer resumes after a crash
    GradientTask    gradients at a vector, in place of updates from it
    StretchTask     gradients that deliver their last elements while the first are computed
    SegmentedTask   positions of a model's tensors in a vector
    ComparableTask  properties outside the layout that must agree between participants
    RowTask         a model that is a table; a batch needs a few rows
    UsableTask      a model exported for use without the run
    StackedTask     all nodes at once, from the rows of one array into another
    ReportingTask   reports on deviations of its training
    IdleTask        no training: rounds only mix
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, ResumeError
from fedgossip.base.keyed_rows import KeyedTable, Keys
from fedgossip.base.vectors import Vector, all_finite
from fedgossip.core.machine import Checkpoint, ChooseRows, NodeId, Produced, Report, RowsChosen, Terms, Train
from fedgossip.core.model_fingerprint import Likeness


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Train `node` in `round` from `vector`; (node, round) selects the random stream, so no job depends on another.

    Other fields as in `machine.Train`.  Raises ValueError for a gradient with terms.
    """

    node: NodeId
    round: int
    vector: Vector
    terms: Terms | None = None
    tested: bool = False
    gradient: bool = False
    accumulate: int | None = None
    stretches: tuple[int, ...] = ()
    keys: Keys | None = None

    def __post_init__(self) -> None:
        if self.gradient and self.terms is not None and self.terms.active:
            raise ValueError("terms are added to the steps of a training; a gradient has none")

    @classmethod
    def from_train(cls, node: NodeId, asked: Train) -> Job:
        """Return the job for a machine's `Train`."""
        of_gradients = asked.gradient, asked.accumulate, asked.stretches, asked.keys
        return cls(node, asked.job, asked.vector, asked.terms, asked.tested, *of_gradients)


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """`difference`: trained minus given, [d], or None without a change; of a gradient job the gradient.

    `examples`: the node's number.  `metrics`: "loss", except of private training; "steps" and "rate", if requested; of
    a gradient "rows", its number of examples or of a text's characters.
    """

    difference: Vector | None
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    logged: Mapping[str, float] = field(default_factory=dict)
    """The user's own numbers, for the record."""
    extra: tuple[Vector, ...] = ()
    """The result for the terms' `extra`; it stays with the client rule."""
    over: bool = False
    """Not an update: the local training loop has ended, and no later job is answered."""


PARAMETER, STATISTIC = "parameter", "statistic"
"""Kinds of a tensor: trained by gradients, or a statistic of inputs (BatchNorm's).  A statistic is only averaged: no
steps, momentum, terms or codecs apply.
"""


VARIANCE = "running_var"
"""Torch's name of a layer's running variance."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One tensor in a vector: elements `start` to `stop` are `name`, of this shape, row by row."""

    name: str
    start: int
    shape: tuple[int, ...]
    kind: str = PARAMETER

    @property
    def stop(self) -> int:
        """Index after the last element."""
        return self.start + math.prod(self.shape)


class LocalTask(Protocol):
    """One task object serves every peer of a process: one in a real peer, thousands in the simulator."""

    @property
    def length(self) -> int:
        """d, the number of elements of a vector."""

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """float32, or float64 for numerical experiments."""

    @property
    def schema(self) -> str:
        """Hash of the layout (names, shapes, type): vectors of equal schemas can be averaged."""

    def initial(self, node: NodeId) -> Vector:
        """Return the frozen initial vector [d] of `node`."""

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """Return one update per job, in order; never change `job.vector`.

        An update's bits depend on its job alone: the simulator trains many peers in one call, a real peer one.  Raises
        TrainingError with the node for a loss or update that is not finite.
        """

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return metrics on the common test set, one mapping per vector: "loss" and the metrics of the run by name, by
        default "accuracy"."""


@runtime_checkable
class StatefulTask(LocalTask, Protocol):
    """A task with state of a peer between jobs: momentum, statistics, its position in the data."""

    def state(self, node: NodeId) -> Mapping[str, npt.NDArray[Any]]:
        """Return the state of `node` by name; training replaces these arrays and never changes them."""

    def load_state(self, node: NodeId, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `state`, from this process or an earlier one; {}: as before the first job.

        Raises ConfigError for the state of another task.
        """


@runtime_checkable
class GradientTask(LocalTask, Protocol):
    """A task that computes gradients too, for methods that step at a server or in a group."""

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """Return one gradient per job, in order: the mean over all examples of its batches; no optimiser, no change of
        state.

        Raises ConfigError, even for no jobs, if the task has no gradients; TrainingError with the node for a loss or
        gradient that is not finite.
        """


@runtime_checkable
class StretchTask(GradientTask, Protocol):
    """A task that computes a gradient from its end, so that finished parts can be sent meanwhile."""

    def gradient_in_stretches(self, job: Job, deliver: Callable[[Produced], None]) -> Update:
        """Return the same bits as `gradients` for one job; call `deliver` with each final stretch, from any thread.

        Repeats and gaps are harmless.
        """


@runtime_checkable
class SegmentedTask(LocalTask, Protocol):
    """A task whose vectors are the tensors of a model."""

    @property
    def segments(self) -> Sequence[Segment]:
        """Return the tensors in the order of the vector: they cover [0, length) without overlaps."""


@runtime_checkable
class ComparableTask(LocalTask, Protocol):
    """A task with further conditions for averaging than equal schemas."""

    def likeness(self) -> Likeness:
        """Return the properties outside the schema that must agree with other participants."""


@runtime_checkable
class UsableTask(LocalTask, Protocol):
    """A task that can export its models for use."""

    def whole_model(self, vector: Vector, node: NodeId | None = None) -> WholeModel:
        """Return the model of `vector` with the local tensors of `node`; of all known nodes without one."""


@runtime_checkable
class RowTask(GradientTask, Protocol):
    """A task with a table as its model; servers hold the touched rows.

    `initial` and `evaluate`: watched rows, [watched * width]; a gradient job's vector is the rows `keys`, its gradient
    has the same shape.
    """

    @property
    def table(self) -> KeyedTable:
        """Return the number of rows, the width, and the initial rows."""

    @property
    def watched(self) -> Keys:
        """Return the rows that the run measures and that all workers end with: at least one, equal on each worker."""

    def keys(self, node: NodeId, round: int, batches: int) -> Keys:
        """Return the rows that a gradient job's batches need, ascending: a function of (seed, node, round, batches)."""


@dataclass(frozen=True, slots=True, eq=False)
class StackTraining:
    """Training of all nodes in a round: `losses` [n] in float64; the common learning rate and number of steps."""

    losses: npt.NDArray[np.float64]
    rate: float
    steps: int


@runtime_checkable
class StackedTask(LocalTask, Protocol):
    """A task that trains many simulated nodes without an object per node."""

    def trains_stacks(self, n: int) -> bool:
        """Whether its settings allow it for nodes 0 to n - 1; they then have no state between rounds."""

    def train_stack(self, round: int, models: Vector, into: Vector, each: Callable[[slice], None]) -> StackTraining:
        """Write into into[i] the difference that `train` returns for node i in `round` from models[i], bit for bit.

        Separate arrays [n, d]; `each` is called with finished rows.  Raises TrainingError as `train`.
        """


@runtime_checkable
class ReportingTask(LocalTask, Protocol):
    """A task that reports deviations of its training from its settings."""

    def report_to(self, write: Callable[[Report], None]) -> None:
        """From now on call `write`, in the training thread, with facts for readers of the run; each fact once."""


@runtime_checkable
class IdleTask(LocalTask, Protocol):
    """A task that may have nothing to train."""

    @property
    def idle(self) -> bool:
        """Whether no job ever changes a vector or reports anything, so that all nodes can be skipped."""


@runtime_checkable
class HeldTask(LocalTask, Protocol):
    """A task trained by foreign code of unbounded duration."""

    def dismiss(self) -> None:
        """Cancel the current training: `train` must return or raise now."""


METHODS = ("length", "dtype", "schema", "initial", "train", "evaluate")
"""The required methods of a task."""


def checked_task(task: LocalTask) -> LocalTask:
    """Return `task`.  Raises ConfigError for an object that is not a task, or an incomplete stateful one."""
    kind = type(task).__name__
    if missing := [name for name in METHODS if not hasattr(task, name)]:
        advice = f"A task has {', '.join(METHODS[:-1])} and {METHODS[-1]}: see fedgossip.LocalTask."
        raise ConfigError(f"{kind} is no task: it has no {missing[0]}", advice)
    if hasattr(task, "state") != hasattr(task, "load_state"):
        lacks, has = ("state", "load_state") if hasattr(task, "load_state") else ("load_state", "state")
        advice = "A returning peer receives its stored state: see fedgossip.StatefulTask."
        raise ConfigError(f"{kind} has {has} and no {lacks}", advice)
    segments_of(task)
    return task


def require_gradients(task: LocalTask, method: str) -> None:
    """Raise ConfigError if a task has no gradients, which `method` needs."""
    if not isinstance(task, GradientTask):
        text = f"{method} needs gradients, and {type(task).__name__} has no method gradients"
        raise ConfigError(text, "See fedgossip.core.task.GradientTask; or take fedavg.")
    task.gradients([])


def table_of(task: LocalTask) -> KeyedTable | None:
    """Return the table of a row task; None for other tasks.  Raises ConfigError for invalid watched rows."""
    if not isinstance(task, RowTask):
        return None
    table, watched = task.table, task.watched
    ascending = watched.size > 0 and bool((np.diff(watched.astype(np.int64)) > 0).all())
    if not ascending or int(watched[-1]) >= table.rows or watched.size * table.width != task.length:
        text = f"{watched.size} watched rows of {table.rows} x {table.width}, and length {task.length}"
        advice = "Watch at least one row, by strictly ascending keys; length is all their elements."
        raise ConfigError(f"{type(task).__name__}: {text}", advice)
    return table


def choose_rows(task: LocalTask, node: NodeId, asked: ChooseRows) -> RowsChosen:
    """Return the answer to a `ChooseRows` of a machine."""
    assert isinstance(task, RowTask), "a plan without a table was given"
    keys = task.keys(node, asked.job, asked.accumulate) if asked.accumulate else np.empty(0, np.uint32)
    return RowsChosen(asked.job, keys, task.watched if asked.watched else None)


def perform_jobs(task: LocalTask, jobs: Sequence[Job]) -> list[Update]:
    """Return one update per job, in order; gradients for gradient jobs.  Raises as `train` and `gradients` do."""
    found: dict[int, Update] = {}
    for asked in (False, True):
        places = [place for place, job in enumerate(jobs) if job.gradient == asked]
        if places:
            part = [jobs[place] for place in places]
            found.update(zip(places, _gradients(task, part) if asked else task.train(part), strict=True))
    return [found[place] for place in range(len(jobs))]


def update_in_stretches(task: LocalTask, job: Job, deliver: Callable[[Produced], None]) -> Update:
    """Return the result of `perform_jobs` for one job; before, pass requested stretches to `deliver`, if supported."""
    if job.stretches and isinstance(task, StretchTask):
        return task.gradient_in_stretches(job, deliver)
    (update,) = perform_jobs(task, [job])
    return update


def _gradients(task: LocalTask, jobs: Sequence[Job]) -> Sequence[Update]:
    assert isinstance(task, GradientTask), "require_gradients was not called"
    return task.gradients(jobs)


def memory_of(task: LocalTask, node: NodeId) -> Mapping[str, npt.NDArray[Any]]:
    """Return the task's state of `node` next to its vector; empty for stateless tasks."""
    return task.state(node) if isinstance(task, StatefulTask) else {}


def give_memory(task: LocalTask, node: NodeId, memory: Mapping[str, npt.NDArray[Any]]) -> None:
    """Restore the result of `memory_of` in a task.  Raises ResumeError for a stateless task."""
    if isinstance(task, StatefulTask):
        task.load_state(node, memory)
    elif memory:
        text = f"peer {node}: {type(task).__name__} remembers nothing, and the checkpoint holds {', '.join(memory)}"
        raise ResumeError(text, "Resume with the task that wrote it: see fedgossip.StatefulTask.")


Begun = dict[NodeId, tuple[int, Mapping[str, npt.NDArray[Any]]]]
"""The round of each node's last training, and the task's state of the node at its start."""

_BEGUN = "begun:"


def begin_training(task: LocalTask, job: Job, begun: Begun) -> None:
    """Prepare the task for a training; a repeated round (its result was lost by a stop) starts from the same state."""
    if job.gradient or not isinstance(task, StatefulTask):
        return
    last = begun.get(job.node)
    if last and last[0] == job.round:
        task.load_state(job.node, last[1])
    else:
        begun[job.node] = job.round, task.state(job.node)


def memory_with(task: LocalTask, checkpoint: Checkpoint, node: NodeId, begun: Begun) -> Mapping[str, npt.NDArray[Any]]:
    """Return `memory_of` for a checkpoint, with the state at the start of a training that may be repeated after it."""
    memory, last = memory_of(task, node), begun.get(node)
    if last is None or last[0] < checkpoint.round - checkpoint.unsettled:
        return memory
    started = {f"{_BEGUN}{name}": array for name, array in last[1].items()}
    return {**memory, _BEGUN: np.array([last[0]], np.int64), **started}


def give_memory_with(task: LocalTask, node: NodeId, memory: Mapping[str, npt.NDArray[Any]], begun: Begun) -> None:
    """Restore the result of `memory_with`.  Raises as `give_memory`."""
    begun.pop(node, None)
    if _BEGUN in memory:
        started = {name.removeprefix(_BEGUN): one for name, one in memory.items() if name.startswith(_BEGUN)}
        begun[node] = int(started.pop("")[0]), started
    give_memory(task, node, {name: one for name, one in memory.items() if not name.startswith(_BEGUN)})


def segments_of(task: LocalTask) -> tuple[Segment, ...]:
    """Return the tensors of a vector; for a task without segments, one segment named "vector".

    Raises ConfigError as `covering` does.
    """
    return covering(tuple(task.segments), task.length) if isinstance(task, SegmentedTask) else one_segment(task.length)


def one_segment(length: int) -> tuple[Segment, ...]:
    """Return a single segment for a vector [length] of unknown structure."""
    return (Segment("vector", 0, (length,)),)


def covering(segments: tuple[Segment, ...], length: int) -> tuple[Segment, ...]:
    """Return the segments of a vector [length].

    Raises ConfigError for overlaps, gaps, another end, a shared name, and a parameter after a statistic.
    """
    end, counted = 0, ""
    for one in segments:
        if counted and one.kind == PARAMETER:
            text = f"segment {one.name!r} is a parameter behind {counted!r}, a statistic"
            raise ConfigError(text, "Parameters must be first, statistics after all of them.")
        counted = one.name if one.kind == STATISTIC else ""
        if one.start != end or min(one.shape, default=1) < 0:
            text = f"segment {one.name!r} holds elements {one.start} to {one.stop}, after one that ends at {end}"
            raise ConfigError(text, "Segments follow each other without a gap.")
        end = one.stop
    if end != length:
        raise ConfigError(f"the segments end at {end} of {length} elements", "They cover the whole vector.")
    if len({one.name for one in segments}) < len(segments):
        raise ConfigError("two segments share a name", "Models are saved by the names of their tensors.")
    return segments


def statistics_in(segments: Sequence[Segment]) -> int:
    """Return the number of statistics at the end of a vector."""
    return sum(one.stop - one.start for one in segments if one.kind == STATISTIC)


def first_wrong(vector: Vector, segments: Sequence[Segment]) -> str:
    """Return the name of a vector's first bad tensor: with a non-finite element, or a variance below 0; else ""."""
    for one in segments:
        part = vector[one.start : one.stop]
        if not all_finite(part) or (one.kind == STATISTIC and one.name.endswith(VARIANCE) and (part < 0).any()):
            return one.name
    return ""


def tensors_of(task: LocalTask, vector: Vector) -> dict[str, npt.NDArray[np.floating]]:
    """Return the segments of a vector [d] by name, each in its shape: views, for safetensors.

    Raises ConfigError as `segments_of` does.
    """
    return {one.name: vector[one.start : one.stop].reshape(one.shape) for one in segments_of(task)}


def export_whole_model(task: LocalTask, vector: Vector, node: NodeId | None = None) -> WholeModel:
    """Return the exported model of a vector; its tensors alone for a task without an export."""
    if isinstance(task, UsableTask):
        return task.whole_model(vector, node)
    return WholeModel(tensors_of(task, vector))


def model_likeness(task: LocalTask) -> Likeness:
    """Return the properties that must agree with other participants; empty for a task without a model."""
    return task.likeness() if isinstance(task, ComparableTask) else Likeness()


Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class WholeModel:
    """An exported model.

    `tensors`: every parameter and buffer by name.  `facts`: how to use them, plain (`learning.models.model_files`).
    `code`: user modules, by path below one folder.  `lacks`: local tensors at their initial values, not shared; `own`:
    those of each known node.  `document`: file of a model without tensors.
    """

    tensors: Tensors
    facts: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, bytes] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    own: Mapping[int, Tensors] = field(default_factory=dict)
    document: tuple[str, bytes] | None = None


def make_contiguous(tensors: Tensors) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors as contiguous arrays, for safetensors."""
    return {name: tensor.copy(order="C") for name, tensor in tensors.items()}
