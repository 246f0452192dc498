"""A participant is a machine: it is told events and returns effects.

It owns no socket, clock, thread, random source or GPU.  Time is integer nanoseconds and always an argument.  Two
drivers run machines, the simulator and the ZeroMQ host; whatever is shown of a machine in one holds in the other.

Those of which there are several in every round are msgspec's structs: such an object is made in a fifth of the time of
a frozen dataclass.  No such object holds what holds it, so the garbage collector need not look at them.
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

# --- events: told, past tense -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The driver is ready; told once, first."""


class Received(msgspec.Struct, frozen=True, gc=False):
    sender: NodeId
    message: Message


class Trained(msgspec.Struct, frozen=True, eq=False, gc=False):
    """`update` is trained vector minus given vector, or None where nothing changed (pure averaging); of a `Train` that
    asks for it the gradient, or None where that is zero."""

    job: int
    update: Vector | None
    examples: int = 0
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    extra: tuple[Vector, ...] = ()
    """What came of the terms' `extra`."""


@dataclass(frozen=True, slots=True, eq=False)
class Produced:
    """Elements of a gradient from `start` on that are final, up to those that were there before, the last ones first;
    `Trained` brings all of it.  Told only for a `Train` with `stretches`, and not by every task."""

    job: int
    start: int
    vector: Vector
    examples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class RowsChosen:
    """The rows of a table that a job needs, and those that the run watches (None: not asked for), as ascending keys."""

    job: int
    keys: Keys
    watched: Keys | None = None


@dataclass(frozen=True, slots=True)
class ModelMeasured:
    """The score of the model after `round`; None where the run has none."""

    round: int
    score: float | None


class Fired(msgspec.Struct, frozen=True, gc=False):
    key: Hashable


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """The link to `node` is up.  A higher incarnation than before: it has crashed, and knows what it had written."""

    node: NodeId
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The link to `node` is lost, or the node is known to be dead."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Moved:
    """Others reach this participant at `address` from now on; told again to those whose link comes back after it."""

    address: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """Say goodbye and finish with what is there."""

    again: bool = False
    """Whether a person wants that, who may start this participant again to go on."""
    over: bool = False
    """Whether what is trained here has come to its own end: take leave as after the last round."""


@dataclass(frozen=True, slots=True, eq=False)
class Rostered:
    """Who takes part has changed: from now on `schedule` gives the graph of every round (a `Schedule` of topology/)."""

    schedule: object


Answered = Produced | Trained | RowsChosen
"""What tells a machine of its own task."""
Event = Started | Stopping | Received | Answered | ModelMeasured | Fired | PeerJoined | PeerGone | Rostered | Moved

# --- effects: asked, imperative ---------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True, gc=False):
    to: NodeId
    message: Message


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What a federated client adds to its local training; see algorithms/federated."""

    pull: float = 0.0
    """Each step's gradient gets pull * (weights - the given vector), the mu of FedProx."""
    correction: Vector | None = None
    """[d], added to each step's gradient: SCAFFOLD's c - c_i."""
    momentum: float | None = None
    """Momentum of the local steps in the rule's formula, which begins at rest in each round; None: of no account."""
    extra: tuple[Vector, ...] = ()
    """What a task of the rule's own kind trains with beside the vector, of any lengths: CoCoA's dual variables."""

    @property
    def active(self) -> bool:
        """Whether a step differs from one without them."""
        return bool(self.pull) or self.correction is not None


