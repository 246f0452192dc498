"""Interface of a codec: it encodes a vector [d] in fewer bytes, and its receiver decodes it.

A payload is one array of bytes, little-endian, indices and scales included, of a length that follows from (d, type,
tensors, round).  A codec has no memory; `senders` store the omitted part.
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
"""Bytes: uint8, [bytes]."""


@dataclass(frozen=True, slots=True)
class VectorLayout:
    """The layout of encoded vectors: `length` elements of `dtype`, the tensors `segments` concatenated."""

    length: int
    dtype: np.dtype[np.floating]
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, vector: Vector, segments: Sequence[Segment] = ()) -> VectorLayout:
        """Return the layout of a vector [d]; without segments it is one tensor."""
        return cls.of_length(vector.size, vector.dtype, segments)

    @classmethod
    def of_length(cls, length: int, dtype: np.dtype[np.floating], segments: Sequence[Segment] = ()) -> VectorLayout:
        """Return the layout of vectors of `length` elements."""
        return cls(length, dtype, tuple(segments) or one_segment(length))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def stretches(self) -> list[slice]:
        """Return the elements of each non-empty tensor."""
        return [slice(one.start, one.stop) for one in self.segments if one.start < one.stop]


@dataclass(frozen=True, slots=True)
class CodecTurn:
    """Sender and round of an encoding, which determine its random numbers."""

    seed: int
    node: int
    round: int
    part: int = 0
    """Index of a vector, from 1 on, if the node sends several in a round; 0: a single one."""

    @property
    def own(self) -> np.random.Generator:
        """Return a random generator of this node."""
        return seeds.stream(self.seed, "codec", self.node, self.round, *self._part)

    @property
    def common(self) -> np.random.Generator:
        """Return the random generator that all nodes share in this round."""
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
        """Whether a sender adds the omitted part to its next vector; useless if decoding is unbiased."""
        return not self.unbiased

    @abstractmethod
    def contraction(self, layout: VectorLayout) -> float:
        """Return c, 0 <= c <= 1: the expected squared error of decoding is at most (1 - c) ||v||²; 0: no such bound."""

    @abstractmethod
    def size(self, layout: VectorLayout, round: int) -> int:
        """Return the length in bytes of every payload of this round."""

    @abstractmethod
    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:
        """Return the payload of a vector [d]; every call returns the same bits."""

    def decode(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:
        """Return the decoded vector of a payload, frozen, [d].

        Raises ProtocolError for a payload that encodes no vector of this layout: its length, a count, a level, an
        index, a number that is not finite or too large for a sum.
        """
        if payload.dtype != np.uint8 or payload.ndim != 1 or payload.size != self.size(layout, turn.round):
            raise self.refused(layout, f"has {payload.size} bytes, not {self.size(layout, turn.round)}")
        vector = self.decoded(payload, layout, turn)
        if not summable(vector):
            raise self.refused(layout, "holds numbers that are not finite, or too large")
        return frozen(vector)

    @abstractmethod
    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:
        """Return the decoded vector of a payload of the right length.  Raises ProtocolError as `decode`."""

    def refused(self, layout: VectorLayout, why: str) -> ProtocolError:
        """Return the error for a payload that no codec can produce."""
        text = f"{self.name} of {layout.length} elements: a payload {why}"
        return ProtocolError(text, "Were all started from the same experiment file?")


class LinearCodec(Codec):
    """A codec with additive payloads: the sum of the payloads decodes to the sum of the vectors.

    All senders of a round select the same elements, by a function of (seed, round).
    """

    @abstractmethod
    def elements(self, length: int) -> int:
        """Return the number of sent elements of a vector of `length`."""

    @abstractmethod
    def reduced(self, vector: Vector, turn: CodecTurn) -> Vector:
        """Return the sent elements, [elements], in the vector's type."""

    @abstractmethod
    def restored(self, reduced: Vector, length: int, turn: CodecTurn) -> Vector:
        """Return the vector [length] that such elements, or sums of them, encode; frozen."""

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
    """Return the numbers of type `kind` in a payload, copied, in this machine's byte order."""
    little = np.dtype(kind).newbyteorder("<")
    return np.frombuffer(payload.tobytes(), little).astype(np.dtype(kind))
