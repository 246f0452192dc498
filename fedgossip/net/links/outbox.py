"""The queue of messages for one partner; one of them is under way, chunk by chunk.

Control frames overtake waiting messages, between two chunks.  The module also reads a message (a mark and a body) from
a socket, or a sealed record of a stream, into the sender's assembler.  Control frames of coordinator and client:

    b"A" + transfer (u32) + 0    client: may I send message `transfer`?  It has more than one chunk: `router_sender`
    b"G" + transfer (u32) + 0    coordinator: yes
    b"T" + 0        + 0          coordinator: another process with your key is connected, and was here before
    b"N" + 0        + 0          coordinator: nothing; but TCP must deliver it, or notice that it cannot
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator

import zmq

from fedgossip.base.vectors import Vector
from fedgossip.core.messages import AnyMessage, Carrier
from fedgossip.core.wire import Assembler, FrameError, Packed, chunks, packed
from fedgossip.net.sockets import ZmqSocket
from fedgossip.net.streams.sealed_stream import SealedStream
from fedgossip.net.streams.sealing import SealBrokenError
from fedgossip.net.transport import Traffic


class VectorChunk:
    """A chunk of vectors, without a copy; on request as a frame that ZeroMQ reads there (as costly as copying
    100 KiB).
    """

    __slots__ = ("_frame", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self._frame: zmq.Frame | None = None

    def __len__(self) -> int:
        return len(self.view)

    @property
    def frame(self) -> zmq.Frame:
        """Return the frame, which all partners share."""
        if self._frame is None:
            self._frame = zmq.Frame(self.view)
        return self._frame


Pair = tuple[bytes, bytes | VectorChunk]
"""Mark and body of one message of ZeroMQ, or of one sealed record."""


def zmq_body(pair: Pair) -> bytes | zmq.Frame:
    """Return the body in the form that ZeroMQ sends."""
    body = pair[1]
    return body.frame if isinstance(body, VectorChunk) else body


def plain_body(pair: Pair) -> bytes | memoryview:
    """Return the body as input of the seal."""
    body = pair[1]
    return body.view if isinstance(body, VectorChunk) else body


OUTBOX_MESSAGES = 8
"""Maximum number of messages waiting for one partner; a synchronous run needs two models and a goodbye."""


class Cuts:
    """Parts of a message shared by all partners: its header, made once, and its chunks."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._packed: Packed | None = None
        self._last: tuple[tuple[Vector, ...], list[VectorChunk]] = (), []

    def packed(self, message: AnyMessage) -> Packed:
        """Return the message with its header, made once for all partners that receive it in succession."""
        if self._packed is None or self._packed.message is not message:
            self._packed = packed(message)
        return self._packed

    def chunks(self, message: AnyMessage) -> list[VectorChunk]:
        """Return its chunks, shared by all messages with these vectors."""
        if not isinstance(message, Carrier):
            return []
        if self._last[0] is not message.vectors:
            self._last = message.vectors, [VectorChunk(chunk) for chunk in chunks(message)]
        return self._last[1]


class Outbox:
    """`cuts` is shared by all partners.  `transfer` numbers the messages, across connections."""

    def __init__(self, cuts: Cuts, transfer: int = 0) -> None:
        self._cuts, self.transfer = cuts, transfer
        self.chunks = 0
        """Chunks of the message under way."""
        self._words: deque[Pair] = deque()
        self._messages: deque[Packed] = deque()
        self._under_way: Packed | None = None
        self._current: Iterator[Pair] | None = None
        self._waiting: Pair | None = None

    def __bool__(self) -> bool:
        return bool(self._words or self._messages or self._current or self._waiting)

    def holds(self, message: AnyMessage) -> bool:
        """Return whether a message with the same vector objects and equal fields waits or is under way."""
        if not isinstance(message, Carrier):
            return False
        here = [*self._messages, *([self._under_way] if self._under_way else [])]
        alike = (one for one in here if isinstance(one.message, Carrier) and one.message.vectors is message.vectors)
        return any(one.header == self._cuts.packed(message).header for one in alike)

    def put(self, message: AnyMessage) -> bool:
        """Add a message.  Return False if too many wait: the oldest that has not begun is dropped."""
        room = len(self._messages) < OUTBOX_MESSAGES
        if not room:
            self._away(self._messages.popleft().message)
        self._messages.append(self._cuts.packed(message))
        if isinstance(message, Carrier):
            self._cuts.traffic.wait()
        return room

    def add_control(self, word: Pair) -> None:
        """Add a control frame, which is sent next."""
        self._words.append(word)

    @property
    def has_control(self) -> bool:
        """Whether the next frame is a control frame."""
        return bool(self._words)

    @property
    def between(self) -> bool:
        """Whether no message is under way."""
        return self._current is None and self._waiting is None

    def next(self) -> Pair | None:
        """Return the frame to be sent now; the same one until it is `sent`."""
        if self._words:
            return self._words[0]
        while self._waiting is None:
            if self._current is None:
                if not self._messages:
                    return None
                self._begin(self._messages.popleft())
                continue
            self._waiting = next(self._current, None)
            if self._waiting is None:
                self._end()
        return self._waiting

    def _begin(self, packed: Packed) -> None:
        bodies = self._cuts.chunks(packed.message)
        self.transfer, self.chunks, self._under_way = self.transfer + 1, len(bodies), packed
        self._current = packed.frames(self.transfer, bodies)

    def _end(self) -> None:
        if self._under_way is not None:
            self._away(self._under_way.message)
        self._current = self._waiting = self._under_way = None

    def _away(self, message: AnyMessage) -> None:
        if isinstance(message, Carrier):
            self._cuts.traffic.go()

    def sent(self) -> None:
        """Record that the network has accepted the frame returned by `next`."""
        if self._words:
            self._words.popleft()
            return
        self._waiting = next(self._current, None) if self._current else None
        if self._waiting is None:
            self._end()

    def forget(self, vector: Vector) -> int:
        """Drop the messages that begin with this vector, including one under way; return how many."""
        kept = [packed for packed in self._messages if not _begins_with(packed.message, vector)]
        dropped = len(self._messages) - len(kept)
        self._cuts.traffic.go(dropped)
        self._messages = deque(kept)
        if self._under_way is not None and _begins_with(self._under_way.message, vector):
            self._end()
            dropped += 1
        return dropped

    def clear(self) -> None:
        """Drop all messages, including the one under way: the connection is broken."""
        self._words.clear()
        while self._messages:
            self._away(self._messages.popleft().message)
        self._end()


