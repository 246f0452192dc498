"""Interface of a codec: it encodes a vector [d] in fewer bytes, and its receiver decodes it.

A payload is one array of bytes, little-endian, indices and scales included, of a length that follows from (d, type,
tensors, round).  A codec has no memory; `senders` keep what was left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base import seeds
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, frozen, summable
from fedgossip.core.task import Segment, one_segment

Payload = npt.NDArray[Any]
"""Of uint8, [bytes]."""


@dataclass(frozen=True, slots=True)
class VectorLayout:
    """The layout of encoded vectors: `length` elements of `dtype`, the tensors `segments` concatenated."""

    length: int
    dtype: np.dtype[np.floating]
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, vector: Vector, segments: Sequence[Segment] = ()) -> VectorLayout:
        """The layout of a vector [d]; without segments it is one tensor."""
        return cls.of_length(vector.size, vector.dtype, segments)

    @classmethod
    def of_length(cls, length: int, dtype: np.dtype[np.floating], segments: Sequence[Segment] = ()) -> VectorLayout:
        """The layout of vectors of so many elements."""
        return cls(length, dtype, tuple(segments) or one_segment(length))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def stretches(self) -> list[slice]:
        """The tensors' elements, without those that have none."""
        return [slice(one.start, one.stop) for one in self.segments if one.start < one.stop]


@dataclass(frozen=True, slots=True)
class CodecTurn:
    """Sender and round of an encoding, which determine its random numbers."""

    seed: int
    node: int
    round: int
    part: int = 0
    """Index among several vectors of the same node and round, from 1 on; 0: a single one."""

    @property
    def own(self) -> np.random.Generator:
        """Random numbers of this node alone."""
        return seeds.stream(self.seed, "codec", self.node, self.round, *self._part)

    @property
    def common(self) -> np.random.Generator:
        """Random numbers that all draw alike in this round."""
        return seeds.stream(self.seed, "codec of all", self.round, *self._part)

    @property
    def _part(self) -> tuple[int, ...]:
        return (self.part,) if self.part else ()


@dataclass(frozen=True)
class Codec(ABC):
    """An encoding of vectors in fewer bytes.

    Given vectors are finite, and so are their squares (`vectors.summable`).
    """

    name: str

    @property
    def unbiased(self) -> bool:
        """Whether decoding is unbiased over the codec's random numbers."""
        return False

    @property
    def remembers(self) -> bool:
        """Whether a sender adds what was left out to its next vector; of no use where the mean is right by itself."""
        return not self.unbiased

    @abstractmethod
    def contraction(self, layout: VectorLayout) -> float:
        """Return c, 0 <= c <= 1: the decoded is off by (1 - c) ||v||² at most, in the mean; 0: no such bound."""

    @abstractmethod
    def size(self, layout: VectorLayout, round: int) -> int:
        """Return the length in bytes of every payload of this round."""

    @abstractmethod
    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:
        """Return the payload of a vector [d]; the same bits wherever and however often it is asked for."""

    def decode(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:
        """Return the vector that a payload encodes, frozen, [d].

        Raises ProtocolError for a payload of no vector of this layout: its length, a count, a level, an index, a number
        that is not finite or too large to be added.
        """
        if payload.dtype != np.uint8 or payload.ndim != 1 or payload.size != self.size(layout, turn.round):
            raise self.refused(layout, f"has {payload.size} bytes, not {self.size(layout, turn.round)}")
        vector = self.decoded(payload, layout, turn)
        if not summable(vector):
            raise self.refused(layout, "holds numbers that are not finite, or too large")
        return frozen(vector)

    @abstractmethod
    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:
        """Return what a payload of a right length stands for.  Raises ProtocolError as `decode`."""

    def refused(self, layout: VectorLayout, why: str) -> ProtocolError:
        """Return the error for a payload that no codec can produce."""
        text = f"{self.name} of {layout.length} elements: a payload {why}"
        return ProtocolError(text, "Were all started from the same experiment file?")


class LinearCodec(Codec):
    """A codec with additive payloads: the sum of the payloads decodes to the sum of the vectors.

    All senders encode alike in a round: the choice is a function of (seed, round).
    """

    @abstractmethod
    def elements(self, length: int) -> int:
        """Return the number of elements that are sent of a vector of `length`."""

    @abstractmethod
    def reduced(self, vector: Vector, turn: CodecTurn) -> Vector:
        """Return the elements that are sent, [elements], of the vector's type."""

    @abstractmethod
    def restored(self, reduced: Vector, length: int, turn: CodecTurn) -> Vector:
        """Return the vector [length] that such elements stand for, or sums of them; frozen."""

    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:  # noqa: ARG002
        return as_bytes(self.reduced(vector, turn))

    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:
        return self.restored(of_bytes(payload, layout.dtype), layout.length, turn)

    def size(self, layout: VectorLayout, round: int) -> int:  # noqa: ARG002
        return self.elements(layout.length) * layout.itemsize


def as_bytes(*arrays: npt.NDArray[Any]) -> Payload:
    """Return arrays as one payload, little-endian, one after the other."""
    parts = [np.ascontiguousarray(one, one.dtype.newbyteorder("<")).view(np.uint8).reshape(-1) for one in arrays]
    return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)


def of_bytes(payload: Payload, kind: Any) -> npt.NDArray[Any]:
    """Return the numbers of a type that stand in a payload; new memory, of this machine's order."""
    little = np.dtype(kind).newbyteorder("<")
    return np.frombuffer(payload.tobytes(), little).astype(np.dtype(kind))
