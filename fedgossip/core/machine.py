"""A participant is a machine: it receives events and returns effects.

It owns no socket, clock, thread, random source or GPU; time is integer nanoseconds and always an argument.  A property
tested in the simulator therefore holds in the ZeroMQ host.

Frequent events and effects are msgspec structs: five times faster than frozen dataclasses, without reference cycles.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import msgspec

from fedgossip.base.errors import (
    BudgetError,
    FedgossipError,
    NetworkError,
    PeerError,
    ProtocolError,
    TooFewPeersError,
    TrainingError,
)
from fedgossip.base.keyed_rows import Keys
from fedgossip.base.vectors import Vector
from fedgossip.core.messages import Message

NodeId = int

# --- events: past tense ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The driver is ready; the first event, delivered once."""


class Received(msgspec.Struct, frozen=True, gc=False):
    sender: NodeId
    message: Message


class Trained(msgspec.Struct, frozen=True, eq=False, gc=False):
    """`update`: trained minus given vector, or of a `gradient` job the gradient; None for no change, or a zero one."""

    job: int
    update: Vector | None
    examples: int = 0
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    extra: tuple[Vector, ...] = ()
    """The result for the terms' `extra`."""


@dataclass(frozen=True, slots=True, eq=False)
class Produced:
    """Final elements of a gradient, from `start` to the start of the previous stretch; `Trained` contains all.

    Only some tasks answer a `Train` with `stretches` by it.
    """

    job: int
    start: int
    vector: Vector
    examples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class RowsChosen:
    """The rows of a table that a job needs, and the measured rows of the run (None: not requested); ascending keys."""

    job: int
    keys: Keys
    watched: Keys | None = None


@dataclass(frozen=True, slots=True)
class ModelMeasured:
    """The score of the model after `round`; None in a run without a metric."""

    round: int
    score: float | None


class Fired(msgspec.Struct, frozen=True, gc=False):
    key: Hashable


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """The link to `node` is up.  A higher incarnation: the node restarted after a crash, from its checkpoint."""

    node: NodeId
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The link to `node` is lost, or the node is confirmed dead."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Moved:
    """This participant's new `address` for the others; the machine sends it again on links that reconnect later."""

    address: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """Leave, and finish with the current model."""

    again: bool = False
    """Whether a person requested it and may resume this participant later."""
    over: bool = False
    """Whether the local training loop has ended: leave as after the last round."""


@dataclass(frozen=True, slots=True, eq=False)
class Rostered:
    """The set of participants changed: `schedule` (of topology/) now returns the graph of every round."""

    schedule: object


Answered = Produced | Trained | RowsChosen
"""Answers from the machine's task."""
Event = Started | Stopping | Received | Answered | ModelMeasured | Fired | PeerJoined | PeerGone | Rostered | Moved

# --- effects: imperative ----------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True, gc=False):
    to: NodeId
    message: Message


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Additions of a federated client rule to the local training; see algorithms/federated."""

    pull: float = 0.0
    """Each step's gradient is increased by pull * (weights - the given vector): the mu of FedProx."""
    correction: Vector | None = None
    """[d], added to each step's gradient: SCAFFOLD's c - c_i."""
    momentum: float | None = None
    """Momentum of the local steps, reset to zero each round; None: unused."""
    extra: tuple[Vector, ...] = ()
    """Vectors of any lengths for a task written for the rule: CoCoA's dual variables."""

    @property
    def active(self) -> bool:
        """Whether these terms change a training step."""
        return bool(self.pull) or self.correction is not None