def _begins_with(message: AnyMessage, vector: Vector) -> bool:
    return isinstance(message, Carrier) and message.vectors[0] is vector


def read(socket: ZmqSocket, mark: zmq.Frame, assembler: Assembler) -> AnyMessage | None:
    """Read the body that belongs to `mark`; return the message if this completes it.

    Raises FrameError; `skip` then drops the rest of it.
    """
    if not mark.more:
        raise FrameError("truncated", "a message of one frame")
    target = assembler.mark(mark.bytes)
    if target is None:
        body = socket.recv()
        check_last(socket)
        return assembler.header(body)
    size = socket.recv_into(target)
    check_last(socket)
    return assembler.landed(size)


def read_sealed(stream: SealedStream, assembler: Assembler) -> AnyMessage | None:
    """Open a complete record, a chunk at its place; return the message if this completes it.

    Raises SealBrokenError, after which the stream must be closed, and FrameError for an unacceptable frame of the
    sender.  Before the seal is checked the mark only gives the place: a broken seal drops the message.
    """
    try:
        target = assembler.mark(stream.mark)
        if target is not None and stream.size == len(target):
            return assembler.landed(stream.open_into(target))
    except SealBrokenError:
        assembler.give_up()
        raise
    except FrameError:
        stream.open()
        raise
    size, body = stream.size, bytes(stream.open())
    return assembler.header(body) if target is None else assembler.landed(size)


def frame_error(error: Exception, assembler: Assembler | None) -> FrameError:
    """Return the refusal of one invalid frame; its message is dropped.  Raises `error` again if it has another
    cause.
    """
    if isinstance(error, FrameError):
        return error
    if isinstance(error, zmq.ZMQError):
        raise error
    if assembler is not None:
        assembler.give_up()
    return FrameError("broken", f"a frame that cannot be taken: {type(error).__name__}: {error}")


def check_last(socket: ZmqSocket) -> None:
    """Raise FrameError if another frame follows."""
    if _more(socket):
        raise FrameError("frames", "a message of more than two frames")


def skip(socket: ZmqSocket) -> None:
    """Read the remaining frames of a message, and drop them."""
    while _more(socket):
        socket.recv_into(bytearray())


def _more(socket: ZmqSocket) -> bool:
    return bool(socket.getsockopt(zmq.RCVMORE))  # not .rcvmore: the attribute costs ten times as much


_WORD = struct.Struct("<cII")

ASK, GO, TWIN, NOTHING = b"A", b"G", b"T", b"N"

CHUNK = b"C"
"""Kind of frames with a chunk; see wire."""

ANSWERS = (GO, TWIN, NOTHING)
"""Kinds of frames that a client may receive."""


def word(kind: bytes, transfer: int = 0) -> Pair:
    return _WORD.pack(kind, transfer, 0), b""


def parse(mark: bytes) -> tuple[bytes, int]:
    """Return (kind, transfer) of a mark; (b"", 0) for a malformed one."""
    if len(mark) != _WORD.size:
        return b"", 0
    kind, transfer, _ = _WORD.unpack(mark)
    return kind, transfer
