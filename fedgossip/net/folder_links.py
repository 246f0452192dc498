"""The links of one participant through a folder, with the same calls as links by sockets.

A partner's link is up when its greeting exists, and never down: the machines' deadlines decide.  Messages are numbered
per direction from 1.  `resume` continues after those in a journal; a replayed machine sends the same messages under the
same numbers, each written once.  A message counts as received at the `poll` after the one that returned it: its owner
has stored it by then.

    DIR/fedgossip-1a2b3c4d5e6f7a8b/        one run: its experiment and the keys of all
      from-000002-to-000000/               written by participant 2 alone
        greeting.fgm                       its Hello and its key of this run; stays
        0000000007.fgm                     message 7: written as 0000000007.PART, synced, renamed
        received.fgm                       number of the last message that 2 has on its own disk from 0

Each file has one writer, so a synchroniser has nothing to merge, and there are no locks.  A reader looks for the next
number's file, and for copies only if it is missing (`pair_folder`).  A message is acknowledged when it is in the
reader's journal, then removed by its writer; one that disappears earlier is written again.

The owner of the folder sees the sender, receiver, time and size of each message.  It can delay, delete and restore old
files; this stops a run but never changes its result.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import select
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, NetworkError, NotWrittenError, ResumeError, reason
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import AnyMessage, Expected, Hello
from fedgossip.core.wire import HEADER_BYTES_MAX, Assembler, FrameError, packed
from fedgossip.net.endpoints import Endpoint, Endpoints
from fedgossip.net.identity import Identity, check_public, raw
from fedgossip.net.pair_folder import (
    FILES,
    GREETING,
    LISTED,
    MESSAGE,
    OVERHEAD,
    RECEIPT,
    Direction,
    PairReader,
    PairSecrets,
    PairWriter,
    agreed,
    content_of,
    folder_of,
    message_in,
    names_in,
    public_of,
)
from fedgossip.net.sockets import Wakeable, Waker
from fedgossip.net.transport import Arrived, LinkEvent, LinkUp, Rejected, Traffic, Woken

RUN = "fedgossip-"
"""Prefix of a run's folder; 16 hex digits of its name follow."""

BYTES = 4 << 30
"""Maximum bytes of unfetched messages in the folder per partner; further messages wait in memory, as beyond FILES."""

WAITING = 10_000
"""Maximum number of messages that a partner has not fetched; beyond, the local run ends for this reason."""

REPEAT_SECONDS = 3600.0
"""Age of the oldest unfetched file before it is written again, in seconds: a synchroniser may have lost it."""

OLD_SECONDS = 7 * 86400
"""Age of an unfetched message, by the folder's clock and this machine's, before it is reported, in seconds."""

BUSY_SECONDS, GROWTH = 0.02, 1.5
"""Delay between two looks at the folder after activity, in seconds, and its growth factor without activity."""

SMALL_BYTES = 1 << 20

END = 2**64 - 1
"""Number in the receipt of a participant with an ended machine: it fetches nothing more."""


class FolderState(msgspec.Struct):
    """A participant's private state of a run by folder: its key of this run, and those of the partners that greeted."""

    secret: str
    partners: dict[int, str] = {}
    begun: bool = False
    """Whether the run's folder was made or seen before; if it is missing then, it is not mounted, and is not made
    again.
    """


@dataclass
class SendQueue:
    """The messages to one partner, which the journal's image holds."""

    waiting: deque[tuple[int, AnyMessage]] = field(default_factory=deque)
    """Messages that the partner has not acknowledged, by number."""
    sent: int = 0
    acknowledged: int = 0
    bytes_sent: int = 0


