"""The sender's memory of the parts that its codec omits, for later messages.

    Memoryless           nothing: the codec is unbiased
    Feedback             p = v + e;  C(p) is sent;  e' = p - C(p)
                         (Karimireddy et al., ICML 2019; Stich et al., NeurIPS 2018)
    MomentumCorrection   u = m u + clip(v);  a = a + u;  top-k of a is sent;  sent elements of u and a become 0
    (dgc)

A memory is a tuple of vectors [d], stored by the sender and in its checkpoints.  It is updated when the receiver has
counted the sent vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, Payload, VectorLayout
from fedgossip.algorithms.codecs.sparse import DeepGradient
from fedgossip.base.vectors import Vector, add, frozen, linear, subtract

Memory = tuple[Vector, ...]


class Sender(Protocol):
    """Sends vectors of one layout, one per round."""

    @property
    def codec(self) -> Codec: ...

    def start(self, layout: VectorLayout) -> Memory:
        """Return the initial memory: zeros."""

    def send(self, memory: Memory, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> tuple[Payload, Memory]:
        """Return the message for a vector [d], and the memory after the receiver counted it."""


@dataclass(frozen=True)
class Memoryless:
    codec: Codec

    def start(self, layout: VectorLayout) -> Memory:  # noqa: ARG002
        return ()

    def send(self, memory: Memory, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> tuple[Payload, Memory]:
        return self.codec.encode(vector, layout, turn), memory


@dataclass(frozen=True)
class Feedback:
    codec: Codec

    def start(self, layout: VectorLayout) -> Memory:
        return (frozen(np.zeros(layout.length, layout.dtype)),)

    def send(self, memory: Memory, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> tuple[Payload, Memory]:
        wanted = add(vector, memory[0])
        payload = self.codec.encode(wanted, layout, turn)
        return payload, (subtract(wanted, self.codec.decode(payload, layout, turn)),)


@dataclass(frozen=True)
class MomentumCorrection:
    """`momentum`, 0 <= m < 1, is applied here, before the selection; the optimiser step has none.

    Momentum of sent elements is cleared ("momentum factor masking").  `longest`: maximum norm of a gradient, which is
    1/sqrt(m) of the clip of a mean over m workers ("local gradient clipping").
    """

    codec: DeepGradient
    momentum: float
    longest: float = math.inf

    def start(self, layout: VectorLayout) -> Memory:
        zeros = frozen(np.zeros(layout.length, layout.dtype))
        return zeros, zeros

    def send(self, memory: Memory, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> tuple[Payload, Memory]:
        velocity = linear((self.momentum, memory[0]), (_share(vector, self.longest), vector))
        gathered = add(memory[1], velocity)
        payload = self.codec.encode(gathered, layout, turn)
        places = self.codec.places(payload, layout, turn)
        return payload, (_without(velocity, places), _without(gathered, places))


def _without(vector: Vector, places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Vector:
    left = vector.copy()
    left[places] = 0
    return frozen(left)


def _share(vector: Vector, longest: float) -> float:
    """Return the factor that clips a vector to `longest`."""
    if longest == math.inf:
        return 1
    length = math.sqrt(float(np.square(vector, dtype=np.float64).sum()))
    return longest / length if length > longest else 1


def sender_of(codec: Codec, momentum: float = 0.0, longest: float = math.inf) -> Sender:
    """Return the sender for a codec's vectors; `momentum` and `longest` are for dgc only."""
    if isinstance(codec, DeepGradient):
        return MomentumCorrection(codec, momentum, longest)
    return Feedback(codec) if codec.remembers else Memoryless(codec)
