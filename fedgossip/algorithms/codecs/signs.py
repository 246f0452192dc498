"""The sign of each element, times the mean magnitude of its tensor.

Without a memory of what was left out, steps along signs may climb (Karimireddy, Rebjock, Stich and Jaggi, Error
feedback fixes SignSGD, ICML 2019); with it they descend as the gradient's do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, Payload, VectorLayout, as_bytes, of_bytes
from fedgossip.algorithms.codecs.bits import packed_bytes
from fedgossip.base.vectors import Vector


@dataclass(frozen=True)
class Sign(Codec):
    """d / 8 bytes, and a scale of the vector's type per tensor; 0 goes as positive."""

    name: str = "sign"

    def contraction(self, layout: VectorLayout) -> float:
        """The least, of a tensor with one element that is not 0; ||v||_1² / (d ||v||²) of a tensor v of d elements."""
        return 1 / max(int(part.stop - part.start) for part in layout.stretches)

    def size(self, layout: VectorLayout, round: int) -> int:  # noqa: ARG002
        return layout.itemsize * len(layout.stretches) + packed_bytes(layout.length, 1)

    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:  # noqa: ARG002
        means = [np.abs(vector[part]).mean(dtype=np.float64) for part in layout.stretches]
        return as_bytes(np.array(means, layout.dtype), np.packbits(vector < 0))

    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:  # noqa: ARG002
        """Return what a payload of a right length stands for.  Raises ProtocolError as `decode`."""
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
