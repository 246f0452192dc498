"""The connections of a host to the outside: the callables that it uses, and its journal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt
import zmq

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Event, Log, Machine, NodeId, Witness
from fedgossip.core.meter import Meter
from fedgossip.core.records import PeerRow, Row
from fedgossip.core.task import Job, LocalTask


@dataclass(frozen=True)
class SharedParts:
    """What several participants of one process have in common."""

    turn: AbstractContextManager[object]
    """Held during each job of a training thread: they train one after the other."""
    handling: AbstractContextManager[object]
    """Held while events are handled: few of many threads then wait for the interpreter."""
    context: zmq.Context[zmq.Socket[bytes]] | None = None
    """The sockets' threads; None: each participant has its own."""
    participants: int = 1


SOCKETS_OF_A_CLIENT = 4
"""Maximum number of sockets of a client: a call, its successor, and their monitors."""


@contextmanager
def sharing(participants: int) -> Iterator[SharedParts]:
    """Yield what this number of clients of one process share; all of them end inside the context."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    context.set(zmq.MAX_SOCKETS, max(1024, SOCKETS_OF_A_CLIENT * participants))
    yield SharedParts(threading.Lock(), threading.Lock(), context, participants)
    context.term()


ALONE = SharedParts(nullcontext(), nullcontext())
"""Of a process with one participant."""


class ImagedHost(Protocol):
    """What a journal's image needs of a host; its attributes are the rest."""

    node: NodeId
    machine: Machine
    task: LocalTask
    meter: Meter

    def drop_replaced_timers(self) -> None: ...


class EventJournal(Protocol):
    """A journal; iteration yields the (now_ns, event) of earlier processes, in order."""

    rounds: set[int]
    """Rounds with written rows."""

    @property
    def began_ns(self) -> int:
        """Start of the run, in nanoseconds since 1970."""

    @property
    def memory(self) -> Mapping[str, npt.NDArray[Any]] | None:
        """Task's state after the last training."""

    def __iter__(self) -> Iterator[tuple[int, Event]]: ...
    def write(self, now_ns: int, event: Event, memory: Mapping[str, npt.NDArray[Any]] | None = None) -> None:
        """Write an event to disk.  Raises NotWrittenError."""

    def restore(self, host: ImagedHost) -> bool:
        """Called before the events: give the host the state in the journal's image; return whether it has one."""

    def compact(self, host: ImagedHost) -> None:
        """Called when nothing is under way: if the events have grown long, replace them by an image of the host."""

    def resume(self, received: Mapping[NodeId, int]) -> None:
        """Called after the events, with the number of messages of each partner in the journal."""

    def finish(self) -> None:
        """Called when the machine has ended: no further message of the partners is needed."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The host's connections to the outside: the writer of rows, the receivers of vectors, the stop flag."""

    write: Callable[[Row], None]
    outgoing: Callable[[int, Vector], None]
    """Called with (round, vector): the outgoing vector of the round with this number at its end."""
    mixed: Callable[[PeerRow, Vector], float | None]
    """Called with (row of a round, vector): store the required parts; return the score if this round is evaluated."""
    stop: Callable[[], bool]
    """Polled at least every half second: true ends the run early, with a goodbye."""
    checkpoint: Callable[[Checkpoint], None] = lambda _: None
    """Store the state to resume from, between two trainings; a durable one is on disk on return."""
    log: Callable[[Log], None] = lambda _: None
    """Write a line to the participant's own log; it is on disk when this returns."""
    witness: Callable[[Witness], None] = lambda _: None
    """Write a frame to the transcript of its session."""
    first_work: Callable[[], None] = lambda: None
    """Called once before the first computation on the node's own data; a FedgossipError from it prevents any."""
    begin: Callable[[Job], None] = lambda _job: None
    """Called in the training thread before each training."""
    measure: Callable[[int, Vector], float | None] = lambda _round, _model: None
    """Called with (round, model): return the score of the model after that round."""
    shared: SharedParts = ALONE
    journal: EventJournal | None = None
    """Stores each event on disk before the machine handles it; the run continues after its existing events."""
    stretch: float = 1.0
    """Factor on all waits of the machine, for links slower than sockets."""
