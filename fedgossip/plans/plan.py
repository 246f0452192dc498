"""The interface between drivers and the plan of a run; `compose.plan` picks the implementation from
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
    on each link."""

    vectors: Sequence[Vector | None]
    counts: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[NodeId, Failure] = field(default_factory=dict)
    payload: Mapping[tuple[NodeId, NodeId], int] = field(default_factory=dict)
    kept: Mapping[NodeId, Checkpoint] = field(default_factory=dict)
    """The last checkpoint of each that has written one."""


Arrays = tuple[object, Callable[[Callable[[], None]], Results]]
"""A run on stacked arrays: an object with its state, and a function that runs it and calls its argument between
rounds.
"""


EXHAUSTED = "exhausted"
"""The status of a run, or of a part in it, that a budget of privacy has ended."""


PARTIAL = "partial"
"""The status of a run, or of a part in it, that ended without reaching its purpose."""


def without_folders(content: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment as plain data, its files by their names: paths differ between machines."""
    data = dict(content["data"])
    for key in ("source", "test", "common"):
        kind, colon, path = str(data.get(key)).partition(":")
        if colon and "/" in path:
            data[key] = f"{kind}:{path.rsplit('/', 1)[1]}"
    if "agreed" in data:
        data["agreed"] = str(data["agreed"]).rsplit("/", 1)[-1]
    return {**content, "data": data}


def hash_of(content: object) -> str:
    """Return 32 hex digits of a hash of plain data: keys in any order."""
    return hashlib.sha256(repr(_sorted(content)).encode()).hexdigest()[:32]


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [(key, _sorted(value[key])) for key in sorted(value)]
    return value


def nanoseconds(seconds: float) -> int:
    """Return the time of a timer."""
    return int(seconds * 1e9)


@dataclass(frozen=True)
class RunOutlook:
    """Forecast of a run by formula: bytes sent by all in a round, the method's facts, and lines for people."""

    bytes_per_round: int
    facts: Mapping[str, Any]
    lines: Sequence[str]


NO_BUDGET = "none: what is sent tells something of the data that it was learned from"


@dataclass(frozen=True)
class JoiningTerms:
    """The terms of a learner, each a line: method, sent data and receivers, their view of it, privacy budget."""

    how: str
    sent: str
    seen: str
    budget: str = NO_BUDGET


@dataclass(frozen=True)
class Seat:
    """The inputs of one participant's machine, beside the plan; see `Plan.machine`."""

    node: NodeId
    initial: Vector
    schema: str
    resumed: Checkpoint | None = None
    incarnation: int = 0
    own: Own | None = None


class Plan(ABC):
    """A run as its experiment alone determines it: the same on every machine that takes part.

    Each kind of run overrides its own; by default no masks, no budget, unchanged at restarts.
    """

    experiment: Experiment
    segments: tuple[Segment, ...]
    """The tensors of a vector, for machines that use them; () until `with_segments`."""

    @property
    @abstractmethod
    def roles(self) -> Roles:
        """The roles of the participants."""

    @property
    def n(self) -> int:
        """Participants."""
        return self.roles.n

    @property
    def learners(self) -> int:
        """Those that train."""
        return self.roles.learners

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of a run that is given none."""

    @property
    def banner(self) -> Sequence[str]:
        """Lines that a person should read before the run begins."""
        return kernels.remarks()

    @property
    def vectors(self) -> int:
        """The number of vectors that a message with a model carries."""
        return 1

    @property
    def gradients(self) -> bool:
        """Whether learners are asked for gradients, which not every task gives."""
        return False

    @property
    def one_model(self) -> bool:
        """Whether all learners have the same model after every round, so that one evaluation is everybody's."""
        return False

    @property
    @abstractmethod
    def fingerprint(self) -> Mapping[str, object]:
        """The part of the experiment that must agree between participants, for the hash in `Hello`."""

    @property
    @abstractmethod
    def patience(self) -> tuple[float, float]:
        """Maximum seconds that a participant waits for others: before it begins, and later."""

    @property
    def gives_model(self) -> bool:
        """Whether the result is a model, to be saved."""
        return True

    @property
    def masks(self) -> bool:
        """Whether participants mask what they send, so that each needs something of its `own`; cannot be replayed."""
        return False

    @property
    def restart_overrides(self) -> Sequence[str]:
        """The settings that change for a process that is started again while the others are at work."""
        return ()

    @property
    def pausable(self) -> bool:
        """Whether a simulation can be written down between two instants; one with secrets in it cannot."""
        return True

    @property
    def externals(self) -> Mapping[str, object]:
        """Objects, by name, that machines refer to and the experiment makes anew; a simulation's image has names."""
        return {}

    def masked(self, length: int) -> int:  # noqa: ARG002
        """Return the number of words of a masked vector for a model of `length` elements; 0 where nothing is masked."""
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
        """Make a participant's machine in life `incarnation`, from `resumed` if given.  Raises ConfigError for missing
        keys of masks in `own`.
        """
        return self.seated(Seat(node, initial, schema, resumed, incarnation, own))

    @abstractmethod
    def seated(self, seat: Seat) -> Machine:
        """Make the machine of one participant; see `machine`."""

    def simulated(self, node: NodeId, incarnation: int = 0, log: Sequence[Logged] = ()) -> Own | None:  # noqa: ARG002
        """Return the credentials of a simulated participant, from the seed and no secret.  `log`: its lines so far."""
        return None

    def with_shares(self, shares: DataShares) -> Self:  # noqa: ARG002
        """Return the same plan, with the number of examples of each participant."""
        return self

    def with_segments(self, segments: tuple[Segment, ...]) -> Self:
        """The same plan, where the task is made.  Raises ConfigError for running statistics that it cannot average."""
        if statistics := [one for one in segments if one.kind == STATISTIC and one.start < one.stop]:
            self.check_statistics(statistics[0].name)
        return replace(self, segments=segments)  # type: ignore[type-var]

    def check_statistics(self, tensor: str) -> None:  # noqa: B027
        """Raise ConfigError where this run cannot average running statistics as they are; `tensor` is one of them."""

    @property
    def vacant(self) -> Collection[NodeId]:
        """The participants of a simulation whose machines are made at the first message to them."""
        return ()

    def with_engine(self, engine: str) -> Self:  # noqa: ARG002
        """The same plan as an engine runs it: with machines ("sim") seats may be vacant until their first message."""
        return self

    def check_length(self, length: int, segments: Sequence[Segment]) -> None:  # noqa: B027
        """Raise ConfigError for vectors [length] of these tensors that cannot be exchanged, such as too short ones."""

    def with_table(self, table: KeyedTable | None) -> Self:
        """The same plan, where the model is this table.  Raises ConfigError where such a run has none, or needs one."""
        if table is not None:
            text = f"{self.name}, and a model that is a table of {table.rows} x {table.width}"
            raise ConfigError(text, 'Set parallel.method = "parameter-server": servers alone hold rows.')
        return self

    def touched_rows(self, kept: Mapping[NodeId, Checkpoint]) -> tuple[KeyedTable, Rows] | None:  # noqa: ARG002
        """Return a table's first and touched rows, by the participants' last checkpoints; None for a vector.  Raises
        ValueError, KeyError.
        """
        return None

    def for_restart(self) -> Self:
        """Return the plan of a participant restarted during the run: it waits less at the start."""
        return self

    @abstractmethod
    def is_complete(self, node: NodeId, rounds: int, *, stopped: bool = False) -> bool:
        """Return whether a participant that ended after so many rounds has done its part."""

    def is_over(self, node: NodeId, model: Vector) -> bool:  # noqa: ARG002
        """Return whether a participant has done its part with this model, whatever rounds are left."""
        return False

    def model_in(self, checkpoint: Checkpoint) -> Vector | None:  # noqa: ARG002
        """Return the model with which a coordinator goes on from its checkpoint; None of others."""
        return None

    def spends(self, node: NodeId) -> bool:  # noqa: ARG002
        """Whether a participant keeps an account of privacy."""
        return False

    @property
    def exact_layout(self) -> str:
        """The hash of the numbers of which exact sums are made; "" where none are."""
        return ""

    def abstains(self, node: NodeId) -> bool:  # noqa: ARG002
        """Whether a participant declines every invitation."""
        return False

    @abstractmethod
    def arrays(self, task: LocalTask, record: Network, write: Callable[[Row], None]) -> Arrays:
        """Return the run on stacked arrays, without machines; one that `check_arrays` admits."""

    def check_arrays(self, task: LocalTask) -> None:  # noqa: B027
        """Raise ConfigError for a run that stacked arrays cannot make."""

    @abstractmethod
    def outcome(self, vectors: Sequence[Vector | None]) -> Sequence[Vector | None]:
        """Return the final vectors that count: the digest is of these, and the model is their mean."""

    @abstractmethod
    def verdict(self, words: Sequence[str | None]) -> str:
        """Return the run's status from the statuses of all participants; None for a crashed one."""

    @abstractmethod
    def lacking(self, rows: Sequence[Row], node: NodeId | None = None) -> Lacking:
        """Return what a finished run lacks, by its rows; or a participant, by its own."""

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
    """Return the comparison of rounds for a starting run; None where nothing depends on it."""
    return BestSoFar(e.score, e.stop.patience) if e.selects else None
