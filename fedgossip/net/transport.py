"""The interface of links to a host, in either direction of connecting, and the events on them.

    Links                            peers that connect to their partners, and accept theirs      gossip
    CoordinatorLinks, ClientLinks    a coordinator that accepts, clients that only connect        federated runs

Partners compare their Hellos: models of the same experiment may be mixed.  `Traffic` has the bytes of vectors on each
link, and the times during which a message with vectors was under way, in or out; concurrent traffic is one interval.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedgossip.core.machine import NodeId
from fedgossip.core.messages import Account, AnyMessage, Expected, Hello, Leaving
from fedgossip.core.meter import Span
from fedgossip.core.model_fingerprint import describe_differences
from fedgossip.net.endpoints import Endpoint, Endpoints

NOBODY: NodeId = -1
"""Sender's number in a guest's message."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """`size`: the bytes of its frames, as received."""

    sender: NodeId
    message: AnyMessage
    size: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ModelBegun:
    """The first chunk of a large model arrived; memory is allocated from now on.  `account`: its fields without its
    vectors.
    """

    sender: NodeId
    account: Account


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A link is up.  `afresh`: messages under way are lost, and repeated only on request."""

    node: NodeId
    afresh: bool = False


@dataclass(frozen=True, slots=True)
class LinkDown:
    node: NodeId


@dataclass(frozen=True, slots=True)
class Rejected:
    """A refused frame or caller: `reason` in one word.  `sender` is None for an unknown key."""

    sender: NodeId | None
    reason: str
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Woken:
    """Another thread, or a signal, has woken the owner of the links."""


@dataclass(frozen=True, slots=True)
class Routed:
    """`node` is called on another route from now on: through `relay`, or directly if `relay` is ""."""

    node: NodeId
    relay: str = ""


@dataclass(frozen=True, slots=True)
class Relocated:
    """This participant can be called at `address` from now on: its machine is in another network."""

    address: str


LinkEvent = Arrived | ModelBegun | LinkUp | LinkDown | Rejected | Woken | Routed | Relocated


class Transport(Protocol):
    """The links of one participant.  One thread owns them and makes all calls except `wake`."""

    @property
    def address(self) -> str:
        """Address at which it is called, or that it calls, for people to read."""

    @property
    def partners(self) -> tuple[NodeId, ...]:
        """Participants that it sends to and receives from."""

    @property
    def bytes_sent(self) -> int: ...
    @property
    def traffic(self) -> Traffic:
        """Bytes of vectors on each link, and the times of traffic."""

    @property
    def dropped(self) -> int:
        """Number of messages dropped because a live link was too slow."""

    @property
    def idle(self) -> bool:
        """Whether everything that can be sent has been handed to the network."""

    def connect(self, partners: Sequence[NodeId], endpoints: Endpoints, expected: Expected, hello: Hello) -> None:
        """Begin with these partners; `hello` is the first message on every connection."""

    def meet(self, node: NodeId, endpoint: Endpoint) -> None:
        """Add a partner, or change its address.  Raises ConfigError or NetworkError; nothing is changed then."""

    def part(self, node: NodeId) -> None:
        """Remove a partner: stop calling it, and refuse its key."""

    def send(self, to: NodeId, message: AnyMessage) -> None:
        """Queue `message` without blocking.  A message may be lost if the link is down."""

    def poll(self, timeout_ms: int) -> list[LinkEvent]:
        """Wait at most `timeout_ms` for events; return them."""

    def wake(self) -> None:
        """Make `poll` return a Woken; callable from any thread."""

    def wake_on_signals(self) -> None:
        """Let a signal make `poll` return a Woken, until `close`."""

    def close(self, drain_seconds: float = 0.0) -> None:
        """Send for at most `drain_seconds`, then close everything."""


SAME_FILE = "Start every peer from the same experiment file, model and data, with the same fedgossip."
OTHER_MODEL = "has another model, or other columns, classes or common examples"
SAME_CODE = "Give every peer the same modules, and the files that they read; one of them was changed."


