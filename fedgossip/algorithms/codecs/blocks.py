"""Each element as one of 255 levels between the largest of its block and the negative of that.

int8:B has a scale for every B elements, the largest magnitude among them.  To the nearest level; or by chance to one of
the two that it lies between, so that the mean is right ("stochastic").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, Payload, VectorLayout, as_bytes, of_bytes
from fedgossip.base.vectors import Vector

LEVELS = 127
"""On each side of 0."""


@dataclass(frozen=True)
class Int8(Codec):
    """d bytes, and a scale of the vector's type for every block: d + 4 ceil(d / block) of float32."""

    block: int = 256
    stochastic: bool = False

    @property
    def unbiased(self) -> bool:
        return self.stochastic

    def contraction(self, layout: VectorLayout) -> float:  # noqa: ARG002
        """Nearest: off by half a level of the largest at most, in each of `block` elements."""
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
        """Return what a payload of a right length stands for.  Raises ProtocolError as `decode`."""
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
