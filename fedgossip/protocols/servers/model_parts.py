"""A worker's copy of the model: all of a vector, or the needed rows of a table.

`ModelParts` is the interface that a worker uses, so that one machine serves a vector and a table (`row_parts`).

Vectors of a shard in transfer: cut into pieces, and assembled from them in any order of arrival.

A worker's part of a vector model whose gradients are pushed by a codec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.codecs.base import Payload
from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.errors import TrainingError
from fedgossip.base.keyed_rows import Keys, Rows, frozen_keys
from fedgossip.base.vectors import Vector, empty, frozen, summable
from fedgossip.core.machine import Effect, RowsChosen, Train
from fedgossip.core.messages import PIECE_BYTES, CodedPush, Message, ShardPull, ShardPush
from fedgossip.protocols.allreduce.chunk_links import Chunk
from fedgossip.protocols.servers.shard_coding import CodedPushes

PushFacts = tuple[int, int, int, int, int, float]
"""(epoch, shard, clock, version, steps, weight) of a push."""


class ModelParts(Protocol):
    """The part of the model that is pulled for a clock, and its gradient."""

    @property
    def model(self) -> Vector:
        """The vector that the run is measured by, [d]."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the elements to pull are known."""
        ...

    @property
    def always_whole(self) -> bool:
        """Whether `model` is all that a gradient needs, in every round, and before the first too."""
        ...

    def choose(self, clock: int) -> list[Effect]:
        """Request the choice of the elements to pull for a clock."""
        ...

    def chosen(self, event: RowsChosen) -> None:
        """Take the choice.  Raises TrainingError for an invalid one."""
        ...

    def fits(self, clock: int) -> bool:
        """Return whether the chosen elements are those of this clock."""
        ...

    def length(self, shard: int) -> int:
        """Return the number of elements to pull of a shard."""
        ...

    def digest(self, shard: int) -> str:
        """Return the digest of their list of keys; empty where they are all."""
        ...

    def pull(self, epoch: int, shard: int, clock: int, first: int) -> list[Message]:
        """Return the messages that request them."""
        ...

    def take(self, pulled: Mapping[int, Vector], clock: int) -> None:
        """Take the pulled elements of all shards for a clock; those of earlier ones are dropped."""
        ...

    def training(self, clock: int, accumulate: int | None) -> Train:
        """Request the gradient at the pulled model."""
        ...

    def divide(self, gradient: Vector | None, clock: int) -> None:
        """Take the gradient of a clock, to be pushed in parts."""
        ...

    def push(self, facts: PushFacts) -> tuple[list[Message], list[Chunk]]:
        """Return the push of a shard: messages to precede it, and the chunks to send until they are acknowledged."""
        ...

    @property
    def saved(self) -> Mapping[str, Vector]:
        """The vectors of a checkpoint beside the model."""
        ...

    def resend_lists(self, shards: Iterable[int]) -> None:
        """Send key lists again for these shards: they have new owners."""
        ...

    def wanted(self, epoch: int, shard: int, digest: str) -> list[Message]:
        """Return the list of keys that a server requests, if it is still in use."""
        ...

    def summary(self) -> list[Effect]:
        """Report the run's traffic, at its end."""
        ...