def refused(sender: int, theirs: Hello, ours: Hello) -> Rejected | None:
    """Return why no exchange with `sender` is possible; None if its models may be mixed with the local ones."""
    words = {
        "version": f"runs fedgossip {theirs.version:.20}, this is {ours.version}",
        "schema": OTHER_MODEL,
        "experiment": "runs another experiment, or has other data files",
    }
    changed = ours.likeness.changed(theirs.likeness)
    for name, text in words.items():
        if name == "experiment" and changed:  # the more specific reason first: a new function also changes the graph
            break
        if getattr(theirs, name) != getattr(ours, name):
            behind = f", behind {' and '.join(changed)}" if changed and name == "schema" else ""
            return Rejected(sender, name, f"peer {sender} {text}{behind}", SAME_FILE)
    if unlike := ours.likeness.unlike(theirs.likeness):
        differ = "differ" if len(unlike) > 1 else "differs"
        text = f"peer {sender} has another model: {describe_differences(unlike)} {differ}"
        return Rejected(sender, unlike[0], f"{text}, behind {' and '.join(changed)}" if changed else text, SAME_CODE)
    return None


# The record of a host's refusals: each cause at once, and again at every tenfold of its count.
#
# A cause is the sender and the reason, in one word; if the word is "refused", the sentence without its numbers as well.


CAUSES_WRITTEN = 20
"""Maximum number of causes written to the record; the host counts all refusals."""


@dataclass(slots=True)
class _Cause:
    first: Rejected
    count: int = 0
    written: int = 0


class Refusals:
    """`write` receives the facts of the event `refused`: from, reason, text, advice, and count if it is not 1."""

    def __init__(self, write: Callable[[dict[str, object]], None]) -> None:
        self._write = write
        self._causes: dict[tuple[int | None, str], _Cause] = {}

    def add(self, event: Rejected) -> None:
        """Count one refusal; write it if it is the first of its cause, the tenth, the hundredth, and so on."""
        key = event.sender, _cause(event)
        if key not in self._causes:
            if len(self._causes) >= CAUSES_WRITTEN:
                return
            self._causes[key] = _Cause(event)
        cause = self._causes[key]
        cause.count += 1
        if cause.count >= 10 * cause.written:
            self._write_cause(cause)

    def close(self) -> None:
        """Write the counts that have changed since they were written."""
        for cause in self._causes.values():
            if cause.count > cause.written:
                self._write_cause(cause)

    def _write_cause(self, cause: _Cause) -> None:
        cause.written = cause.count
        first = cause.first
        value: dict[str, object] = {
            "from": first.sender,
            "reason": first.reason,
            "text": first.text,
            "advice": first.advice,
        }
        self._write(value if cause.count == 1 else {**value, "count": cause.count})


def _cause(event: Rejected) -> str:
    return re.sub(r"\d+", "#", event.text) if event.reason == "refused" else event.reason


def is_goodbye(event: LinkEvent) -> bool:
    return isinstance(event, Arrived) and isinstance(event.message, Leaving)


SPANS_MAX = 4096
"""Maximum number of intervals between two rows; beyond, the last two count as one, with their gap."""


class Traffic:
    """The account of one participant, by the clock of `time.monotonic_ns`."""

    def __init__(self) -> None:
        self.sent: dict[NodeId, int] = {}
        """Bytes of vectors queued for each partner."""
        self._coming: set[NodeId] = set()
        self._waiting = 0
        self._since = 0
        self._spans: list[Span] = []

    @property
    def payload_sent(self) -> int:
        """Total bytes of vectors sent."""
        return sum(self.sent.values())

    def queued(self, to: NodeId, payload: int) -> None:
        """Record a message queued for a partner."""
        if payload:
            self.sent[to] = self.sent.get(to, 0) + payload

    def wait(self) -> None:
        """Record one more waiting message with vectors."""
        self._changing()
        self._waiting += 1

    def go(self, messages: int = 1) -> None:
        """Record that `messages` wait no longer: ZeroMQ has them, or they were dropped."""
        if messages:
            self._waiting -= messages
            self._changed()

    def note_frame(self, sender: NodeId, *, more: bool) -> None:
        """Record a frame of `sender`; `more`: of a message with vectors that is incomplete."""
        if more == (sender in self._coming):
            return
        if more:
            self._changing()
            self._coming.add(sender)
        else:
            self._coming.discard(sender)
            self._changed()

    def take_spans(self) -> list[Span]:
        """Return the intervals since the last call; an open one counts up to now and starts again."""
        now, spans = time.monotonic_ns(), self._spans
        if self._active:
            spans.append((self._since, now))
            self._since = now
        self._spans = []
        return spans

    @property
    def _active(self) -> bool:
        return bool(self._waiting or self._coming)

    def _changing(self) -> None:
        if not self._active:
            self._since = time.monotonic_ns()

    def _changed(self) -> None:
        if self._active:
            return
        begins = self._since
        if len(self._spans) >= SPANS_MAX:
            begins = self._spans.pop()[0]
        self._spans.append((begins, time.monotonic_ns()))
