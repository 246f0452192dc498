"""The state of a descent, fetched by a worker that is behind from one that has it: in pieces, each requested.

    behind   StateQuery(rounds, start)              donor   StatePiece(rounds, digest, start, ...)
             ... one at a time, then the digest is checked

Received pieces are kept: after a stopped round, or from another donor, the same state is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgossip.algorithms.gossip.base import restored, saved
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, all_finite, digest, empty, frozen
from fedgossip.core.machine import Effect, NodeId, Refused, Send, SetTimer
from fedgossip.core.messages import MODEL_CHUNK, StatePiece, StateQuery


class StateDonor:
    """Sends the newest state in pieces; the vectors of a requested state are concatenated once."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._given: tuple[int, Vector, str] | None = None

    def answer(self, sender: NodeId, asked: StateQuery, rounds: int, state: Any) -> list[Effect]:
        """Return the requested piece; none of other rounds than `rounds`.  Raises ProtocolError."""
        if asked.rounds != rounds:
            return []
        arrays, numbers = saved(state)
        length = sum(array.size for array in arrays.values())
        if asked.start % MODEL_CHUNK or asked.start >= length:
            raise ProtocolError(f"worker {sender} asks for a state at {asked.start} of {length}", peer=sender)
        if self._given is None or self._given[0] != rounds:
            row = frozen(np.concatenate(list(arrays.values())))
            self._given = rounds, row, digest([row])
        _, row, name = self._given
        part = row[asked.start : asked.start + MODEL_CHUNK]
        rest = tuple(float(numbers[one]) for one in sorted(numbers))
        return [Send(sender, StatePiece(rounds, name, row.size, asked.start, rest, self.schema, (part,)))]

    def forget(self) -> None:
        """Drop a state that is no longer the newest."""
        self._given = None


class StateFetch:
    """Fetches a state with the layout of `like`.  Times in nanoseconds: the first wait for a piece, and the longest."""

    def __init__(self, node: NodeId, like: Any, schema: str, first_ns: int, longest_ns: int) -> None:
        self.node, self.schema, self.like = node, schema, like
        self.first_ns, self.longest_ns = first_ns, longest_ns
        self.donor, self.rounds = -1, -1
        self._digest, self._row, self._start = "", empty(0, like.x.dtype), 0
        self._wait_ns = first_ns

    @property
    def _length(self) -> int:
        return sum(array.size for array in saved(self.like)[0].values())

    def begin(self, donor: NodeId, rounds: int) -> list[Effect]:
        """Request the state after so many rounds, or its missing pieces."""
        if rounds != self.rounds:
            self._digest, self._start = "", 0
        self.donor, self.rounds = donor, rounds
        return self._ask(self.first_ns)

    def again(self, start: int) -> list[Effect]:
        """Request a piece again after its wait, and wait longer."""
        return self._ask(min(2 * self._wait_ns, self.longest_ns)) if start == self._start else []

    def _ask(self, wait_ns: int) -> list[Effect]:
        self._wait_ns = wait_ns
        timer = SetTimer(("piece", self.rounds, self._start), wait_ns)
        return [Send(self.donor, StateQuery(self.rounds, self._start)), timer]

    def take(self, sender: NodeId, piece: StatePiece) -> tuple[Any, list[Effect]]:
        """Return (the state once it is complete, effects).  Raises ProtocolError for a piece of another layout."""
        if (sender, piece.rounds) != (self.donor, self.rounds):
            return None, []
        self._check(sender, piece)
        if self._digest and piece.digest != self._digest:
            self._start = 0
        self._digest = piece.digest
        if piece.start != self._start:
            return None, []
        if not self._start:
            self._row = empty(piece.length, piece.vectors[0].dtype)
        size = piece.vectors[0].size
        self._row[self._start : self._start + size] = piece.vectors[0]
        self._start += size
        if self._start < piece.length:
            return None, self._ask(self.first_ns)
        return self._whole(piece)

    def _check(self, sender: NodeId, piece: StatePiece) -> None:
        kind, numbers = self.like.x.dtype, saved(self.like)[1]
        size = min(MODEL_CHUNK, self._length - piece.start)
        shapes = [(vector.dtype, vector.shape) for vector in piece.vectors]
        same = (piece.schema, piece.length, len(piece.numbers)) == (self.schema, self._length, len(numbers))
        if not same or shapes != [(kind, (size,))] or not all_finite(piece.vectors[0]):
            text = f"a state of another layout from worker {sender}, round {piece.rounds} (schema {piece.schema:.16})"
            advice = "Give every worker the same [model], [train] and [parallel] sections."
            raise ProtocolError(f"worker {self.node}: {text}", advice, peer=sender)

    def _whole(self, piece: StatePiece) -> tuple[Any, list[Effect]]:
        row, self._row, self._start, self._digest = self._row, empty(0, self._row.dtype), 0, ""
        if digest([row]) == piece.digest:
            self.rounds = -1
            return _state_of(self.like, row, piece.numbers), []
        text = f"the state after {piece.rounds} rounds that worker {self.donor} gave is not what it promised"
        return None, [Refused(self.donor, "digest", text, piece.rounds), *self._ask(self.longest_ns)]


def _state_of(like: Any, row: Vector, rest: tuple[float, ...]) -> Any:
    """Return the state with its vectors concatenated in `row`."""
    arrays, numbers = saved(like)
    found: dict[str, Vector] = {}
    start = 0
    for name, array in arrays.items():
        found[name] = frozen(row[start : start + array.size].copy())
        start += array.size
    names: Mapping[str, Any] = {name: type(numbers[name])(rest[place]) for place, name in enumerate(sorted(numbers))}
    return restored(like, found, names)
