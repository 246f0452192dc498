"""What a peer learns, as the machines' drivers see it: a source of first vectors, updates and evaluations.

`fedgossip.learning` implements this with torch and, for problems with a known answer, with numpy alone; anything
else with these methods serves as well.  `LocalTask` is all that a run needs.  What a task may have beside it is a
protocol each, and a driver asks for nothing by a name that no protocol has:

    StatefulTask    what a peer remembers beside its vector, so that it goes on after a crash
    GradientTask    gradients at a vector, in place of updates from it
    StretchTask     gradients whose last elements are told while the first are computed
    SegmentedTask   where the tensors of a model begin in a vector
    ComparableTask  what the models of two participants must have in common beside their shape
    RowTask         a model that is a table, of which a batch needs a few rows
    UsableTask      a model that can be used where nothing else of the run is
    StackedTask     all nodes at once, from rows of one array into those of another
    ReportingTask   what a reader of the run should know of how it trains
    IdleTask        nothing is trained: rounds mix what there is
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
from fedgossip.core.machine import ChooseRows, NodeId, Produced, Report, RowsChosen, Terms, Train
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.whole_model import WholeModel


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Train `node` in `round` from `vector`.  (node, round) names the random stream, so no job depends on another.

    `terms`, `tested`, `gradient`, `accumulate`, `stretches`, `keys`: see `machine.Train`.  Raises ValueError for a
    gradient with terms.
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
    def of(cls, node: NodeId, asked: Train) -> Job:
        """The job of a node's machine."""
        of_gradients = asked.gradient, asked.accumulate, asked.stretches, asked.keys
        return cls(node, asked.job, asked.vector, asked.terms, asked.tested, *of_gradients)


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """`difference` is trained minus given, [d], or None where nothing changed; of a gradient job the gradient.
    `examples`: those that the node trains on.  `metrics` holds "loss", but where training is private: no loss is known
    then; "steps" and "rate", where a learning rule asks for them; of a gradient "rows", the examples that it is of, of
    lines their characters."""

    difference: Vector | None
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    logged: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the user's own, for the record."""
    extra: tuple[Vector, ...] = ()
    """What came of the terms' `extra`; it stays with the client's rule."""
    over: bool = False
    """No answer: what is trained here has come to its own end, and no job is answered any more."""


PARAMETER, STATISTIC = "parameter", "statistic"
"""The kinds of a tensor: what gradients move, and what a layer has counted of its inputs (BatchNorm's running mean and
variance).  A statistic is averaged as it is: no step, momentum, term or codec has a meaning for it."""


VARIANCE = "running_var"
"""How torch calls the variance that a layer has counted."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One tensor in a vector: elements `start` to `stop` are `name`, of this shape, row by row."""

    name: str
    start: int
    shape: tuple[int, ...]
    kind: str = PARAMETER

    @property
    def stop(self) -> int:
        """The element after its last."""
        return self.start + math.prod(self.shape)


class LocalTask(Protocol):
    """One task object serves every peer of a process: one in a real peer, thousands in the simulator."""

    @property
    def length(self) -> int:
        """d, the number of elements of a vector."""
        ...

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """float32, or float64 for numerical experiments."""
        ...

    @property
    def schema(self) -> str:
        """Hash of the layout (names, shapes, type): equal schemas mean that averaging makes sense."""
        ...

    def initial(self, node: NodeId) -> Vector:
        """The frozen vector [d] that `node` starts from."""
        ...

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """One update per job, in order; never changes `job.vector`.

        The bits of an update depend on its job alone, never on which jobs share the call: the simulator trains
        many peers in one call, a real peer trains one, and their digests must be equal.
        Raises TrainingError, naming the node, where the loss or the update is not finite.
        """
        ...

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Metrics on the common test set, one mapping per vector: "loss" and the metrics of the run, by their
        names: "accuracy" where [task] does not say otherwise."""
        ...


@runtime_checkable
class StatefulTask(LocalTask, Protocol):
    """A task that remembers something of a peer from job to job: momentum, statistics, where its data stand."""

    def state(self, node: NodeId) -> Mapping[str, npt.NDArray[Any]]:
        """What is remembered of `node`, by name; training replaces these arrays and never changes them."""
        ...

    def load_state(self, node: NodeId, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take up what `state` returned, in this process or in one before; {}: as before the first job.

        Raises ConfigError where it is another task's.
        """
        ...


@runtime_checkable
class GradientTask(LocalTask, Protocol):
    """A task that gives gradients too, for methods whose server or group takes the step."""

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """One gradient per job, in order, as `train` gives updates: the mean over all examples of its batches.

        No optimiser takes part, and what is remembered of a node stays as it is.  Raises ConfigError, for no jobs too,
        where this task has none; TrainingError, naming the node, where a loss or a gradient is not finite.
        """
        ...