class WholeParts:
    """A vector: all its elements are pulled and pushed."""

    ready = always_whole = True

    def __init__(self, placement: Placement, schema: str, model: Vector) -> None:
        self.placement, self.schema, self.model = placement, schema, model
        self._gradient: Vector | None = None

    def choose(self, clock: int) -> list[Effect]:  # noqa: ARG002
        return []

    def chosen(self, event: RowsChosen) -> None:  # noqa: ARG002
        raise AssertionError("nothing was asked")

    def fits(self, clock: int) -> bool:  # noqa: ARG002
        return True

    def length(self, shard: int) -> int:
        return self.placement.shards[shard].length

    def digest(self, shard: int) -> str:  # noqa: ARG002
        return ""

    def pull(self, epoch: int, shard: int, clock: int, first: int) -> list[Message]:
        return [ShardPull(epoch, shard, clock, first)]

    def take(self, pulled: Mapping[int, Vector], clock: int) -> None:  # noqa: ARG002
        model = empty(self.model.size, self.model.dtype)
        for shard in self.placement.shards:
            shard.put_into(model, pulled[shard.number])
        self.model, self._gradient = frozen(model), None

    def training(self, clock: int, accumulate: int | None) -> Train:
        return Train(clock, self.model, gradient=True, accumulate=accumulate)

    def divide(self, gradient: Vector | None, clock: int) -> None:  # noqa: ARG002
        assert gradient is not None, "a gradient was asked for"
        self._gradient = gradient

    def push(self, facts: PushFacts) -> tuple[list[Message], list[Chunk]]:
        assert self._gradient is not None, "nothing was divided"
        part = self.placement.shards[facts[1]].taken_from(self._gradient)
        found = [ShardPush(*facts, start, one.size, self.schema, (one,)) for start, one in pieces(part)]
        return [], list[Chunk](found)

    @property
    def saved(self) -> Mapping[str, Vector]:
        return {}

    def resend_lists(self, shards: Iterable[int]) -> None:
        pass

    def wanted(self, epoch: int, shard: int, digest: str) -> list[Message]:  # noqa: ARG002
        return []

    def summary(self) -> list[Effect]:
        return []


def piece_length(kind: np.dtype[Any]) -> int:
    """Return the number of elements of every piece but the last."""
    return PIECE_BYTES // kind.itemsize


def pieces(vector: Vector) -> Iterator[tuple[int, Vector]]:
    """Yield (start, elements) of a frozen vector [n]; views of it, which never change."""
    most = piece_length(vector.dtype)
    for start in range(0, vector.size, most):
        yield start, vector[start : start + most]


KeyedPlace = tuple[int, int, int, int]
"""(rows in all, first row of the piece, its number of rows, elements)."""


