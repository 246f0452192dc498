"""Each element in two bytes: as a bfloat16 or as a half, rounded to the nearest, of two equally near to the even one.

bf16 has the exponents of float32 and 8 bits of precision; fp16 has 11 bits between 6.1e-5 and 65504.  An element below
the smallest normal number of its type is off by more than its share, and may be sent as 0: what was left out of it is
in the sender's memory.  So is the remainder of an element beyond 65504.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, Payload, VectorLayout, as_bytes, of_bytes
from fedgossip.base.vectors import Vector

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
    """Return the bits of float32 numbers [d], rounded to the upper 16; what would round to infinity stays finite."""
    bits = np.ascontiguousarray(vector).view(np.uint32)
    sign, size = bits & np.uint32(0x80000000), bits & np.uint32(0x7FFFFFFF)
    size = size + np.uint32(0x7FFF) + ((size >> np.uint32(16)) & np.uint32(1))
    found: np.ndarray[tuple[int], np.dtype[np.uint32]] = sign | np.minimum(
        size & np.uint32(0xFFFF0000), _LARGEST_BFLOAT16
    )
    return found


@dataclass(frozen=True)
class Half(Codec):
    """2 d bytes; an element that is too large for a half goes as the largest one."""

    name: str = "fp16"

    def contraction(self, layout: VectorLayout) -> float:  # noqa: ARG002
        return 1 - 2.0**-16

    def size(self, layout: VectorLayout, round: int) -> int:  # noqa: ARG002
        return 2 * layout.length

    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:  # noqa: ARG002
        return as_bytes(np.clip(vector, -LARGEST_HALF, LARGEST_HALF).astype(np.float16))

    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:  # noqa: ARG002
        return of_bytes(payload, np.float16).astype(layout.dtype)