@dataclass(slots=True)
class _Pair:
    node: NodeId
    writer: PairWriter
    reader: PairReader
    assembler: Assembler
    first: bytes
    """The secret of the long-term keys."""
    queue: SendQueue = field(default_factory=SendQueue)
    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes of its messages in the folder."""
    taken: int = 0
    receipted: int = -1
    greeted: bool = False
    repeated: float = 0.0
    swept: bool = False


class FolderLinks(Wakeable):
    """`root`: the shared folder; `state`: this participant's private file; `poll_seconds`: maximum time between two
    looks; 0: a look at every poll.
    """

    def __init__(self, node: NodeId, root: Path, identity: Identity, state: Path, poll_seconds: float) -> None:
        if not root.is_dir():
            text, advice = f"{root}: no such folder", "Make it, or mount it; a run makes only folders inside."
            raise NetworkError(text, advice) if state.exists() else ConfigError(text, advice)
        self.node, self.root, self.identity, self._state_path = node, root, identity, state
        self.poll_seconds = poll_seconds
        self.address = f"folder {root}"
        self.dropped = 0
        self.traffic = Traffic()
        self._waker = Waker()
        self._pairs: dict[NodeId, _Pair] = {}
        self._run, self._folder = b"", root
        self._hello = b""
        self._state = FolderState("")
        self._due, self._rest = 0.0, BUSY_SECONDS
        self._refused: set[tuple[NodeId, str]] = set()
        self._closed = False

    @property
    def partners(self) -> tuple[NodeId, ...]:
        """The partners of this participant."""
        return tuple(self._pairs)

    @property
    def queues(self) -> Sequence[SendQueue]:
        """The messages to each partner, in the order of the partners."""
        return [pair.queue for pair in self._pairs.values()]

    @property
    def bytes_sent(self) -> int:
        return sum(queue.bytes_sent for queue in self.queues)

    @property
    def unfetched(self) -> int:
        """Number of messages that partners have not acknowledged."""
        return sum(len(queue.waiting) for queue in self.queues)

    @property
    def idle(self) -> bool:
        """Whether every message is in the folder, or acknowledged."""
        return all(len(pair.sizes) >= len(pair.queue.waiting) for pair in self._pairs.values())

    # --- beginning --------------------------------------------------------------------------------------------------

    def connect(self, partners: Sequence[NodeId], endpoints: Endpoints, expected: Expected, hello: Hello) -> None:
        """Enter the folder of this run, and greet the partners.

        Raises ConfigError for another run's folder or private state, and NetworkError if the folder of a begun run is
        missing; nothing is written then.
        """
        keys = _keys_of(endpoints)
        self._run = _name_of(hello, keys)
        self._folder = self.root / f"{RUN}{self._run[:8].hex()}"
        for name in names_in(self.root, RUN):
            if name != self._folder.name:
                text = f"{self.root} holds another run ({name}), and this one is {self._folder.name}"
                raise ConfigError(text, "Give each run a folder of its own; all participants need the same experiment.")
        self._take_state()
        if self._is_gone():
            raise NetworkError(*self._explain_missing())
        secret = bytes.fromhex(self._state.secret)
        process = public_of(secret)
        # from the stored key: it stays the same after a restart
        unlike = replace(hello, process=int.from_bytes(hashlib.sha256(process).digest()[:6], "little"))
        self._hello = content_of(unlike)
        limit = HEADER_BYTES_MAX + SMALL_BYTES + 2 * max(expected.payload_bytes, 8 * expected.words)
        own = raw(self.identity.secret)
        for node in partners:
            first = PairSecrets(agreed(own, raw(keys[node])))
            out = Direction(self._run, self.node, node)
            writer = PairWriter(self.root, self._folder, out, process, first)
            reader = PairReader(self.root, self._folder, out.back, limit, first)
            self._pairs[node] = _Pair(node, writer, reader, Assembler(expected), first.first)
        self._check_begun(process)

    def _is_gone(self) -> bool:
        """Return whether the run's folder existed and is missing now: most likely a lost mount."""
        return (self._state.begun or bool(self._state.partners)) and not self._folder.is_dir()

    def _explain_missing(self) -> tuple[str, str]:
        text = f"{self.root}: no file of this run exists there, and participant {self.node} has begun it"
        return text, f"Mount it, or synchronise it; where it was emptied: make the folder {self._folder.name} in it."

    def _take_state(self) -> None:
        """Read the private state; make it in the first incarnation."""
        try:
            data = outside_files.read_bytes(self._state_path)
            self._state = from_json(msgspec.json.Decoder(FolderState), data)
        except FileNotFoundError:
            self._state = FolderState(secrets.token_bytes(32).hex())
        except (OSError, UnreadableError) as error:
            raise ConfigError(
                f"{self._state_path}: cannot be read: {reason(error)}", "Put a good copy there."
            ) from None

    def _check_begun(self, process: bytes) -> None:
        for pair in self._pairs.values():
            greeting = pair.writer.read_own_greeting()
            if greeting is not None and greeting.process != process:
                text = (
                    f"{self.root}: participant {self.node} has begun this run already, from another folder of its own"
                )
                raise ConfigError(text, "Resume there: fedgossip step FOLDER.  A new run needs a new folder to share.")
        self._keep_state()

    def _keep_state(self) -> None:
        try:
            owner_files.placed(self._state_path, msgspec.json.encode(self._state))
            owner_files.sync_folder(self._state_path.parent)
        except OSError as error:
            raise NotWrittenError(self._state_path, error) from None

    def resume(self, received: Mapping[NodeId, int]) -> None:
        """Continue after the number of messages of each partner in this participant's journal.

        Raises ResumeError if more were acknowledged: the journal is an old copy.
        """
        for node, pair in self._pairs.items():
            pair.taken = received.get(node, 0)
            if (known := self._state.partners.get(node)) is None:
                continue
            secrets = PairSecrets(pair.first, agreed(bytes.fromhex(self._state.secret), bytes.fromhex(known)))
            own = PairReader(self.root, self._folder, pair.writer.way, 0, secrets).receipts()
            if (most := max((one for one in own if one != END), default=0)) > pair.taken:
                text = f"{self._state_path.parent}: its journal has {pair.taken} messages of participant {node}"
                text += f", and {most} were acknowledged: it is an old copy, and would contradict earlier messages"
                raise ResumeError(text, "Put the newest copy there; without it a new run is needed, in a new folder.")

    def finish(self) -> None:
        """Count all messages of the partners, present and future, as received: the machine needs nothing more."""
        for pair in self._pairs.values():
            pair.taken = END

    def meet(self, node: NodeId, endpoint: Endpoint) -> None:  # noqa: ARG002
        """Raise ConfigError: the participants of a run by folder are fixed."""
        raise ConfigError(f"participant {node} cannot be added to a run by folder", "Run it with sockets: --links.")

    def part(self, node: NodeId) -> None:
        """Stop sending to a partner and receiving from it."""
        self._pairs.pop(node, None)

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(self, to: NodeId, message: AnyMessage) -> None:
        """Queue `message` under the next number.  Raises NetworkError if the partner has WAITING unfetched messages."""
        pair = self._pairs.get(to)
        if pair is None:
            return
        queue = pair.queue
        queue.sent += 1
        queue.waiting.append((queue.sent, message))
        queue.bytes_sent += packed(message).size
        self.traffic.queued(to, message.payload_bytes)
        self._due = 0.0
        if len(queue.waiting) > WAITING:
            text = f"participant {to} has not fetched the last {len(queue.waiting):,} messages from {self.root}"
            raise NetworkError(text, "Does it run, and does its machine see the folder?")

    def _push(self, pair: _Pair, events: list[LinkEvent]) -> bool:
        """Write as many messages as fit; return whether any were written."""
        if not pair.greeted:
            return False
        done = False
        for number, message in pair.queue.waiting:
            if number in pair.sizes:
                continue
            waiting = sum(pair.sizes.values())
            if pair.sizes and (len(pair.sizes) >= FILES or waiting + message.payload_bytes > BYTES):
                break
            content = content_of(message)
            size = OVERHEAD + len(content)  # an earlier process may have written it
            if pair.writer.size(MESSAGE, number) != size and not self._written(pair, MESSAGE, number, content, events):
                break
            pair.sizes[number] = size
            done = True
        return done

    def _written(self, pair: _Pair, kind: bytes, number: int, content: bytes, events: list[LinkEvent]) -> bool:
        try:
            if self._is_gone():
                raise FileNotFoundError(errno.ENOENT, self._explain_missing()[0])
            pair.writer.put(kind, number, content)
        except OSError as error:
            text = f"{self.root} cannot be written: {error.strerror or error}; {self.unfetched} messages wait"
            self._report(pair.node, f"folder_{error.errno}", text, "Work resumes when there is room.", events)
            return False
        self._refused = {one for one in self._refused if not one[1].startswith("folder_")}
        return True

    def _take_receipt(self, pair: _Pair, events: list[LinkEvent]) -> bool:
        """Remove acknowledged messages, restore disappeared ones; return whether there were any."""
        queue = pair.queue
        if not queue.waiting or not pair.greeted:
            return False
        found = [queue.sent if one == END else one for one in pair.reader.receipts()]
        count = max([queue.acknowledged, *(one for one in found if one <= queue.sent)])
        done = count > queue.acknowledged
        if done:
            pair.writer.drop(1, count)
            queue.acknowledged = count
            while queue.waiting and queue.waiting[0][0] <= count:
                pair.sizes.pop(queue.waiting.popleft()[0], None)
            pair.repeated = time.monotonic()
        for number in [number for number in pair.sizes if pair.writer.size(MESSAGE, number) is None]:
            del pair.sizes[number]  # it was removed from outside, and is written again
        if pair.sizes and time.monotonic() - (pair.repeated or time.monotonic()) > REPEAT_SECONDS:
            pair.repeated = time.monotonic()
            number, message = queue.waiting[0]
            self._written(pair, MESSAGE, number, content_of(message), events)
        pair.repeated = pair.repeated or time.monotonic()
        if pair.sizes and pair.writer.age(MESSAGE, min(pair.sizes)) > OLD_SECONDS:
            text = f"participant {pair.node} has not fetched a message from {self.root} for {OLD_SECONDS // 86400} days"
            advice = "Does it run, and does its machine see the folder?  A wrong clock, here or there, looks the same."
            self._report(pair.node, "unfetched", text, advice, events)
        return done

    # --- receiving --------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int) -> list[LinkEvent]:
        """Wait at most `timeout_ms` for events; return them."""
        events: list[LinkEvent] = []
        self._acknowledge(events)
        until = time.monotonic() + timeout_ms / 1000
        while True:
            if time.monotonic() >= self._due or not self.poll_seconds:
                self._look(events)
            rest = max(0.0, min(until, self._due) - time.monotonic())
            if self._woken(0.0 if events else rest):
                events.append(Woken())
            if events or time.monotonic() >= until or not self.poll_seconds:
                return events

    def _woken(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._waker.fileno()], [], [], seconds)
        if ready:
            self._waker.clear()
        return bool(ready)

    def _look(self, events: list[LinkEvent]) -> None:
        done = False
        gone = self._is_gone()
        if gone and self._pairs:
            self._report(next(iter(self._pairs)), f"folder_{errno.ENOENT}", *self._explain_missing(), events)
        for pair in () if gone else self._pairs.values():
            if not pair.swept and pair.writer.folder.is_dir():
                pair.swept = True
                pair.writer.sweep()
            if pair.writer.size(GREETING, 0) is None:
                written = self._written(pair, GREETING, 0, self._hello, events)
                if written and not self._state.begun:
                    self._state.begun = True
                    self._keep_state()
            done |= self._take_greeting(pair, events) or self._take_message(pair, events)
            done |= self._take_receipt(pair, events)
            done |= self._push(pair, events)
        quiet = min(self._rest * GROWTH, self.poll_seconds) if self.poll_seconds else BUSY_SECONDS
        self._rest = BUSY_SECONDS if done else quiet
        # a part of it is random, so that many participants do not look at once
        self._due = time.monotonic() + self._rest * (0.75 + 0.25 * os.urandom(1)[0] / 255)

    def _take_greeting(self, pair: _Pair, events: list[LinkEvent]) -> bool:
        if pair.greeted:
            return False
        known = self._state.partners.get(pair.node)
        pair.reader.process = bytes.fromhex(known) if known else None
        try:
            found = pair.reader.take(GREETING, 0)
            if found is None:
                return False
            sealed, content = found
            hello = message_in(content, pair.assembler)
            if not isinstance(hello, Hello):
                raise FrameError("ungreeted", f"participant {pair.node} greets with another message")
            later = agreed(bytes.fromhex(self._state.secret), sealed.process)
        except (FrameError, OSError, ValueError) as error:
            self._refuse(pair.node, error, events)
            return False
        if known is None:
            self._state.partners[pair.node] = sealed.process.hex()
            self._keep_state()
        pair.reader.process = sealed.process
        pair.writer.secrets = pair.reader.secrets = PairSecrets(pair.first, later)
        pair.greeted = True
        events += [Arrived(pair.node, hello), LinkUp(pair.node)]
        return True

    def _take_message(self, pair: _Pair, events: list[LinkEvent]) -> bool:
        if not pair.greeted or pair.taken == END:
            return False
        try:
            found = pair.reader.take(MESSAGE, pair.taken + 1)
            if found is None:
                return False
            message = message_in(found[1], pair.assembler)
        except (FrameError, OSError) as error:
            self._refuse(pair.node, error, events)
            return False
        pair.taken += 1
        self.traffic.note_frame(pair.node, more=False)
        events.append(Arrived(pair.node, message, len(found[1])))
        return True

    def _acknowledge(self, events: list[LinkEvent]) -> None:
        for pair in self._pairs.values():
            due = pair.greeted and 0 < pair.taken != pair.receipted
            if due and self._written(pair, RECEIPT, pair.taken, b"", events):
                pair.receipted = pair.taken

    def _refuse(self, node: NodeId, error: Exception, events: list[LinkEvent]) -> None:
        if isinstance(error, FrameError):
            place = folder_of(self._folder, Direction(b"", node, self.node)).name
            self._report(node, error.reason, f"{place}: {error}", error.advice, events)
        else:
            self._report(node, "folder_read", f"{self.root} cannot be read: {error}", "Is it mounted?", events)

    def _report(self, node: NodeId, reason: str, text: str, advice: str, events: list[LinkEvent]) -> None:
        """Report a cause once, not at every look."""
        if (node, reason) not in self._refused and len(self._refused) < LISTED:
            self._refused.add((node, reason))
            events.append(Rejected(node, reason, text, advice))

    def close(self, drain_seconds: float = 0.0) -> None:
        """Write the waiting messages that fit, for at most `drain_seconds`; the folder keeps them when this process
        ends.
        """
        if self._closed:
            return
        self._closed = True
        until = time.monotonic() + drain_seconds
        while True:
            for pair in self._pairs.values():
                self._push(pair, [])
            if self.idle or time.monotonic() >= until:
                break
            time.sleep(BUSY_SECONDS)
            for pair in self._pairs.values():
                self._take_receipt(pair, [])
        self._waker.close()


def _keys_of(endpoints: Endpoints) -> dict[NodeId, str]:
    """Return the keys of all participants.  Raises ConfigError for a malformed or shared one."""
    keys = {node: check_public(endpoint.key, f"participant {node}") for node, endpoint in sorted(endpoints.items())}
    seen: dict[str, NodeId] = {}
    for node, key in keys.items():
        if key in seen:
            raise ConfigError(f"participants {seen[key]} and {node} have one key", "Make a key on each machine.")
        seen[key] = node
    return keys


def _name_of(hello: Hello, keys: Mapping[NodeId, str]) -> bytes:
    """Return a run's name: 16 bytes of a hash of its experiment and keys."""
    about = [hello.experiment, hello.schema, *(f"{node}={key}" for node, key in sorted(keys.items()))]
    return hashlib.sha256("\n".join(about).encode()).digest()[:16]
