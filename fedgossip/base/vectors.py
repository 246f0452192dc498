"""Frozen vectors, and the one function that owns the order of summation.

A vector is a one-dimensional float32 or float64 array, read-only once passed on: it is sent without a copy, stored, and
shared.  A frozen one may have other readers; one received over a link is writeable, belongs to its receiver, and is
consumed by the sum that includes it.
"""

from __future__ import annotations

import hashlib
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, singledispatch
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.floating]
Array = TypeVar("Array")
"""A Vector, or another type registered with `linear_of`."""

RowGroups = Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]]
"""(nodes [g], ids [g, k], weights [g, k]) for nodes with equal numbers k of terms; ids ascend in each row."""

Vectors = Sequence[Vector] | npt.NDArray[np.floating]
"""n vectors [d], or [n, d]."""

WATCHED_BLOCK, COLUMNS = 1 << 17, 256
"""Number of values compared at a time: 1 MiB of float64; and the minimum number of columns."""

LONG_ROW = 4096
"""Minimum number of columns for mixing row by row."""

SCALED_MOST = 1 << 25
"""Maximum number of row elements scaled at once, 128 MiB of float32; larger blocks would be read from memory again."""

VERY_SHORT = 256
"""Maximum number of elements for which numpy's own allocation is quick."""

WEIGHTS_KEPT = 4096
"""Maximum number of cached weights in the vectors' type."""

BLOCK = 32_768  # elements; 128 KiB of float32: the running sum and the product stay in the second-level cache

# malloc reuses blocks below this size.  A fresh block of this size or more costs a page fault per 4 KiB, and copying
# into it runs at about half the speed of warm memory.
_POOLED_BYTES = 1 << 20
_POOLED_BLOCKS = 12
_POOLED_SIZES = 3  # a whole gradient, chunks of it, and the last chunk
_PAGE_BYTES = 4096


Blocks = list[npt.NDArray[np.uint8]]


def _references(blocks: Blocks) -> Iterator[int]:
    """Count the references to each block, including this loop's: a view, a sender or a mailbox adds one."""
    for block in blocks:
        yield sys.getrefcount(block)


def _count_of_a_free_block(references: Callable[[Blocks], Iterator[int]] = _references) -> int | None:
    """Measure the `references` of a block without a view, by CPython; None if a view does not add exactly one."""
    if sys.implementation.name != "cpython":
        return None
    blocks: Blocks = [np.empty(8, np.uint8)]
    (free,) = references(blocks)
    view = blocks[0][:]
    (viewed,) = references(blocks)
    other = view.view(np.float32)  # as in `empty`; views of views refer to the block itself
    del view
    (viewed_by_type,) = references(blocks)
    del other
    (freed,) = references(blocks)
    return free if (viewed, viewed_by_type, freed) == (free + 1, free + 1, free) else None