class Train(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Train from `vector`; answered by `Trained` with the same job.

    With `terms` the job stands alone: what the optimiser remembers of earlier jobs does not enter it, and the metrics
    hold "steps" and "rate" too.  `tested`: the given vector is first tested on examples that this node keeps for that;
    "score" and "tested", their number, are in the metrics.

    `gradient`: nothing is trained; `Trained.update` is the mean gradient at `vector` over `accumulate` batches, or as
    many as the node's training of a round has (None).  It has every bit that the gradient has: a difference of vectors,
    (x + u) - x, has lost the low ones.

    `keys`: the vector is these rows of a table, [k * width], and so is the gradient.
    """

    job: int
    vector: Vector
    terms: Terms | None = None
    tested: bool = False
    gradient: bool = False
    accumulate: int | None = None
    stretches: tuple[int, ...] = ()
    """Of a gradient: descending places, from each of which on all elements are wanted as soon as they are final."""
    keys: Keys | None = None


@dataclass(frozen=True, slots=True)
class ChooseRows:
    """Say which rows of its table a gradient job over `accumulate` batches needs; answered by `RowsChosen`.

    0 batches need none.  `watched`: say too which rows the run is measured by.
    """

    job: int
    accumulate: int
    watched: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class MeasureModel:
    """Measure `model` [d], which is that after `round`; answered by `ModelMeasured`."""

    round: int
    model: Vector


@dataclass(frozen=True, slots=True)
class Witness:
    """A signed frame of a secure session, for its transcript: sent to `client` (None: to all), or taken from it.

    Without a frame the session is over, with this `outcome` (secure/aborts.Reason, or SUMMED).  Drivers that keep no
    transcripts ignore it.
    """

    session: int
    client: NodeId | None
    frame: bytes
    sent: bool
    outcome: str = ""


class SetTimer(msgspec.Struct, frozen=True, gc=False):
    """Answered by `Fired(key)` after the delay; the same key replaces, so a key carries what made it relevant."""

    key: Hashable
    after_ns: int


@dataclass(frozen=True, slots=True)
class Report:
    """A fact for the records and for people: what a driver does depends neither on its name nor on its value.

    Its name stands in `event_kinds`, which says what it means and what to do about it.
    """

    name: str
    value: object
    round: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Something of `sender` was not accepted, where the rest of the event counts; drivers count it by its cause."""

    sender: NodeId | None
    reason: str
    """One word, for counting."""
    text: str
    round: int
    advice: str = ""


class Outgoing(msgspec.Struct, frozen=True, eq=False, gc=False):
    """`vector` [d] is what this participant puts into the mix of the round that ends as `round`."""

    round: int
    vector: Vector


class RoundDone(msgspec.Struct, frozen=True, eq=False, gc=False):
    """`round` rounds are behind, and `model` [d] is what came of the last one: its row can be written.

    `staleness`: how often the model had changed while this round was trained from an older one; None in rounds that
    all go through together.  `waiting_bytes`: of vectors of these rounds that are sent later, when there is room.
    """

    round: int
    model: Vector
    staleness: int | None = None
    waiting_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Aggregated:
    """What went into a coordinator's round, before it is done: "clients", their number, and what it knows of them.

    The row of the round takes "loss", "score", "worst", "epsilon", and "counted", which clients, where they are there.
    """

    round: int
    facts: Mapping[str, object]


class LocalWork(msgspec.Struct, frozen=True, gc=False):
    """A client has trained for the round that ends as `round`: its row can be written.

    `score`: of the model that it was sent, on examples of its own; `epsilon`: all that it has spent of its budget.
    """

    round: int
    score: float | None = None
    epsilon: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a participant has ended before its time: plain data, so that it can stand in a trace and in an image."""

    kind: Literal["network", "peer", "budget", "too_few", "training"]
    text: str
    advice: str = ""

    def error(self) -> FedgossipError:
        """Return the error that a driver raises for it, with the exit code of its kind."""
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
    """The machine is done; `result` is its model.  Told nothing any more after this.

    `failure`: why it ended before its time, where it did; the driver raises it when all is written.
    """

    result: Vector
    failure: Failure | None = None


class Checkpoint(msgspec.Struct, frozen=True, eq=False, gc=False):
    """All that a new machine of this kind needs to go on from here, after `round` rounds.

    `vectors` [d] and `facts`, plain numbers, texts, lists and mappings with text keys.  Drivers that keep none ignore
    it; what it refers to never changes.  `durable`: it is on disk before any later effect is performed; else it may be
    written when it is time.
    """

    round: int
    vectors: Mapping[str, Vector]
    facts: Mapping[str, object] = msgspec.field(default_factory=dict)
    durable: bool = False


@dataclass(frozen=True, slots=True)
class Log:
    """A line of this participant's own log: what leaves it, what it refuses, and what a next life must know.

    On disk before any later effect is performed; lives after this one are given all lines.  Facts are plain numbers
    and texts; nothing secret, nothing of the data.
    """

    kind: str
    facts: Mapping[str, int | float | str]
    hashed: tuple[Vector, ...] = field(default=(), compare=False)
    """Their sha256, over all of them, is one of the facts; taken where a log is kept, for it takes a while."""


@dataclass(frozen=True, slots=True)
class Meet:
    """From now on let `node` in, who proves it by `key`, and call it at `address`; answered by `PeerJoined`."""

    node: NodeId
    address: str
    key: str


@dataclass(frozen=True, slots=True)
class Part:
    """Hang up on `node`, and let nobody in any more by the key that it had."""

    node: NodeId


Telling = Report | Refused | Outgoing | RoundDone | Aggregated | LocalWork
"""What the record is made of; all other effects are done to something."""

Effect = (
    Send | Train | ChooseRows | MeasureModel | SetTimer | Checkpoint | Log | Witness | Meet | Part | Finish | Telling
)


SINCE: Mapping[type[object], frozenset[str]] = {
    Trained: frozenset({"extra"}),
    Terms: frozenset({"extra"}),
    Train: frozenset({"gradient", "accumulate", "stretches", "keys"}),
}
"""The fields that earlier traces do not have: where one has its default, no line shows it."""


class Machine(Protocol):
    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Take one event, return what is to be done.

        Raises ProtocolError for a message that is impossible now; the state is then unchanged: a bad message costs
        that message only.
        """
        ...


@runtime_checkable
class AddingMachine(Machine, Protocol):
    """A machine that says how much it has added up, so that a simulation can count the time of that."""

    summed: int
    """Elements of vectors that it has added to others, since it began."""


def told(machine: Machine, event: Event, now_ns: int) -> Sequence[Effect]:
    """Tell a machine that others may send anything to: whatever a message of theirs does to it costs that message only.

    Raises ProtocolError in place of an exception that nobody foresaw.  What an algorithm does in the round that the
    message completes (TrainingError) is raised as it is, and so is what one's own events do: the fault is here then.
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