@runtime_checkable
class StretchTask(GradientTask, Protocol):
    """A task that knows the end of a gradient before its beginning, so that it can leave meanwhile."""

    def gradient_in_stretches(self, job: Job, tell: Callable[[Produced], None]) -> Update:
        """What `gradients` gives of one job, to the bit; `tell` is given each of its stretches when it is final.

        Called from any thread.  A stretch that is told twice, and none at all, do no harm.
        """
        ...


@runtime_checkable
class SegmentedTask(LocalTask, Protocol):
    """A task whose vectors are the tensors of a model."""

    @property
    def segments(self) -> Sequence[Segment]:
        """The tensors in the order of the vector: they cover [0, length) and do not overlap."""
        ...


@runtime_checkable
class ComparableTask(LocalTask, Protocol):
    """A task that knows what averaging needs beside equal schemas."""

    def likeness(self) -> Likeness:
        """What the models of others must have in common with this one beside the schema."""
        ...


@runtime_checkable
class UsableTask(LocalTask, Protocol):
    """A task that knows what its models are for."""

    def whole_model(self, vector: Vector, node: NodeId | None = None) -> WholeModel:
        """The model that `vector` is, with what stays at `node`; without one, with what is known of all nodes."""
        ...


@runtime_checkable
class RowTask(GradientTask, Protocol):
    """A task whose model is a table that only servers of its rows hold, and they only what was touched.

    `initial` and `evaluate` are of the watched rows, [watched * width]; a gradient job has `keys`, its vector is those
    rows, and its gradient has the same shape.
    """

    @property
    def table(self) -> KeyedTable:
        """Rows, width, and what they are before the first step."""
        ...

    @property
    def watched(self) -> Keys:
        """The rows that the run is measured by, and that all workers end with: at least one, the same at all."""
        ...

    def keys(self, node: NodeId, round: int, batches: int) -> Keys:
        """The rows that the batches of a gradient job need, ascending: a function of (seed, node, round, batches)."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class StackTraining:
    """What the training of all nodes was: the `losses` [n] in float64; the learning rate and the optimiser's steps,
    which all nodes had."""

    losses: npt.NDArray[np.float64]
    rate: float
    steps: int


@runtime_checkable
class StackedTask(LocalTask, Protocol):
    """A task that trains many simulated nodes without an object for each of them."""

    def trains_stacks(self, n: int) -> bool:
        """Whether it can, with its settings, for nodes 0 to n - 1; they remember nothing then."""
        ...

    def train_stack(self, round: int, models: Vector, into: Vector, each: Callable[[slice], None]) -> StackTraining:
        """Write into into[i] what `train` would give as the difference of node i in `round` from models[i], to the bit.

        Both are [n, d], two arrays.  `each` is called with the rows that are there, while they are in the cache.
        Raises TrainingError as `train`.
        """
        ...


@runtime_checkable
class ReportingTask(LocalTask, Protocol):
    """A task that may train in a way which its settings do not tell."""

    def report_to(self, write: Callable[[Report], None]) -> None:
        """From now on tell here, in the thread that trains, what a reader of the run should know; each fact once."""
        ...


@runtime_checkable
class IdleTask(LocalTask, Protocol):
    """A task that may have nothing to train."""

    @property
    def idle(self) -> bool:
        """Whether no job ever changes a vector or tells anything: all nodes can be passed over at once."""
        ...


@runtime_checkable
class HeldTask(LocalTask, Protocol):
    """A task whose training is in other hands, and takes as long as they like."""

    def dismiss(self) -> None:
        """Nobody waits any more for what is being trained: let `train` return, or raise, now."""
        ...


METHODS = ("length", "dtype", "schema", "initial", "train", "evaluate")
"""What every task has."""


def checked_task(task: LocalTask) -> LocalTask:
    """Return `task`.  Raises ConfigError for an object that is no task, or half of a stateful one."""
    kind = type(task).__name__
    if missing := [name for name in METHODS if not hasattr(task, name)]:
        advice = f"A task has {', '.join(METHODS[:-1])} and {METHODS[-1]}: see fedgossip.LocalTask."
        raise ConfigError(f"{kind} is no task: it has no {missing[0]}", advice)
    if hasattr(task, "state") != hasattr(task, "load_state"):
        lacks, has = ("state", "load_state") if hasattr(task, "load_state") else ("load_state", "state")
        advice = "A peer that comes back is given what was kept of it: see fedgossip.StatefulTask."
        raise ConfigError(f"{kind} has {has} and no {lacks}", advice)
    segments_of(task)
    return task


def require_gradients(task: LocalTask, method: str) -> None:
    """Raise ConfigError where a task cannot give the gradients that `method` asks for."""
    if not isinstance(task, GradientTask):
        text = f"{method} needs gradients, and {type(task).__name__} has no method gradients"
        raise ConfigError(text, "See fedgossip.core.task.GradientTask; or take fedavg.")
    task.gradients([])


def table_of(task: LocalTask) -> KeyedTable | None:
    """Return the table that a task's model is; None of a vector.  Raises ConfigError for watched rows that are none."""
    if not isinstance(task, RowTask):
        return None
    table, watched = task.table, task.watched
    ascending = watched.size > 0 and bool((np.diff(watched.astype(np.int64)) > 0).all())
    if not ascending or int(watched[-1]) >= table.rows or watched.size * table.width != task.length:
        text = f"{watched.size} watched rows of {table.rows} x {table.width}, and length {task.length}"
        advice = "Watch at least one row, by strictly ascending keys; length is all their elements."
        raise ConfigError(f"{type(task).__name__}: {text}", advice)
    return table


