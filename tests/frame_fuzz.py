"""Frames that are no messages, or not in their order: what an adversary can write on a link, below the machines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import zmq
from fuzz_words import Words

from fedgossip.core.messages import Expected
from fedgossip.core.wire import Assembler, FrameError, chunks, frames

Pair = tuple[bytes, bytes]
"""A mark and a body."""

BODY_MAX = 100_000
"""Bytes; sockets end a connection that brings much more."""


class Scribe:
    """Writes messages as frames, and bends those: bytes changed, cut, added; frames lost, twice, in another order."""

    def __init__(self, words: Words) -> None:
        self.words, self.draw = words, words.draw
        self._transfer = 0

    def written(self, message: Any) -> list[Pair]:
        """The frames of a message; none where it cannot be written."""
        self._transfer = (self._transfer + 1) % 2**32
        try:
            return [(mark, bytes(body)) for mark, body in frames(message, self._transfer, chunks(message))]
        except (msgspec.MsgspecError, ValueError, OverflowError, IndexError, TypeError):
            return []

    def bent(self) -> list[Pair]:
        """Some frames, of one message or two, that were bent once or more."""
        found = self.written(self.words.next())
        if self.draw.random() < 0.2:
            found += self.written(self.words.next())
        for _ in range(1 + int(self.draw.integers(3))):
            found = self._changed(found)
        return [(mark, body[:BODY_MAX]) for mark, body in found]

    def _changed(self, found: list[Pair]) -> list[Pair]:
        if not found:
            return [(self.draw.bytes(9), self.draw.bytes(20))]
        place = int(self.draw.integers(len(found)))
        mark, body = found[place]
        other = [
            lambda: [(self._spoilt(mark), body)],
            lambda: [(mark, self._spoilt(body))],
            lambda: [(mark, self._spoilt(body))],
            lambda: [(mark, self._nested())],
            list,
            lambda: [(mark, body)] * 2,
            lambda: [(b"C" + mark[1:], body)],
            lambda: [(mark[:1] + self.draw.bytes(8), body)],
        ][int(self.draw.integers(8))]()
        changed = [*found[:place], *other, *found[place + 1 :]]
        return changed[::-1] if self.draw.random() < 0.1 else changed

    def _spoilt(self, data: bytes) -> bytes:
        place = int(self.draw.integers(len(data) + 1))
        flipped = bytearray(data or b"x")
        flipped[place % len(flipped)] ^= 1 << int(self.draw.integers(8))
        ways = (b"", data[:place], data + self.draw.bytes(3), data * 2, self.draw.bytes(len(data)), b"x" * 70_000)
        return bytes(flipped) if self.draw.random() < 0.6 else self.words.one(ways)

    def _nested(self) -> bytes:
        return self.words.one((b"\x91", b"\x81\xa4type", b"\xdd\xff\xff\xff\xff")) * 20_000


def take(assembler: Assembler, pair: Pair) -> Any:
    """Give one pair of frames to an assembler, as a socket does; return what is whole with it.  Raises FrameError."""
    mark, body = pair
    target = assembler.mark(mark)
    if target is None:
        return assembler.header(body)
    size = min(len(body), len(target))
    target[:size] = body[:size]
    return assembler.landed(len(body))


def refused(expected: Expected, pairs: list[Pair]) -> bool:
    """Whether an assembler refuses every one of these frames."""
    assembler = Assembler(expected)
    for pair in pairs:
        try:
            take(assembler, pair)
        except FrameError:
            continue
        return False
    return True


class _Frame:
    def __init__(self, data: bytes, user: str, *, more: bool) -> None:
        self.bytes, self.more, self._user = data, more, user

    def get(self, _name: object) -> str:
        return self._user


class Fed:
    """Stands in the place of a socket, and gives out what it is fed."""

    def __init__(self) -> None:
        self._messages: deque[deque[_Frame]] = deque()
        self._here: deque[_Frame] = deque()

    def feed(self, user: str, *parts: bytes) -> None:
        self._messages.append(deque(_Frame(part, user, more=k + 1 < len(parts)) for k, part in enumerate(parts)))

    def recv(self, _flags: int = 0, copy: bool = True) -> Any:
        if not self._here:
            if not self._messages:
                raise zmq.Again
            self._here = self._messages.popleft()
        frame = self._here.popleft()
        return frame.bytes if copy else frame

    def recv_into(self, target: Any) -> int:
        data = self._here.popleft().bytes
        size = min(len(data), len(target))
        target[:size] = data[:size]
        return len(data)

    def send_multipart(self, _parts: Any, _flags: int = 0) -> None:
        """Nobody is there to hear an answer."""

    def getsockopt(self, _option: int) -> bool:
        return bool(self._here)


def beside(of: type, said: Callable[[Any, bytes, bytes], None], pairs: Iterator[Pair]) -> type:
    """A transport like `of`, that writes these pairs too: two before every message of its own, by `said`."""

    class Bent(of):  # type: ignore[misc, valid-type]
        def send(self, to: int, message: Any) -> None:
            for _ in range(2):
                if (pair := next(pairs, None)) is not None:
                    said(self, *pair)
            super().send(to, message)

    return Bent
