"""A few unchanged elements: the largest, or those of a common random selection.

    top-k:share        the k = share d elements of the largest magnitude, the first of equal ones; their indices as
                       numbers of 4 bytes, or as a bit for each element if smaller
    random-k:share     k elements that follow from (seed, round): no indices are sent, and payloads can be added
    dgc:share:rounds   top-k of the sender's accumulated gradients (`senders.MomentumCorrection`), with shares of 25 %,
                       6.25 %, 1.56 % and 0.4 % before, for that number of rounds each (Lin, Han, Mao, Wang and Dally,
                       Deep gradient compression, ICLR 2018); 10 rounds by default

k is at least 1 and depends on (d, round) alone, so a receiver computes a payload's length in advance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, LinearCodec, Payload, VectorLayout, as_bytes, of_bytes
from fedgossip.base.vectors import Vector, frozen

WARM_UP = (0.25, 0.0625, 0.015625, 0.004)
"""Shares of the first rounds of dgc, as in the paper (with epochs as stages)."""


def kept(share: float, length: int) -> int:
    """Return the number of elements in a share of `length`: at least one."""
    return max(1, min(length, round(share * length)))


def largest(vector: Vector, k: int) -> npt.NDArray[np.int64]:
    """Return the indices of the k elements of the largest magnitude, ascending; the first of equal ones.

    Selected by the k-th largest value: a partial sort orders equal elements differently by processor.
    """
    sizes = np.abs(vector)
    if k == sizes.size:
        return np.arange(k)
    least = np.partition(sizes, sizes.size - k)[sizes.size - k]
    above = np.flatnonzero(sizes > least)
    equal = np.flatnonzero(sizes == least)[: k - above.size]
    return np.sort(np.concatenate([above, equal]))


@dataclass(frozen=True)
class TopK(Codec):
    """k (4 + 4) bytes of float32, or ceil(d / 8) + 4 k if smaller."""

    share: float = 0.01

    def k(self, length: int, round: int) -> int:  # noqa: ARG002
        """Return the number of elements sent in a round."""
        return kept(self.share, length)

    def contraction(self, layout: VectorLayout) -> float:
        return kept(self.share, layout.length) / layout.length

    def size(self, layout: VectorLayout, round: int) -> int:
        k = self.k(layout.length, round)
        return min(4 * k, -(-layout.length // 8)) + layout.itemsize * k

    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:
        places = largest(vector, self.k(layout.length, turn.round))
        return as_bytes(vector[places], self._encode_places(places, layout))

    def places(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> npt.NDArray[np.int64]:
        """Return the indices of a payload's elements, strictly ascending.  Raises ProtocolError as `decode`."""
        k = self.k(layout.length, turn.round)
        places_bytes = payload[layout.itemsize * k :]
        if _uses_bits(k, layout):
            bits = np.unpackbits(places_bytes)
            places = np.flatnonzero(bits)
            if places.size != k:
                raise self.refused(layout, f"has {places.size} places for {k} elements")
        else:
            places = of_bytes(places_bytes, np.uint32).astype(np.int64)
        if places[-1] >= layout.length or (np.diff(places) <= 0).any():
            raise self.refused(layout, "has places that do not ascend, or one beyond the end")
        return places

    def _encode_places(
        self, places: npt.NDArray[np.int64], layout: VectorLayout
    ) -> npt.NDArray[np.uint8] | npt.NDArray[np.uint32]:
        if not _uses_bits(places.size, layout):
            return places.astype(np.uint32)
        bits = np.zeros(layout.length, np.bool_)
        bits[places] = True
        return np.packbits(bits)

    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:
        places = self.places(payload, layout, turn)
        vector = np.zeros(layout.length, layout.dtype)
        vector[places] = of_bytes(payload[: layout.itemsize * places.size], layout.dtype)
        return vector


def _uses_bits(k: int, layout: VectorLayout) -> bool:
    return -(-layout.length // 8) < 4 * k


@dataclass(frozen=True)
class DeepGradient(TopK):
    """Top-k with a larger share at first: each larger one of WARM_UP, for `stretch` rounds; 0: none."""

    stretch: int = 10

    def k(self, length: int, round: int) -> int:
        shares = [share for share in WARM_UP if share > self.share]
        stage = round // self.stretch if self.stretch else len(shares)
        return kept(shares[stage] if stage < len(shares) else self.share, length)


@dataclass(frozen=True)
class RandomK(LinearCodec):
    """k elements of the vector's type, 4 k bytes of float32: a contraction; `scaled` by d / k: unbiased."""

    share: float = 0.01
    scaled: bool = False

    @property
    def unbiased(self) -> bool:
        return self.scaled

    def contraction(self, layout: VectorLayout) -> float:
        return 0.0 if self.scaled else kept(self.share, layout.length) / layout.length

    def elements(self, length: int) -> int:
        return kept(self.share, length)

    def chosen(self, length: int, turn: CodecTurn) -> npt.NDArray[np.int64]:
        """Return the indices of this round, ascending; the same for every node."""
        places = turn.common.choice(length, self.elements(length), replace=False, shuffle=False)
        return np.sort(places)

    def reduced(self, vector: Vector, turn: CodecTurn) -> Vector:
        elements = vector[self.chosen(vector.size, turn)]
        if self.scaled:
            elements *= vector.dtype.type(vector.size / elements.size)
        return elements

    def restored(self, reduced: Vector, length: int, turn: CodecTurn) -> Vector:
        vector = np.zeros(length, reduced.dtype)
        vector[self.chosen(length, turn)] = reduced
        return frozen(vector)