class Train(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Train from `vector`; answered by `Trained` with the same job.

    With `terms` the optimiser's state of earlier jobs is not used, and metrics contain "steps" and "rate".  `tested`:
    the given vector is first tested on this node's held-out examples; metrics contain "score" and "tested".

    `gradient`: `Trained.update` is the mean gradient at `vector` over `accumulate` batches (None: a round's); a
    difference (x + u) - x would lose its low bits.

    `keys`: the vector is these rows of a table, [k * width], and so is the gradient.
    """

    job: int
    vector: Vector
    terms: Terms | None = None
    tested: bool = False
    gradient: bool = False
    accumulate: int | None = None
    stretches: tuple[int, ...] = ()
    """For a gradient: descending positions; request the elements from each position on as soon as they are final."""
    keys: Keys | None = None


@dataclass(frozen=True, slots=True)
class ChooseRows:
    """Choose the table rows of a gradient job over `accumulate` batches, with the measured ones if `watched`; answered
    by `RowsChosen`.
    """

    job: int
    accumulate: int
    watched: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class MeasureModel:
    """Measure `model` [d], the model after `round`; answered by `ModelMeasured`."""

    round: int
    model: Vector


@dataclass(frozen=True, slots=True)
class Witness:
    """A signed frame of a secure session, for its transcript: sent to `client` (None: to all), or received from it.

    Without a frame the session has ended with this `outcome` (secure/aborts.Reason, or SUMMED).
    """

    session: int
    client: NodeId | None
    frame: bytes
    sent: bool
    outcome: str = ""


class SetTimer(msgspec.Struct, frozen=True, gc=False):
    """Request `Fired(key)` after the delay.  A timer replaces one with the same key, so a key contains its cause."""

    key: Hashable
    after_ns: int
    stretched: bool = True
    """Whether links slower than sockets lengthen the delay; False: a delay of measured times, which contain them."""


@dataclass(frozen=True, slots=True)
class Report:
    """A fact for records and people, explained in `event_kinds`; no driver acts on it."""

    name: str
    value: object
    round: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A part of an event from `sender` was rejected, the rest accepted; drivers count refusals by cause."""

    sender: NodeId | None
    reason: str
    """The cause in one word, for counting."""
    text: str
    round: int
    advice: str = ""


class Outgoing(msgspec.Struct, frozen=True, eq=False, gc=False):
    """`vector` [d] is this participant's input to the mix of the round that ends as `round`."""

    round: int
    vector: Vector


class RoundDone(msgspec.Struct, frozen=True, eq=False, gc=False):
    """`round` rounds are complete, with `model` [d]: its row can be written.

    `staleness`: model changes during this round's training; None in synchronous rounds.  `waiting_bytes`: vectors of
    these rounds still in the queue.
    """

    round: int
    model: Vector
    staleness: int | None = None
    waiting_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The contributions to a coordinator's round, before its `RoundDone`: "clients", their number, and metrics.

    The row takes "loss", "score", "worst", "epsilon", and "counted" (client ids) if present.
    """

    round: int
    facts: Mapping[str, object]


class LocalWork(msgspec.Struct, frozen=True, gc=False):
    """A client has trained for the round that ends as `round`.  `score`: of the received model, on its examples;
    `epsilon`: its total spending.
    """

    round: int
    score: float | None = None
    epsilon: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Cause of a participant's early end: plain data, so that traces and images can store it."""

    kind: Literal["network", "peer", "budget", "too_few", "training"]
    text: str
    advice: str = ""

    def error(self) -> FedgossipError:
        """Return the exception to raise, with the exit code of its kind."""
        return _ERRORS[self.kind](self.text, self.advice)


_ERRORS: Mapping[str, type[FedgossipError]] = {
    "network": NetworkError,
    "peer": PeerError,
    "budget": BudgetError,
    "too_few": TooFewPeersError,
    "training": TrainingError,
}


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """The machine is done, with the model `result`.  `failure`: the cause of an early end; the driver raises it after
    all records are written.
    """

    result: Vector
    failure: Failure | None = None


class Checkpoint(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The state from which a new machine of this kind resumes after `round` rounds.

    `vectors` [d] and plain `facts`, never modified.  `durable`: write to disk before any later effect; else at the
    driver's interval.  `unsettled`: the last round may be trained again, because another participant decides whether it
    counts.
    """

    round: int
    vectors: Mapping[str, Vector]
    facts: Mapping[str, object] = msgspec.field(default_factory=dict)
    durable: bool = False
    unsettled: bool = False


@dataclass(frozen=True, slots=True)
class Log:
    """A line of this participant's signed log, written to disk before any later effect and readable by later
    incarnations.

    Plain facts, without secrets or data.
    """

    kind: str
    facts: Mapping[str, int | float | str]
    hashed: tuple[Vector, ...] = field(default=(), compare=False)
    """Vectors whose sha256 the driver adds to the facts, if a log is kept."""


@dataclass(frozen=True, slots=True)
class Meet:
    """Accept `node` from now on, authenticated by `key`, and connect to it at `address`; answered by `PeerJoined`."""

    node: NodeId
    address: str
    key: str


@dataclass(frozen=True, slots=True)
class Part:
    """Disconnect `node`, and reject its key from now on."""

    node: NodeId


Reporting = Report | Refused | Outgoing | RoundDone | Aggregated | LocalWork
"""Effects that only write to the record; all others act."""

Effect = (
    Send | Train | ChooseRows | MeasureModel | SetTimer | Checkpoint | Log | Witness | Meet | Part | Finish | Reporting
)


SINCE: Mapping[type[object], frozenset[str]] = {
    Trained: frozenset({"extra"}),
    Terms: frozenset({"extra"}),
    Train: frozenset({"gradient", "accumulate", "stretches", "keys"}),
}
"""Fields missing in earlier traces; a trace omits one at its default."""


class Machine(Protocol):
    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Handle one event; return the effects to perform.

        Raises ProtocolError for a message that is impossible now; the state is then unchanged.
        """


@runtime_checkable
class AddingMachine(Machine, Protocol):
    """A machine that counts its vector additions, so that a simulation can charge their time."""

    summed: int
    """Number of vector elements added since the start."""


def guarded_handle(machine: Machine, event: Event, now_ns: int) -> Sequence[Effect]:
    """Pass an event to a machine; an unexpected exception from a message raises ProtocolError, so that only it is
    dropped.

    A TrainingError of the round that the message completes, and exceptions from local events, propagate: the fault is
    local.
    """
    try:
        return machine.handle(event, now_ns)
    except (PeerError, TrainingError):
        raise
    except Exception as error:
        if not isinstance(event, Received):
            raise
        what = f"a {type(event.message).__name__} that cannot be handled: {type(error).__name__}: {error}"
        raise ProtocolError(what, "It was dropped.", peer=event.sender) from error
