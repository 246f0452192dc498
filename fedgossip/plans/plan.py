"""The interface between drivers and the plan of a run; `compose.plan` selects the implementation from
`experiment.reading.RUN_KINDS`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fedgossip.base import kernels
from fedgossip.base.errors import ConfigError
from fedgossip.base.keyed_rows import KeyedTable, Rows
from fedgossip.base.scores import BestSoFar
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Failure, Machine, NodeId
from fedgossip.core.metrics import Evaluate, Network
from fedgossip.core.records import Row
from fedgossip.core.roles import Roles
from fedgossip.core.run_summary import MethodFacts
from fedgossip.core.task import STATISTIC, LocalTask, Segment
from fedgossip.data.objectives import is_of_model
from fedgossip.experiment import Experiment
from fedgossip.plans.completeness import Lacking
from fedgossip.plans.federated.credentials import Logged, Own
from fedgossip.plans.tasks import DataShares


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """Result of a run without sockets: all final vectors, counts of events, early ends, and the bytes of vectors sent
    on each link.
    """

    vectors: Sequence[Vector | None]
    counts: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[NodeId, Failure] = field(default_factory=dict)
    payload: Mapping[tuple[NodeId, NodeId], int] = field(default_factory=dict)
    kept: Mapping[NodeId, Checkpoint] = field(default_factory=dict)
    """Last checkpoint of each participant that has written one."""


Arrays = tuple[object, Callable[[Callable[[], None]], Results]]
"""A run on stacked arrays: an object with its state, and a function that runs it and calls its argument between
rounds.
"""


EXHAUSTED = "exhausted"
"""Status of a run, or of a participant, that the end of a privacy budget has stopped."""


PARTIAL = "partial"
"""Status of a run, or of a participant, that ended without completing its work."""


def without_folders(content: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment as plain data with file names in place of paths, which differ between machines."""
    data = dict(content["data"])
    for key in ("source", "test", "common"):
        kind, colon, path = str(data.get(key)).partition(":")
        if colon and "/" in path:
            data[key] = f"{kind}:{path.rsplit('/', 1)[1]}"
    if "agreed" in data:
        data["agreed"] = str(data["agreed"]).rsplit("/", 1)[-1]
    return {**content, "data": data}


def hash_of(content: object) -> str:
    """Return 32 hex digits of a hash of plain data; the order of keys does not matter."""
    return hashlib.sha256(repr(_sorted(content)).encode()).hexdigest()[:32]


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [(key, _sorted(value[key])) for key in sorted(value)]
    return value


def nanoseconds(seconds: float) -> int:
    """Return a duration in seconds as nanoseconds."""
    return int(seconds * 1e9)


@dataclass(frozen=True)
class RunOutlook:
    """Computed forecast of a run: bytes sent by all in a round, the method's facts, and lines for people."""

    bytes_per_round: int
    facts: Mapping[str, Any]
    lines: Sequence[str]


NO_BUDGET = "none: the messages reveal something about the training data"


@dataclass(frozen=True)
class JoiningTerms:
    """The terms of a learner, one line each: method, sent data and receivers, their view of it, privacy budget."""

    how: str
    sent: str
    seen: str
    budget: str = NO_BUDGET


@dataclass(frozen=True)
class Seat:
    """Inputs of one participant's machine in addition to the plan; see `Plan.machine`."""

    node: NodeId
    initial: Vector
    schema: str
    resumed: Checkpoint | None = None
    incarnation: int = 0
    own: Own | None = None


