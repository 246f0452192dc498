"""Integers modulo 2^32: sums wrap around and have no order, and a uniform mask hides a number completely."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt

from fedgossip.secure.primitives import keystream

Words = npt.NDArray[np.uint32]

RING_BITS = 32
BLOCK = 32_768
"""Number of words of a block; one of the sum and one of a stream, 128 KiB each, stay in the second-level cache."""

STREAMS = 64
"""Number of streams that are added to a block before the next block: the sum passes through memory once for them."""

CHUNK_BYTES = 256 * 1024

_ZEROS = bytes(4 * BLOCK)


def words(numbers: npt.NDArray[np.integer]) -> Words:
    """Return signed integers in the ring, two's complement, as a new array."""
    return numbers.astype(np.int64, copy=False).astype(np.uint32)


def centred(ring: Words) -> npt.NDArray[np.int64]:
    """Return the representatives in [-2^31, 2^31)."""
    return ring.view(np.int32).astype(np.int64)


def little(ring: Words) -> memoryview:
    """Return the words as bytes, little-endian, without a copy where the machine is."""
    return np.ascontiguousarray(ring, dtype="<u4").view(np.uint8).data


def chunks(ring: Words) -> Iterator[memoryview]:
    """Yield the words as bytes, CHUNK_BYTES at a time."""
    view = little(ring)
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def add_streams(total: Words, keys: Iterable[bytes]) -> None:
    """Add the keystream of each key to `total`, in place."""
    _apply(total, keys, np.add)


def subtract_streams(total: Words, keys: Iterable[bytes]) -> None:
    """Subtract the keystream of each key from `total`, in place."""
    _apply(total, keys, np.subtract)


def _apply(total: Words, keys: Iterable[bytes], operation: np.ufunc) -> None:
    buffer = np.empty(BLOCK, "<u4")
    pending = iter(keys)
    while streams := [keystream(key) for key in islice(pending, STREAMS)]:
        for start in range(0, total.size, BLOCK):
            block = total[start : start + BLOCK]
            mask = buffer[: block.size]
            zeros, into = memoryview(_ZEROS)[: 4 * block.size], mask.view(np.uint8).data
            for stream in streams:
                stream.update_into(zeros, into)
                operation(block, mask, out=block)
