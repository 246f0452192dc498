"""Codecs that round each element: to two bytes, to one, to a few levels, or to its sign.

    qsgd:s     s levels on each side of 0, of the norm of its bucket of 512 elements: ||v|| sign(v) (l or l + 1) / s,
               unbiased (Alistarh, Grubic, Li, Tomioka and Vojnovic, QSGD, NeurIPS 2017).  E ||Q(v)||² <= t ||v||²,
               t = 1 + min(b / s², sqrt(b) / s) of buckets of b; divided by t a contraction, of 1 / t (Koloskova, Stich
               and Jaggi, ICML 2019), for senders with memory.  Levels take equal bits, without the paper's Elias code.
    terngrad   -1, 0 or 1 times the largest magnitude of its tensor, after a cut to 2.5 standard deviations, unbiased
               (Wen et al., TernGrad, NeurIPS 2017); the scales of tensors and senders are separate.
    sign       times the mean magnitude of its tensor.  Without an error memory steps may climb (Karimireddy, Rebjock,
               Stich and Jaggi, Error feedback fixes SignSGD, ICML 2019).
    int8:B     255 levels, scaled by the largest magnitude of every B elements, to the nearest, or at random so that the
               mean is right ("stochastic").
    bf16 fp16  8 bits of precision and the exponents of float32; 11 bits between 6.1e-5 and 65504.  To the nearest, ties
               to even.  The sender's memory stores the clipped part of elements outside that range.

Numbers of a few bits are packed, the first in the highest bits of the first byte.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, Payload, VectorLayout, as_bytes, of_bytes
from fedgossip.base.vectors import Vector

BUCKET = 512
"""Number of elements with a common norm."""


@dataclass(frozen=True)
class QSGD(Codec):
    """ceil(d w / 8) bytes with 2^w >= 2 s + 1, and a norm of the vector's type per bucket.  `divided`: divide by t."""

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
        """Number of bits of an element."""
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
        """Return the decoded vector of a payload of the right length.  Raises ProtocolError as `decode`."""
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
    """d / 4 bytes, and a scale of the vector's type per tensor.  `clip`: standard deviations; 0: no clipping."""

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
        """Return a tensor [k] with clipped elements; one with equal elements is unchanged."""
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
        """Return the decoded vector of a payload of the right length.  Raises ProtocolError as `decode`."""
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


Bytes = npt.NDArray[np.uint8]

_BLOCK = 1 << 16  # numbers at a time: one byte per bit would not fit where the payload did; a multiple of 8