class _Pool:
    """Warm memory: views of blocks without other references.

    `free`: reference count of such a block; None if counts are unreliable (then new blocks are used).
    """

    def __init__(self, free: int | None) -> None:
        self._free = free
        self._blocks: dict[int, Blocks] = {}  # by size, the most recently used last
        self._lock = threading.Lock()

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        if self._free is None:
            return np.empty(size, np.uint8)
        room = -(-size // _PAGE_BYTES) * _PAGE_BYTES  # vectors of nearly the same length share blocks
        with self._lock:
            blocks = self._blocks[room] = self._blocks.pop(room, [])
            for place, count in enumerate(_references(blocks)):
                if count == self._free:
                    return blocks[place][:size]
            if len(self._blocks) > _POOLED_SIZES:
                del self._blocks[next(iter(self._blocks))]
            del blocks[: max(0, len(blocks) - _POOLED_BLOCKS + 1)]
            blocks.append(np.empty(room, np.uint8))
            return blocks[-1][:size]


_pool = _Pool(_count_of_a_free_block())


def empty(length: int, dtype: npt.DTypeLike) -> Vector:
    """Return an uninitialised vector of `length` elements, in warm memory if available.

    Raises ValueError for a negative length.
    """
    kind = np.dtype(dtype)
    size = length * kind.itemsize
    if size < _POOLED_BYTES:
        return np.empty(length, kind)
    return _pool.take(size).view(kind)


def frozen(vector: Vector) -> Vector:
    """Return `vector` itself, of any shape, read-only from now on.  Earlier views stay writable: drop them."""
    if vector.flags.writeable:
        vector.setflags(write=False)
    return vector


Factor = float | npt.NDArray[np.floating]
"""A number, or for vectors [n, d] an array [n, 1] with one per row."""


def linear(*terms: tuple[Factor, Array]) -> Array:
    """Return factor_1 * vector_1 + factor_2 * vector_2 + ... as a new frozen array, [d] or [n, d].

    Each product, and each sum in the given order, is rounded; factors are rounded to the vectors' type first.  All
    terms have one shape and type; other array types register with `linear_of`.  Raises ValueError for no terms.
    """
    if not terms:
        raise ValueError("nothing to add up")
    found: Array = linear_of(terms[0][1], terms)
    return found


@singledispatch
def linear_of(first: Any, terms: Sequence[tuple[Factor, Any]]) -> Any:  # noqa: ARG001
    """Return `linear` of the terms, by the kind of the first vector.  Raises TypeError for an unregistered type."""
    raise TypeError(f"a {type(first).__name__} is no vector; see vectors.linear_of")


@linear_of.register
def _linear_of_numpy(first: np.ndarray, terms: Sequence[tuple[Factor, Vector]]) -> Vector:
    total = empty(first.size, first.dtype).reshape(first.shape)
    (factor, _), *rest = terms
    exact = rest and _is_one(factor)  # no product needed
    running = first if exact else np.multiply(first, _rounded(factor, first), out=total)
    for factor, vector in rest:
        if _is_one(factor):
            running = np.add(running, vector, out=total)
        # the bits of adding the product with -1, without the product
        elif _is_one(-factor):
            running = np.subtract(running, vector, out=total)
        else:
            running = np.add(running, vector * _rounded(factor, first), out=total)
    return frozen(total)


def _is_one(factor: Factor) -> bool:
    return not isinstance(factor, np.ndarray) and factor == 1


def _rounded(factor: Factor, vector: Vector) -> Any:
    return factor.astype(vector.dtype) if isinstance(factor, np.ndarray) else vector.dtype.type(factor)


def add(left: Array, right: Array) -> Array:
    """Return left + right as a new frozen array, [d] or [n, d]."""
    return linear((1, left), (1, right))


def subtract(left: Array, right: Array) -> Array:
    """Return left - right as a new frozen array, [d] or [n, d]."""
    return linear((1, left), (-1, right))


def negated(vector: Vector) -> Vector:
    """Return -vector as a new frozen array; adding it has the same bits as subtracting `vector`."""
    return frozen(np.negative(vector, out=empty(vector.size, vector.dtype).reshape(vector.shape)))


def all_finite(vector: Vector) -> bool:
    """Whether no element of a vector [d] is infinite or not a number; in blocks, at less than the cost of one sum."""
    return all(_finite(vector[at : at + BLOCK]) for at in range(0, vector.size, BLOCK))


def _finite(block: Vector) -> bool:
    return math.isfinite(_squared(block)) or bool(np.isfinite(block).all())


def _squared(vector: Vector) -> float:
    """Return the sum of the squares; infinite or nan if a square is."""
    return float(np.vdot(vector, vector))  # not dot: it warns of an overflow, and silencing that takes longer


def summable(vector: Vector) -> bool:
    """Whether every element and its square are finite: sums and differences then do not overflow (1.8e19 in float32).

    Required of received vectors; a frozen one is checked once per process.
    """
    known = _summable.get(id(vector))
    if known is not None and known() is vector:
        return True
    if not _is_summable(vector):
        return False
    if not vector.flags.writeable:
        if len(_summable) >= SUMMABLE_KEPT:
            _summable.clear()
        _summable[id(vector)] = weakref.ref(vector)
    return True


def unsummable_row(rows: Vector) -> int | None:
    """Return the first row of an array [n, d] that is not `summable`; None if all are."""
    if _is_summable(rows.ravel()):
        return None
    return next((at for at, row in enumerate(rows) if not _is_summable(row)), None)


SUMMABLE_KEPT = 4096
"""Maximum number of cached frozen vectors that passed `summable`."""

_summable: dict[int, weakref.ref[Vector]] = {}


def _is_summable(vector: Vector) -> bool:
    if math.isfinite(_squared(vector)):  # one pass; no square exceeds their sum
        return True
    return largest(vector) <= float(np.sqrt(np.finfo(vector.dtype).max))  # nan propagates


def largest(vector: Vector) -> float:
    """Return the largest |element| of a vector [d], nan if one is nan; in blocks that stay in the cache."""
    blocks = (vector[at : at + BLOCK] for at in range(0, vector.size, BLOCK))
    return float(np.max([(block.max(), -block.min()) for block in blocks]))


def scaled_difference(scale: float, left: Vector, right: Vector) -> Vector:
    """Return scale * (left - right) as a new frozen vector [d]: difference and product are each rounded once."""
    out = np.subtract(left, right, out=empty(left.size, left.dtype))
    out *= left.dtype.type(scale)
    return frozen(out)


def ordered_mix(terms: Sequence[tuple[float, Vector]], into: Vector | None = None) -> Vector:
    """Return sum_j weight_j * vector_j, summed in the given order, each term rounded twice (product, then sum).

    Terms are by ascending node id, including the peer's; the first is only a product; each weight is rounded to the
    vectors' type once.  A matrix product (other order) or a fused multiply-add (rounds once) yields other bits, and
    peers that round differently disagree permanently.

    Shapes: every vector [d], one dtype; returns a frozen [d] of that dtype, in new memory or in `into`, which may be
    one of the vectors.  Raises ValueError for no terms.
    """
    if not terms:
        raise ValueError("nothing to mix")
    first = terms[0][1]
    scaled = [(_convert_weight(weight, first.dtype), vector) for weight, vector in terms]
    if first.size <= BLOCK and into is None:
        return _mixed_at_once(scaled)
    total = empty(first.size, first.dtype) if into is None else into
    product = np.empty(min(BLOCK, first.size), first.dtype)
    # The running sum must not alias a term that is read later.
    spare = np.empty_like(product) if any(total is vector for _, vector in scaled[1:]) else None
    for start in range(0, first.size, BLOCK):
        stop = min(start + BLOCK, first.size)
        out, width = total[start:stop], slice(0, stop - start)
        running = out if spare is None else spare[width]
        _mix_block([(scale, vector[start:stop]) for scale, vector in scaled], out, running, product[width])
    return frozen(total)


@lru_cache(WEIGHTS_KEPT)
def _convert_weight(weight: float, kind: np.dtype[np.floating]) -> Vector:
    """Return a weight in the vectors' type, []: numpy is twice as slow with a Python number."""
    return frozen(np.array(weight, kind))


def _mixed_at_once(terms: Sequence[tuple[Vector, Vector]]) -> Vector:
    """`ordered_mix` of short vectors: allocating each sum is quicker than reusing memory."""
    multiply, add = np.multiply, np.add
    (scale, first), *rest = terms
    total = multiply(first, scale)
    product, running = (None, None) if first.size <= VERY_SHORT else (np.empty_like(first), total)
    for scale, vector in rest:
        total = add(total, multiply(vector, scale, product), running)
    total.setflags(write=False)
    return total


def _mix_block(
    terms: Sequence[tuple[Vector | np.floating, Vector]], out: Vector, running: Vector, product: Vector
) -> None:
    (scale, first), *rest = terms
    np.multiply(first, scale, out=running if rest else out)
    for left, (scale, vector) in zip(range(len(rest) - 1, -1, -1), rest, strict=True):
        np.multiply(vector, scale, out=product)
        np.add(running, product, out=running if left else out)


def ordered_mix_rows(
    groups: RowGroups,
    stacked: npt.NDArray[np.floating],
    out: npt.NDArray[np.floating],
) -> None:
    """Write `ordered_mix` of every row at once: out[i] = sum_k weights[i, k] * stacked[ids[i, k]], the same bits.

    `stacked` and `out` are two arrays [n, d].  Long rows are summed one by one; short ones in blocks of columns, read
    from memory once: a call per row would take longer than its sum.
    """
    n, d = stacked.shape
    kind = stacked.dtype
    if d >= LONG_ROW:
        scales = one_scale_each(groups, n, kind) if stacked.size <= SCALED_MOST else None
        if scales is not None:
            _mix_scaled_rows(groups, stacked, scales, out)
        else:
            _mix_row_by_row(groups, stacked, out)
        return
    width = max(64, min(d, (1 << 18) // n))
    scaled = [(nodes, ids.T, weights.T.astype(kind)[:, :, None]) for nodes, ids, weights in groups]
    for start in range(0, d, width):
        block = np.ascontiguousarray(stacked[:, start : start + width])
        for nodes, ids, weights in scaled:
            total = block[ids[0]]
            total *= weights[0]
            for slot in range(1, len(ids)):
                term = block[ids[slot]]
                term *= weights[slot]
                total += term
            out[nodes, start : start + width] = total


def one_scale_each(groups: RowGroups, n: int, kind: np.dtype[np.floating]) -> npt.NDArray[np.floating] | None:
    """Return each row's scale [n] if all its receivers use the same weight, as on regular graphs; else None."""
    scales = np.zeros(n, kind)
    for _, ids, weights in groups:
        scales[ids] = weights
    alike = all(np.array_equal(scales[ids], weights.astype(kind)) for _, ids, weights in groups)
    return scales if alike else None


def _mix_scaled_rows(
    groups: RowGroups,
    stacked: npt.NDArray[np.floating],
    scales: npt.NDArray[np.floating],
    out: npt.NDArray[np.floating],
) -> None:
    """As `_mix_row_by_row`; a row is scaled once, not once per receiver."""
    scaled = list(np.multiply(stacked, scales[:, None], out=empty(stacked.size, stacked.dtype).reshape(stacked.shape)))
    for nodes, ids, _ in groups:
        for node, (first, *rest) in zip(nodes.tolist(), ids.tolist(), strict=True):
            if not rest:
                out[node] = scaled[first]
                continue
            total = np.add(scaled[first], scaled[rest[0]], out[node])
            for source in rest[1:]:
                np.add(total, scaled[source], total)


def _mix_row_by_row(groups: RowGroups, stacked: npt.NDArray[np.floating], out: npt.NDArray[np.floating]) -> None:
    d, product = stacked.shape[1], np.empty(min(BLOCK, stacked.shape[1]), stacked.dtype)
    for nodes, ids, weights in groups:
        for node, sources, scales in zip(nodes.tolist(), ids.tolist(), weights.astype(stacked.dtype), strict=True):
            for start in range(0, d, BLOCK):
                total = out[node, start : start + BLOCK]
                terms = [(w, stacked[j, start : start + BLOCK]) for w, j in zip(scales, sources, strict=True)]
                _mix_block(terms, total, total, product[: total.size])


def digest(vectors: Iterable[Vector]) -> str:
    """Return the sha256 over the raw little-endian bytes of all vectors, in the given order (ascending peer id)."""
    total = hashlib.sha256()
    for vector in vectors:
        little = np.ascontiguousarray(vector, dtype=vector.dtype.newbyteorder("<"))
        total.update(little.view(np.uint8).data)
    return total.hexdigest()


def consensus_distance(vectors: Vectors, since: Vectors | None = None) -> float:
    """Return sqrt(mean_i ||x_i - mean||^2) in float64; `vectors` is [n, d] or n vectors [d].

    `since`: of x_i - since_i, each rounded to the vectors' type.  Raises IndexError for no vectors.
    """
    n, d = len(vectors), len(vectors[0])
    width = min(d, max(COLUMNS, WATCHED_BLOCK // n))
    room, total = np.empty((n, width)), 0.0
    for start in range(0, d, width):
        block = room[:, : min(width, d - start)]
        there = _columns(vectors, start, width)
        block[:] = there if since is None else there - _columns(since, start, width)
        block -= block.mean(axis=0)
        total += float(np.einsum("ij,ij->", block, block))
    return float(np.sqrt(total / n))


def _columns(vectors: Vectors, start: int, width: int) -> npt.NDArray[np.floating]:
    if isinstance(vectors, np.ndarray):
        return vectors[:, start : start + width]
    parts = vectors if len(vectors[0]) == width else [vector[start : start + width] for vector in vectors]
    return np.concatenate(parts).reshape(len(vectors), -1)


def mean(vectors: Sequence[Vector]) -> Vector:
    """Return the mean [d] of n vectors [d], summed in float64 and rounded once to their type.

    Raises IndexError for no vectors.
    """
    total = np.zeros(vectors[0].size, np.float64)
    for vector in vectors:
        total += vector
    return frozen((total / len(vectors)).astype(vectors[0].dtype))
