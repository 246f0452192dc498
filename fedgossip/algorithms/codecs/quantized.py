"""A few levels for each element, drawn so that the mean over many draws is the element.

qsgd:s     s levels on each side of 0, of the norm of its bucket of 512 elements: ||v|| sign(v) (l or l + 1) / s
           (Alistarh, Grubic, Li, Tomioka and Vojnovic, QSGD, NeurIPS 2017).  E ||Q(v)||² <= t ||v||² with
           t = 1 + min(b / s², sqrt(b) / s) of buckets of b; divided by t it is a contraction, of 1 / t (Koloskova,
           Stich and Jaggi, ICML 2019), for senders that remember.  All levels take equally many bits,
           the number that 2 s + 1 need; the paper's Elias code, which spends fewer on small ones, is not built.
terngrad   -1, 0 or 1 times the largest magnitude of its tensor, after elements are cut to 2.5 standard deviations
           (Wen et al., TernGrad, NeurIPS 2017); of one tensor and one sender: the scales are not shared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, Payload, VectorLayout, as_bytes, of_bytes
from fedgossip.algorithms.codecs.bits import packed, packed_bytes, unpacked
from fedgossip.base.vectors import Vector

BUCKET = 512
"""Elements with one norm."""


@dataclass(frozen=True)
class QSGD(Codec):
    """ceil(d w / 8) bytes with 2^w >= 2 s + 1, and a norm of the vector's type per bucket.  `divided`: by t."""

    levels: int = 7
    divided: bool = False

    @property
    def unbiased(self) -> bool:
        return not self.divided

    def _t(self, length: int) -> float:
        bucket = min(length, BUCKET)
        return 1 + min(bucket / self.levels**2, math.sqrt(bucket) / self.levels)

    @property
    def width(self) -> int:
        """Bits of an element."""
        return (2 * self.levels).bit_length()

    def contraction(self, layout: VectorLayout) -> float:
        return 1 / self._t(layout.length) if self.divided else 0.0

    def size(self, layout: VectorLayout, round: int) -> int:  # noqa: ARG002
        norms = layout.itemsize * -(-layout.length // BUCKET)
        return norms + packed_bytes(layout.length, self.width)

    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:
        d, kind = layout.length, layout.dtype
        squares = np.add.reduceat(np.square(vector, dtype=np.float64), np.arange(0, d, BUCKET))
        norms = np.sqrt(squares).astype(kind)
        level = vector / np.repeat(np.where(norms > 0, norms, 1), BUCKET)[:d]
        level *= kind.type(self.levels)
        level += turn.own.random(d, np.float32)
        np.floor(level, out=level)
        np.clip(level, -self.levels, self.levels, out=level)  # a norm that was rounded down
        codes = (level + kind.type(self.levels)).astype(np.uint8)
        return as_bytes(norms, packed(codes, self.width))

    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:  # noqa: ARG002
        """Return what a payload of a right length stands for.  Raises ProtocolError as `decode`."""
        ends = layout.itemsize * -(-layout.length // BUCKET)
        norms, codes = of_bytes(payload[:ends], layout.dtype), unpacked(payload[ends:], self.width, layout.length)
        if codes is None or codes.max() > 2 * self.levels:
            raise self.refused(layout, f"has a level above {self.levels}")
        if not norms.min() >= 0:  # nor of a nan
            raise self.refused(layout, "has a negative norm")
        vector = codes.astype(layout.dtype)
        vector -= layout.dtype.type(self.levels)
        vector /= layout.dtype.type(self.levels)  # and not the norm, which may be the least number there is
        with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite
            vector *= np.repeat(norms, BUCKET)[: layout.length]
            if self.divided:
                vector /= layout.dtype.type(self._t(layout.length))
        return vector


@dataclass(frozen=True)
class TernGrad(Codec):
    """d / 4 bytes, and a scale of the vector's type per tensor.  `clip`: standard deviations; 0: nothing is cut."""

    clip: float = 2.5

    @property
    def unbiased(self) -> bool:
        return not self.clip

    @property
    def remembers(self) -> bool:
        return False  # its variance is no contraction: what is left out would grow

    def contraction(self, layout: VectorLayout) -> float:  # noqa: ARG002
        return 0.0

    def size(self, layout: VectorLayout, round: int) -> int:  # noqa: ARG002
        return layout.itemsize * len(layout.stretches) + packed_bytes(layout.length, 2)

    def cut(self, tensor: Vector) -> Vector:
        """Return a tensor [k] with its elements cut; one with equal elements is unchanged."""
        deviation = float(np.sqrt(np.square(tensor - tensor.mean(dtype=np.float64), dtype=np.float64).mean()))
        most = tensor.dtype.type(self.clip * deviation)
        return np.clip(tensor, -most, most) if most > 0 else tensor

    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:
        draws, codes = turn.own.random(layout.length, np.float32), np.empty(layout.length, np.uint8)
        scales = np.zeros(len(layout.stretches), layout.dtype)
        for number, part in enumerate(layout.stretches):
            tensor = self.cut(vector[part])
            sizes = np.abs(tensor)
            scales[number] = sizes.max()
            there = draws[part] * scales[number] < sizes
            codes[part] = 1 + np.where(there, np.sign(tensor), 0).astype(np.int8)
        return as_bytes(scales, packed(codes, 2))

    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:  # noqa: ARG002
        """Return what a payload of a right length stands for.  Raises ProtocolError as `decode`."""
        ends = layout.itemsize * len(layout.stretches)
        scales, codes = of_bytes(payload[:ends], layout.dtype), unpacked(payload[ends:], 2, layout.length)
        if codes is None or codes.max() > 2:
            raise self.refused(layout, "has a level that is not -1, 0 or 1")
        if not scales.min() >= 0:
            raise self.refused(layout, "has a negative scale")
        vector = codes.astype(layout.dtype)
        vector -= 1
        with np.errstate(invalid="ignore"):
            for scale, part in zip(scales, layout.stretches, strict=True):
                vector[part] *= scale
        return vector
