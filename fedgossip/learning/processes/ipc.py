"""Messages between a client's task and its training processes, over socket pairs; and shared arrays.

`SharedArrays` are an unnamed file that all processes map: messages contain the arrays' positions, not copies.
"""

from __future__ import annotations

import math
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.learning.settings import TrainSettings

STATE = "state/"
"""Prefix of the names of a node's state, among the arrays of a job."""

LINE = "line"
"""The array that the processes of a Hogwild client step on."""

COUNTER = "counter"
"""The array that counts writes of each element, with the same race as the writes."""

LENGTH = struct.Struct("<I")

ALIGNMENT = 64  # bytes: a line of the cache
ZEROS = bytes(1 << 20)


class ArrayPlace(msgspec.Struct, frozen=True):
    """The position of an array in a board; `kind` is its dtype."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.kind).itemsize


Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""name -> (dtype, shape)"""


class SharedArrays:
    """The file.  `descriptor` may be passed to another process, which makes SharedArrays from it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def new(cls) -> SharedArrays:
        """Return an empty board.  The caller must close its descriptor."""
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def lay(self, arrays: Mapping[str, npt.NDArray[Any]]) -> list[ArrayPlace]:
        """Write the arrays over the old content, and return their places."""
        places = self.room({name: (array.dtype.str, array.shape) for name, array in arrays.items()})
        for name, view in self.views(places).items():
            view[...] = arrays[name]
        return places

    def room(self, shapes: Shapes) -> list[ArrayPlace]:
        """Allocate space for arrays of these shapes over the old content.  Raises ConfigError if the disk is full."""
        places, end = [], 0
        for name, (kind, shape) in shapes.items():
            place = ArrayPlace(name, kind, shape, end)
            places.append(place)
            end += -(-place.bytes // ALIGNMENT) * ALIGNMENT
        try:
            self._grow(end)
        except OSError as error:
            advice = "The processes of a client share it; set TMPDIR to a folder on another disk."
            raise ConfigError(
                f"no room for {end / 1e6:,.0f} MB in {tempfile.gettempdir()}: {error.strerror}", advice
            ) from None
        return places

    def views(self, places: Sequence[ArrayPlace]) -> dict[str, npt.NDArray[Any]]:
        """Return arrays over the file's memory: a write to one is visible to all processes."""
        end = max((place.offset + place.bytes for place in places), default=0)
        memory = mmap.mmap(self.descriptor, end) if end else b""
        return {
            place.name: np.ndarray(place.shape, place.kind, memory if place.bytes else None, place.offset)
            if place.bytes
            else np.empty(place.shape, place.kind)
            for place in places
        }

    def _grow(self, size: int) -> None:
        # written, not only extended: on a full disk access to the mapping would kill the process by a signal
        at = os.fstat(self.descriptor).st_size
        while at < size:
            at += os.pwrite(self.descriptor, ZEROS[: size - at], at)


class Setup(msgspec.Struct, tag=True, frozen=True):
    """Become process `rank` of `size`: build the model, map the examples, meet the others at `store`; answered by
    Ready.
    """

    rank: int
    size: int
    device: str
    store: str
    source: str
    base: str | None
    seed: int
    classes: int
    kind: str
    loss: str
    metrics: tuple[str, ...]
    label_scale: tuple[tuple[float, ...], tuple[float, ...]]
    """The mean and the deviation of standardised label columns."""
    vocabulary: str | None
    settings: dict[str, Any]
    examples: list[ArrayPlace]
    silence: float
    """Maximum wait for another process in seconds."""

    @property
    def train(self) -> TrainSettings:
        return msgspec.convert(self.settings, TrainSettings)

    @property
    def threads(self) -> int:
        return int(self.settings["threads"])


class TrainOrder(msgspec.Struct, tag=True, frozen=True):
    """Train one job from the arrays `given`, and write the results to `found`; the reply is TrainReply."""

    node: int
    round: int
    lr: float
    pull: float | None
    """Pull of the job's terms; None without terms."""
    pieces: int
    given: list[ArrayPlace]
    found: list[ArrayPlace]
    gradient: bool = False
    """Whether the result is the gradient, without training."""


class EvaluateOrder(msgspec.Struct, tag=True, frozen=True):
    """Evaluate the `given` vector, with the node's personal layers if its state is given; the reply is Evaluated."""

    own: bool
    pieces: int
    given: list[ArrayPlace]


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The process is set up."""


class Alive(msgspec.Struct, tag=True, frozen=True):
    """A step is done, and more follow."""


class TrainReply(msgspec.Struct, tag=True, frozen=True):
    loss: float
    skipped: int
    steps: int = 0
    written: int = 0
    """For a process with independent steps: its number of steps, and of written elements."""


class Evaluated(msgspec.Struct, tag=True, frozen=True):
    """Sums over the process's part of the test set."""

    loss: float
    predicted: int
    sums: list[list[float]]
    """Sums of each metric."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """A failure: the error's class, its text, and its advice, if any."""

    kind: str
    text: str
    advice: str


Message = Setup | TrainOrder | EvaluateOrder | Ready | Alive | TrainReply | Evaluated | Failed

_DECODER = msgspec.msgpack.Decoder(Message)


class Channel:
    """One end of the socket pair between the task and one process."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Message) -> None:
        """Send a message.  Raises OSError if the other end is closed."""
        content = msgspec.msgpack.encode(message)
        self.socket.sendall(LENGTH.pack(len(content)) + content)

    def receive(self) -> Message | None:
        """Wait for a message and return it; None if the other end is closed."""
        head = self._read(LENGTH.size)
        content = self._read(LENGTH.unpack(head)[0]) if head else None
        return None if content is None else _DECODER.decode(content)

    def close(self) -> None:
        self.socket.close()

    def _read(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self.socket.recv(size - len(parts))
            except ConnectionError:
                part = b""
            if not part:
                return None
            parts += part
        return bytes(parts)


LOST: Final = "lost_updates"
"""Name in a round's record of the share of lost updates."""


class Race(NamedTuple):
    """The mean loss of all steps, and their write counts, if counted."""

    loss: float
    logged: Mapping[str, float]


def race_of(replies: Sequence[TrainReply], shared: Mapping[str, npt.NDArray[Any]]) -> Race:
    """Combine the replies of the processes, each with its number of steps and of written elements."""
    loss = sum(one.loss * one.steps for one in replies) / sum(one.steps for one in replies)
    if COUNTER not in shared:
        return Race(loss, {})
    written, kept = sum(one.written for one in replies), int(shared[COUNTER].sum(dtype=np.int64))
    return Race(loss, {LOST: 1 - kept / written})