class Plan(ABC):
    """A run as determined by its experiment alone: the same on every participating machine.

    Each kind of run overrides the defaults: no masks, no budget, no change at restarts.
    """

    experiment: Experiment
    segments: tuple[Segment, ...]
    """Tensors of a vector, for machines that use them; () until `with_segments`."""

    @property
    @abstractmethod
    def roles(self) -> Roles:
        """Roles of the participants."""

    @property
    def n(self) -> int:
        """Number of participants."""
        return self.roles.n

    @property
    def learners(self) -> int:
        """Number of participants that train."""
        return self.roles.learners

    @property
    @abstractmethod
    def name(self) -> str:
        """Default name of the run."""

    @property
    def banner(self) -> Sequence[str]:
        """Lines for a person to read before the run begins."""
        return kernels.remarks()

    @property
    def vectors(self) -> int:
        """Number of vectors in a message with a model."""
        return 1

    @property
    def gradients(self) -> bool:
        """Whether learners return gradients, which not every task provides."""
        return False

    @property
    def one_model(self) -> bool:
        """Whether all learners have the same model after every round, so that one evaluation applies to all."""
        return False

    @property
    @abstractmethod
    def fingerprint(self) -> Mapping[str, object]:
        """Part of the experiment that must agree between participants, for the hash in `Hello`."""

    @property
    @abstractmethod
    def patience(self) -> tuple[float, float]:
        """Maximum seconds that a participant waits for others: before it begins, and later."""

    @property
    def gives_model(self) -> bool:
        """Whether the result is a model that can be saved."""
        return True

    @property
    def masks(self) -> bool:
        """Whether participants mask their messages, so that each needs `own` keys; such a run cannot be replayed."""
        return False

    @property
    def restart_overrides(self) -> Sequence[str]:
        """Settings changed for a process that restarts during the run."""
        return ()

    @property
    def pausable(self) -> bool:
        """Whether a simulation can be saved between two instants; one with secrets cannot."""
        return True

    @property
    def externals(self) -> Mapping[str, object]:
        """Objects, by name, that machines refer to and the experiment can make again; a simulation's image stores the
        names.
        """
        return {}

    def least_memory(self, engine: str, size: int) -> int:  # noqa: ARG002
        """Return the minimum bytes of a simulation of models of `size` bytes; 0: few participants, not counted."""
        return 0

    def masked(self, length: int) -> int:  # noqa: ARG002
        """Return the number of words of a masked vector for a model of `length` elements; 0 without masks."""
        return 0

    @abstractmethod
    def partners(self, node: NodeId) -> Sequence[NodeId]:
        """Return the participants that `node` exchanges messages with."""

    def machine(
        self,
        node: NodeId,
        initial: Vector,
        schema: str,
        resumed: Checkpoint | None = None,
        *,
        incarnation: int = 0,
        own: Own | None = None,
    ) -> Machine:
        """Make a participant's machine in life `incarnation`, from `resumed` if given.

        Raises ConfigError if `own` lacks the keys for masks.
        """
        return self.seated(Seat(node, initial, schema, resumed, incarnation, own))

    @abstractmethod
    def seated(self, seat: Seat) -> Machine:
        """Make the machine of one participant; see `machine`."""

    def simulated(self, node: NodeId, incarnation: int = 0, log: Sequence[Logged] = ()) -> Own | None:  # noqa: ARG002
        """Return the credentials of a simulated participant, derived from the seed, without secrets.  `log`: its lines
        so far.
        """
        return None

    def with_shares(self, shares: DataShares) -> Self:  # noqa: ARG002
        """Return the same plan with the number of examples of each participant."""
        return self

    def with_segments(self, segments: tuple[Segment, ...]) -> Self:
        """Return the same plan with the task's tensors.  Raises ConfigError for running statistics that it cannot
        average.
        """
        if statistics := [one for one in segments if one.kind == STATISTIC and one.start < one.stop]:
            self.check_statistics(statistics[0].name)
        return replace(self, segments=segments)  # type: ignore[type-var]

    def check_statistics(self, tensor: str) -> None:  # noqa: B027
        """Raise ConfigError if this run cannot average running statistics unchanged; `tensor` is one of them."""

    @property
    def vacant(self) -> Collection[NodeId]:
        """Participants of a simulation with a machine made only at the first message to them."""
        return ()

    def with_engine(self, engine: str) -> Self:  # noqa: ARG002
        """Return the same plan as an engine runs it: with machines ("sim") seats may be vacant until their first
        message.
        """
        return self

    def check_length(self, length: int, segments: Sequence[Segment]) -> None:  # noqa: B027
        """Raise ConfigError for vectors [length] of these tensors that cannot be exchanged, such as too short ones."""

    def with_table(self, table: KeyedTable | None) -> Self:
        """Return the same plan with this table as the model.  Raises ConfigError if the run supports no table, or
        requires one.
        """
        if table is not None:
            text = f"{self.name}, and a model that is a table of {table.rows} x {table.width}"
            raise ConfigError(text, 'Set parallel.method = "parameter-server": servers alone hold rows.')
        return self

    def touched_rows(self, kept: Mapping[NodeId, Checkpoint]) -> tuple[KeyedTable, Rows] | None:  # noqa: ARG002
        """Return a table's first and touched rows from the participants' last checkpoints; None for a vector.

        Raises ValueError, KeyError.
        """
        return None

    def shorten_start(self) -> Self:
        """Return the plan of a participant restarted during the run: it waits less at the start."""
        return self

    @abstractmethod
    def is_complete(self, node: NodeId, rounds: int, *, stopped: bool = False) -> bool:
        """Return whether a participant that ended after `rounds` rounds has done its part."""

    def is_over(self, node: NodeId, model: Vector) -> bool:  # noqa: ARG002
        """Return whether a participant with this model has done its part, regardless of the remaining rounds."""
        return False

    def model_in(self, checkpoint: Checkpoint) -> Vector | None:  # noqa: ARG002
        """Return the model with which a coordinator resumes from its checkpoint; None for other participants."""
        return None

    def spends(self, node: NodeId) -> bool:  # noqa: ARG002
        """Return whether a participant keeps a privacy account."""
        return False

    @property
    def exact_layout(self) -> str:
        """Hash of the layout of exact sums; "" without exact sums."""
        return ""

    def abstains(self, node: NodeId) -> bool:  # noqa: ARG002
        """Return whether a participant declines every invitation."""
        return False

    @abstractmethod
    def arrays(self, task: LocalTask, record: Network, write: Callable[[Row], None]) -> Arrays:
        """Return the run on stacked arrays, without machines; only for a run that `check_arrays` accepts."""

    def check_arrays(self, task: LocalTask) -> None:  # noqa: B027
        """Raise ConfigError for a run that stacked arrays do not support."""

    @abstractmethod
    def outcome(self, vectors: Sequence[Vector | None]) -> Sequence[Vector | None]:
        """Return the final vectors that count: the digest is of these, and the model is their mean."""

    @abstractmethod
    def verdict(self, words: Sequence[str | None]) -> str:
        """Return the run's status from the statuses of all participants; None for a crashed one."""

    @abstractmethod
    def lacking(self, rows: Sequence[Row], node: NodeId | None = None) -> Lacking:
        """Return the missing work of a finished run, from its rows; of participant `node`, from its own rows."""

    def exchanges(self, row: Row) -> tuple[int, int]:  # noqa: ARG002
        """Return (missing, expected) exchanges of a synchronous round, from a row."""
        return 0, 0

    @abstractmethod
    def outlook(self, task: LocalTask) -> RunOutlook:
        """Return the forecast of the run, for --dry-run."""

    def terms(self, parameters: int, itemsize: int) -> JoiningTerms:
        """Return a learner's terms, for a model of `parameters` numbers of `itemsize` bytes."""
        sent = f"this {self.roles.one}'s vectors, about {parameters * itemsize:,} bytes each; no data"
        return JoiningTerms(f"{self.name}, {self.roles.wording}", sent, "as it is, by those that it is sent to")

    @abstractmethod
    def facts(self, rows: Sequence[Row]) -> MethodFacts:
        """Return the method's own part of the summary."""


def record_of(
    plan: Plan,
    evaluate: Evaluate,
    *,
    watch_all: bool,
    decides: bool = False,
    kept: Callable[[int, float, Vector], None] | None = None,
) -> Network:
    """Return the record of a starting run.  `evaluate`: `own_parts.measured_by`; `decides`: the record ends the run;
    `kept`: see `Network`.
    """
    e = plan.experiment
    return Network(
        plan.n,
        e.rounds,
        e.eval.every,
        evaluate,
        watch_all=watch_all,
        counted=plan.roles.counted,
        score=e.score,
        segments=plan.segments,
        best=best_of(e) if decides or not e.selects else BestSoFar(e.score),
        at_clients=e.selects_at_clients,
        several=any(map(is_of_model, e.task.metrics)),
        kept=kept,
    )


def best_of(e: Experiment) -> BestSoFar | None:
    """Return the comparison of rounds for a starting run; None if nothing depends on it."""
    return BestSoFar(e.score, e.stop.patience) if e.selects else None