def packed_bytes(count: int, width: int) -> int:
    """Return the number of bytes of `count` numbers of `width` bits."""
    return -(-count * width // 8)


def packed(codes: Bytes, width: int) -> Bytes:
    """Return numbers below 2^width, [count], as bytes; the bits after the last are 0.  1 <= width <= 8."""
    if width == 8:
        return codes
    if 8 % width == 0:
        several = np.zeros((packed_bytes(codes.size, width), 8 // width), np.uint8)
        several.reshape(-1)[: codes.size] = codes
        return _side_by_side(several, width)
    blocks = [codes[at : at + _BLOCK] for at in range(0, codes.size, _BLOCK)]
    return np.concatenate([np.packbits(np.unpackbits(one[:, None], axis=1)[:, 8 - width :]) for one in blocks])


def unpacked(data: Bytes, width: int, count: int) -> Bytes | None:
    """Return the `count` numbers given to `packed`; None if a bit after the last is not 0."""
    if width == 8:
        return data
    if 8 % width == 0:
        several = np.empty((data.size, 8 // width), np.uint8)
        for place in range(8 // width):
            several[:, place] = (data >> (8 - width * (place + 1))) & ((1 << width) - 1)
        found = several.reshape(-1)
        return None if found[count:].any() else found[:count]
    whole = np.empty(count, np.uint8)
    step = _BLOCK * width // 8
    weights = (1 << np.arange(width - 1, -1, -1)).astype(np.uint8)
    for number, at in enumerate(range(0, data.size, step)):
        start = number * _BLOCK
        bits = np.unpackbits(data[at : at + step])
        here = min(_BLOCK, count - start)
        if bits[here * width :].any():
            return None
        whole[start : start + here] = bits[: here * width].reshape(here, width) @ weights
    return whole


def _side_by_side(several: Bytes, width: int) -> Bytes:
    """Return a byte for each row [8 / width] of numbers."""
    whole: Bytes = several[:, 0] << np.uint8(8 - width)
    for place in range(1, several.shape[1]):
        whole |= several[:, place] << np.uint8(8 - width * (place + 1))
    return whole


@dataclass(frozen=True)
class Sign(Codec):
    """d / 8 bytes, and a scale of the vector's type per tensor; 0 is encoded as positive."""

    name: str = "sign"

    def contraction(self, layout: VectorLayout) -> float:
        """Return the minimum, reached by a tensor with one nonzero element; a tensor v has ||v||_1² / (d ||v||²)."""
        return 1 / max(int(part.stop - part.start) for part in layout.stretches)

    def size(self, layout: VectorLayout, round: int) -> int:  # noqa: ARG002
        return layout.itemsize * len(layout.stretches) + packed_bytes(layout.length, 1)

    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:  # noqa: ARG002
        means = [np.abs(vector[part]).mean(dtype=np.float64) for part in layout.stretches]
        return as_bytes(np.array(means, layout.dtype), np.packbits(vector < 0))

    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:  # noqa: ARG002
        """Return the decoded vector of a payload of the right length.  Raises ProtocolError as `decode`."""
        ends = layout.itemsize * len(layout.stretches)
        scales, bits = of_bytes(payload[:ends], layout.dtype), np.unpackbits(payload[ends:])
        if bits[layout.length :].any():
            raise self.refused(layout, "has a sign beyond the end")
        if not scales.min() >= 0:  # nor of a nan
            raise self.refused(layout, "has a negative scale")
        vector = np.empty(layout.length, layout.dtype)
        for scale, part in zip(scales, layout.stretches, strict=True):
            vector[part] = np.where(bits[part], -scale, scale)
        return vector


LEVELS = 127
"""Number of levels on each side of 0."""


@dataclass(frozen=True)
class Int8(Codec):
    """d bytes, and a scale of the vector's type for every block: d + 4 ceil(d / block) of float32."""

    block: int = 256
    stochastic: bool = False

    @property
    def unbiased(self) -> bool:
        return self.stochastic

    def contraction(self, layout: VectorLayout) -> float:  # noqa: ARG002
        """Return the bound of rounding to nearest: errors of half a level of the largest, in `block` elements."""
        return 0.0 if self.stochastic else max(0.0, 1 - self.block / (2 * LEVELS) ** 2)

    def size(self, layout: VectorLayout, round: int) -> int:  # noqa: ARG002
        return layout.length + layout.itemsize * -(-layout.length // self.block)

    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:
        starts = np.arange(0, layout.length, self.block)
        scales = np.maximum.reduceat(np.abs(vector), starts)
        levels = vector / np.repeat(np.where(scales > 0, scales, 1), self.block)[: layout.length]
        levels *= layout.dtype.type(LEVELS)
        if self.stochastic:
            levels += turn.own.random(layout.length, np.float32)
            np.floor(levels, out=levels)
        else:
            np.rint(levels, out=levels)
        np.clip(levels, -LEVELS, LEVELS, out=levels)
        return as_bytes(scales, levels.astype(np.int8))

    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:  # noqa: ARG002
        """Return the decoded vector of a payload of the right length.  Raises ProtocolError as `decode`."""
        ends = payload.size - layout.length
        scales, levels = of_bytes(payload[:ends], layout.dtype), payload[ends:].view(np.int8)
        if levels.min() < -LEVELS:
            raise self.refused(layout, f"has a level below -{LEVELS}")
        if not scales.min() >= 0:  # nor of a nan
            raise self.refused(layout, "has a negative scale")
        vector = levels.astype(layout.dtype)
        vector /= layout.dtype.type(LEVELS)  # and not the scale, which may be the least number there is
        with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite
            vector *= np.repeat(scales, self.block)[: layout.length]
        return vector


LARGEST_HALF = float(np.finfo(np.float16).max)
_LARGEST_BFLOAT16 = np.uint32(0x7F7F0000)


@dataclass(frozen=True)
class BFloat16(Codec):
    """2 d bytes."""

    name: str = "bf16"

    def contraction(self, layout: VectorLayout) -> float:  # noqa: ARG002
        return 1 - 2.0**-16  # half a unit in the eighth bit is 2^-9 of an element

    def size(self, layout: VectorLayout, round: int) -> int:  # noqa: ARG002
        return 2 * layout.length

    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:  # noqa: ARG002
        return as_bytes((rounded_bits(vector.astype(np.float32)) >> np.uint32(16)).astype(np.uint16))

    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:  # noqa: ARG002
        bits = of_bytes(payload, np.uint16).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).astype(layout.dtype)


def rounded_bits(vector: Vector) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return the bits of float32 numbers [d], rounded to the upper 16, without rounding up to infinity."""
    bits = np.ascontiguousarray(vector).view(np.uint32)
    sign, size = bits & np.uint32(0x80000000), bits & np.uint32(0x7FFFFFFF)
    size = size + np.uint32(0x7FFF) + ((size >> np.uint32(16)) & np.uint32(1))
    found: np.ndarray[tuple[int], np.dtype[np.uint32]] = sign | np.minimum(
        size & np.uint32(0xFFFF0000), _LARGEST_BFLOAT16
    )
    return found


@dataclass(frozen=True)
class Half(Codec):
    """2 d bytes; an element too large for a half is encoded as the largest half."""

    name: str = "fp16"

    def contraction(self, layout: VectorLayout) -> float:  # noqa: ARG002
        return 1 - 2.0**-16

    def size(self, layout: VectorLayout, round: int) -> int:  # noqa: ARG002
        return 2 * layout.length

    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:  # noqa: ARG002
        return as_bytes(np.clip(vector, -LARGEST_HALF, LARGEST_HALF).astype(np.float16))

    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:  # noqa: ARG002
        return of_bytes(payload, np.float16).astype(layout.dtype)
