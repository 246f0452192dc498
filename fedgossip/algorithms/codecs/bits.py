"""Numbers of a few bits, side by side in bytes: the first in the highest bits of the first byte."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_BLOCK = 1 << 16  # numbers at a time: one byte per bit would not fit where the payload did; a multiple of 8


def packed_bytes(count: int, width: int) -> int:
    """Return how many bytes `count` numbers of `width` bits take."""
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
    """Return the `count` numbers that `packed` took; None where a bit after the last is not 0."""
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
