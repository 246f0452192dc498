"""Messages between a client's task and its training processes, over a socket pair for each of them."""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

from fedgossip.learning.processes.shared_memory import ArrayPlace
from fedgossip.learning.settings import TrainSettings

STATE = "state/"
"""Prefix of the names of a node's state, among the arrays of a job."""

LINE = "line"
"""The array that the processes of a Hogwild client step on."""

COUNTER = "counter"
"""The array in which they count their writes of each element, as racily as they write."""

LENGTH = struct.Struct("<I")


class Setup(msgspec.Struct, tag=True, frozen=True):
    """Be process `rank` of `size`: build the model, map the examples, meet the others at `store`; answered by Ready."""

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
    """The mean and the deviation of label columns that were standardised."""
    vocabulary: str | None
    settings: dict[str, Any]
    examples: list[ArrayPlace]
    silence: float
    """Seconds after which a process that waits for another gives up."""

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
    """Of the job's terms; None where it has none."""
    pieces: int
    given: list[ArrayPlace]
    found: list[ArrayPlace]
    gradient: bool = False
    """Whether the result is the gradient, without training."""


class EvaluateOrder(msgspec.Struct, tag=True, frozen=True):
    """Evaluate the `given` vector, with the node's own layers where its state is; the reply is Evaluated."""

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
    """Of a process that steps by itself: its steps, and the elements that it wrote."""


class Evaluated(msgspec.Struct, tag=True, frozen=True):
    """Sums over the process's part of the test set."""

    loss: float
    predicted: int
    sums: list[list[float]]
    """Of each metric."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """A failure: the error's class, its text, and advice where it has some."""

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
        """Send a message.  Raises OSError where the other end is gone."""
        content = msgspec.msgpack.encode(message)
        self.socket.sendall(LENGTH.pack(len(content)) + content)

    def receive(self) -> Message | None:
        """Wait for a message and return it; None when the other end is gone."""
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