def rows_in_piece(width: int, kind: np.dtype[np.floating]) -> int:
    """Return the number of rows of every piece but the last, of `width` elements and a key each."""
    return max(1, PIECE_BYTES // (4 + width * kind.itemsize))


def keyed_pieces(rows: Rows) -> Iterator[tuple[KeyedPlace, tuple[Keys, Vector]]]:
    """Yield (place, (keys, elements)) of some rows, at least one; views of them, which never change."""
    matrix = rows.matrix
    most = rows_in_piece(matrix.shape[1], rows.values.dtype)
    for start in range(0, len(rows.keys), most):
        keys, values = rows.keys[start : start + most], matrix[start : start + most].reshape(-1)
        yield (len(rows.keys), start, keys.size, values.size), (keys, frozen(values))


class Assembly:
    """A vector [length] in arrival.  Invariant: `_missing` are the starts of the missing pieces."""

    def __init__(self, length: int, kind: np.dtype[Any]) -> None:
        self.length, self.kind = length, kind
        self._missing: set[int] = set(range(0, length, piece_length(kind)))
        self._vector: Vector | None = None

    def expects(self, start: int, vectors: Sequence[Vector]) -> bool:
        """Return whether the vectors of a message are a piece of this one."""
        most = piece_length(self.kind)
        fits = _shapes(vectors) == [(self.kind, (min(most, self.length - start),))]
        return start % most == 0 and 0 <= start < self.length and fits

    def has(self, start: int) -> bool:
        """Return whether an expected piece was taken before."""
        return start not in self._missing

    def take(self, start: int, vectors: Sequence[Vector]) -> None:
        """Take a piece that is expected and new; a single piece is not copied."""
        (vector,) = vectors
        self._missing.remove(start)
        if vector.size == self.length:
            self._vector = vector
            return
        if self._vector is None:
            self._vector = empty(self.length, self.kind)
        self._vector[start : start + vector.size] = vector

    def give_back(self, start: int) -> None:
        """Undo the last `take`, of an invalid piece."""
        self._missing.add(start)
        if len(self._missing) == -(-self.length // piece_length(self.kind)):
            self._vector = None

    @property
    def whole(self) -> Vector | None:
        """The vector, frozen, where nothing is missing; else None."""
        return frozen(self._vector) if self._vector is not None and not self._missing else None


class RowAssembly:
    """Rows [of, width] with their keys in arrival.  Invariant: the received keys ascend from row to row.

    Memory is used for received pieces alone, whatever the announced number `of` is.
    """

    def __init__(self, of: int, width: int, kind: np.dtype[np.floating]) -> None:
        self.of, self.width, self.kind = of, width, kind
        self._most = rows_in_piece(width, kind)
        self._pieces: dict[int, tuple[Keys, Vector]] = {}
        self._here = 0

    def expects(self, start: int, vectors: Sequence[npt.NDArray[Any]]) -> bool:
        """Return whether the vectors of a message are a piece of this one, with keys in order with the others."""
        rows = min(self._most, self.of - start)
        shapes = [(np.dtype(np.uint32), (rows,)), (self.kind, (rows * self.width,))]
        if start % self._most or not 0 <= start < self.of or _shapes(vectors) != shapes:
            return False
        keys, before, after = vectors[0], self._pieces.get(start - self._most), self._pieces.get(start + self._most)
        follows = (before is None or before[0][-1] < keys[0]) and (after is None or keys[-1] < after[0][0])
        return follows and bool((keys[1:] > keys[:-1]).all())

    def has(self, start: int) -> bool:
        """Return whether an expected piece was taken before."""
        return start in self._pieces

    def take(self, start: int, vectors: Sequence[npt.NDArray[Any]]) -> None:
        """Take a piece that is expected and new."""
        self._pieces[start] = vectors[0], vectors[1]
        self._here += vectors[0].size

    @property
    def whole(self) -> Rows | None:
        """The rows, where nothing is missing; else None."""
        if self._here < self.of:
            return None
        parts = [self._pieces[start] for start in sorted(self._pieces)]
        keys = np.concatenate([keys for keys, _ in parts])
        return Rows(frozen_keys(keys), frozen(np.concatenate([values for _, values in parts])))


def _shapes(vectors: Sequence[npt.NDArray[Any]]) -> list[Any]:
    return [(vector.dtype, vector.shape) for vector in vectors]


class CodedParts:
    """Wraps `whole` parts, except for pushes: a payload of each shard, the same at every repetition."""

    ready = always_whole = True

    def __init__(self, whole: WholeParts, pushes: CodedPushes) -> None:
        self.whole, self.pushes = whole, pushes
        self._payloads: tuple[Payload, ...] = ()

    @property
    def model(self) -> Vector:
        return self.whole.model

    def choose(self, clock: int) -> list[Effect]:
        return self.whole.choose(clock)

    def chosen(self, event: RowsChosen) -> None:
        self.whole.chosen(event)

    def fits(self, clock: int) -> bool:
        return self.whole.fits(clock)

    def length(self, shard: int) -> int:
        return self.whole.length(shard)

    def digest(self, shard: int) -> str:
        return self.whole.digest(shard)

    def pull(self, epoch: int, shard: int, clock: int, first: int) -> list[Message]:
        return self.whole.pull(epoch, shard, clock, first)

    def take(self, pulled: Mapping[int, Vector], clock: int) -> None:
        self.whole.take(pulled, clock)
        self.pushes.settled(clock)
        self._payloads = ()

    def training(self, clock: int, accumulate: int | None) -> Train:
        return self.whole.training(clock, accumulate)

    def divide(self, gradient: Vector | None, clock: int) -> None:
        assert gradient is not None, "a gradient was asked for"
        if not summable(gradient):
            text = f"round {clock}: a gradient is too large to be added up"
            raise TrainingError(text, "Look at the worker's data, or lower train.lr.")
        self._payloads = self.pushes.payloads(gradient, clock)

    def push(self, facts: PushFacts) -> tuple[list[Message], list[Chunk]]:
        assert self._payloads, "nothing was divided"
        cut, schema = pieces(self._payloads[facts[1]]), self.whole.schema
        return [], [CodedPush(*facts, start, one.size, schema, (one,)) for start, one in cut]

    @property
    def saved(self) -> Mapping[str, Vector]:
        return self.pushes.saved

    def resend_lists(self, shards: Iterable[int]) -> None:
        self.whole.resend_lists(shards)

    def wanted(self, epoch: int, shard: int, digest: str) -> list[Message]:
        return self.whole.wanted(epoch, shard, digest)

    def summary(self) -> list[Effect]:
        return []
