"""Integers modulo 2^32: sums wrap around and have no order, and a uniform mask hides a number completely.

A number may have several words, the lowest first: then it is one modulo 2^(32 width), and sums carry from word to word.
Words summed separately would disclose more than the sum of the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt

from fedgossip.secure.primitives import SHORT_MOST, keystream, short_streams

Words = npt.NDArray[np.uint32]

RING_BITS = 32
BLOCK = 32_768
"""Number of words of a block; one of the sum and one of a stream, 128 KiB each, stay in the second-level cache."""

STREAMS = 64
"""Number of streams added to a block before the next block: the sum passes through memory once for them."""

LONG = 2
"""Number of words in one native number of the processor."""

CHUNK_BYTES = 256 * 1024

Operation = Callable[..., object]
"""Of two arrays of words, and `out`."""

_ZEROS = bytes(4 * BLOCK)
_LOW, _BITS = np.uint64(0xFFFFFFFF), np.uint64(32)


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


def add(total: Words, words: Words, width: int = 1) -> None:
    """Add numbers of `width` words each to `total`, in place."""
    _operations(width)[0](total, words, out=total)


def add_streams(total: Words, keys: Iterable[bytes], width: int = 1) -> None:
    """Add the keystream of each key to `total`, in place."""
    _apply(total, keys, _operations(width)[0])


def subtract_streams(total: Words, keys: Iterable[bytes], width: int = 1) -> None:
    """Subtract the keystream of each key from `total`, in place."""
    _apply(total, keys, _operations(width)[1])


def _operations(width: int) -> tuple[Operation, Operation]:
    """Return addition and subtraction of numbers of `width` words, which divides BLOCK."""
    assert BLOCK % width == 0, "a number lies in one block"
    if width == 1:
        return np.add, np.subtract
    if width == LONG and np.dtype("<u4").isnative:
        return partial(_long, operation=np.add), partial(_long, operation=np.subtract)
    return partial(_carried, width=width), partial(_borrowed, width=width)


def _long(total: Words, words: Words, *, out: Words, operation: Operation) -> None:
    """Two words at a time, as the processor has them."""
    operation(total.view(np.uint64), words.view(np.uint64), out=out.view(np.uint64))


def _carried(total: Words, words: Words, *, out: Words, width: int) -> None:
    carry = np.zeros(total.size // width, np.uint64)
    for k in range(width):
        column = total[k::width].astype(np.uint64) + words[k::width] + carry
        out[k::width] = column & _LOW
        carry = column >> _BITS


def _borrowed(total: Words, words: Words, *, out: Words, width: int) -> None:
    borrow = np.zeros(total.size // width, np.uint64)
    for k in range(width):
        column = total[k::width].astype(np.uint64) - words[k::width] - borrow  # modulo 2^64
        out[k::width] = column & _LOW
        borrow = (column >> _BITS) & np.uint64(1)


def _apply(total: Words, keys: Iterable[bytes], operation: Operation) -> None:
    if total.nbytes <= SHORT_MOST:
        pending = iter(keys)
        while short := short_streams([*islice(pending, STREAMS)], total.nbytes):
            rows = np.frombuffer(b"".join(short), "<u4").reshape(len(short), total.size)
            for row in [np.add.reduce(rows, 0, np.uint32)] if operation in (np.add, np.subtract) else rows:
                operation(total, row, out=total)
        return
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