def chosen(task: LocalTask, node: NodeId, asked: ChooseRows) -> RowsChosen:
    """Return the answer to a machine that asks for the rows of a job."""
    assert isinstance(task, RowTask), "a plan without a table was given"
    keys = task.keys(node, asked.job, asked.accumulate) if asked.accumulate else np.empty(0, np.uint32)
    return RowsChosen(asked.job, keys, task.watched if asked.watched else None)


def done(task: LocalTask, jobs: Sequence[Job]) -> list[Update]:
    """Return one update per job, in order: of gradient jobs gradients.  Raises as `train` and `gradients` do."""
    found: dict[int, Update] = {}
    for asked in (False, True):
        places = [place for place, job in enumerate(jobs) if job.gradient == asked]
        if places:
            part = [jobs[place] for place in places]
            found.update(zip(places, _gradients(task, part) if asked else task.train(part), strict=True))
    return [found[place] for place in range(len(jobs))]


def told_in_stretches(task: LocalTask, job: Job, tell: Callable[[Produced], None]) -> Update:
    """Return what `done` gives of one job; stretches that are wanted are told before, where the task knows them."""
    if job.stretches and isinstance(task, StretchTask):
        return task.gradient_in_stretches(job, tell)
    (update,) = done(task, [job])
    return update


def _gradients(task: LocalTask, jobs: Sequence[Job]) -> Sequence[Update]:
    assert isinstance(task, GradientTask), "require_gradients was not called"
    return task.gradients(jobs)


def memory_of(task: LocalTask, node: NodeId) -> Mapping[str, npt.NDArray[Any]]:
    """Return what the task remembers of `node` beside its vector; nothing for tasks that remember nothing."""
    return task.state(node) if isinstance(task, StatefulTask) else {}


def give_memory(task: LocalTask, node: NodeId, memory: Mapping[str, npt.NDArray[Any]]) -> None:
    """Let the task take up what `memory_of` returned.  Raises ResumeError for a task that cannot."""
    if isinstance(task, StatefulTask):
        task.load_state(node, memory)
    elif memory:
        text = f"peer {node}: {type(task).__name__} remembers nothing, and the checkpoint holds {', '.join(memory)}"
        raise ResumeError(text, "Go on with the task that wrote it: see fedgossip.StatefulTask.")


def segments_of(task: LocalTask) -> tuple[Segment, ...]:
    """Return where the tensors of a vector begin; of a task that does not say it, one segment, "vector".

    Raises ConfigError as `covering` does.
    """
    return covering(tuple(task.segments), task.length) if isinstance(task, SegmentedTask) else one_segment(task.length)


def one_segment(length: int) -> tuple[Segment, ...]:
    """Return the only segment of a vector [length] of which nothing is known."""
    return (Segment("vector", 0, (length,)),)


def covering(segments: tuple[Segment, ...], length: int) -> tuple[Segment, ...]:
    """Return the segments of a vector [length].

    Raises ConfigError where they overlap, leave a gap, do not end with the vector, or share a name, and for a parameter
    behind a statistic.
    """
    end, counted = 0, ""
    for one in segments:
        if counted and one.kind == PARAMETER:
            text = f"segment {one.name!r} is a parameter behind {counted!r}, a statistic"
            raise ConfigError(text, "Parameters come first, statistics behind all of them.")
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
    """Return how many elements at the end of a vector are statistics."""
    return sum(one.stop - one.start for one in segments if one.kind == STATISTIC)


def first_wrong(vector: Vector, segments: Sequence[Segment]) -> str:
    """Return the name of the first tensor of a vector [d] that no model can be used with: one with an element that is
    not finite, or a variance below 0; "" where there is none."""
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


def whole_model_of(task: LocalTask, vector: Vector, node: NodeId | None = None) -> WholeModel:
    """Return the model that a vector is; of a task that does not know what it is for, its tensors alone."""
    if isinstance(task, UsableTask):
        return task.whole_model(vector, node)
    return WholeModel(tensors_of(task, vector))


def model_likeness(task: LocalTask) -> Likeness:
    """Return what the tasks of others must have in common with this one; nothing for a task that has no model."""
    return task.likeness() if isinstance(task, ComparableTask) else Likeness()
