"""A worker's copy of the model (`ModelParts`): all of a vector, or the needed rows of a table (`row_parts`).

Shards are sent in pieces, assembled in any order of arrival, and in both directions may be encoded:

    ShardCoding    the codec of each direction, and the decoding: the same at all participants
    CodedPushes    one worker's gradients, and its codec's error memory

Each shard is encoded separately.  A repeated push, also to a shard's next owner, is the same payload.  A pulled shard
is always encoded from the exact elements, so omissions do not accumulate; after the last round shards are sent uncoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, Payload, VectorLayout
from fedgossip.algorithms.codecs.senders import Sender
from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.errors import ProtocolError, TrainingError
from fedgossip.base.keyed_rows import Keys, Rows, frozen_keys
from fedgossip.base.vectors import Vector, empty, frozen, summable
from fedgossip.core.machine import Effect, NodeId, RowsChosen, Train
from fedgossip.core.messages import PIECE_BYTES, CodedPush, Message, ShardPull, ShardPush
from fedgossip.core.task import Segment
from fedgossip.protocols.allreduce.chunk_links import Chunk
from fedgossip.protocols.allreduce.coded_fragments import CodecMemory
from fedgossip.protocols.allreduce.round_sums import Contribution, weight_of

PushFacts = tuple[int, int, int, int, int, float]
"""(epoch, shard, clock, version, steps, weight) of a push."""


class ModelParts(Protocol):
    """The part of the model pulled for a clock, and its gradient."""

    @property
    def model(self) -> Vector:
        """The vector that the run measures, [d]."""

    @property
    def ready(self) -> bool:
        """Whether the elements to pull are known."""

    @property
    def always_whole(self) -> bool:
        """Whether `model` is sufficient for a gradient in every round, including before the first."""

    def choose(self, clock: int) -> list[Effect]:
        """Request the choice of the elements to pull for a clock."""

    def chosen(self, event: RowsChosen) -> None:
        """Store the choice.  Raises TrainingError for an invalid one."""

    def fits(self, clock: int) -> bool:
        """Return whether the chosen elements are those of this clock."""

    def length(self, shard: int) -> int:
        """Return the number of elements to pull of a shard."""

    def digest(self, shard: int) -> str:
        """Return the digest of their list of keys; "" if all elements are pulled."""

    def pull(self, epoch: int, shard: int, clock: int, first: int) -> list[Message]:
        """Return the messages that request them."""

    def take(self, pulled: Mapping[int, Vector], clock: int) -> None:
        """Store the pulled elements of all shards for a clock, and drop those of earlier clocks."""

    def training(self, clock: int, accumulate: int | None) -> Train:
        """Request the gradient at the pulled model."""

    def divide(self, gradient: Vector | None, clock: int) -> None:
        """Store the gradient of a clock, to be pushed in parts."""

    def push(self, facts: PushFacts) -> tuple[list[Message], list[Chunk]]:
        """Return the push of a shard: messages to precede it, and the chunks to send until they are acknowledged."""

    @property
    def saved(self) -> Mapping[str, Vector]:
        """The vectors of a checkpoint in addition to the model."""

    def resend_lists(self, shards: Iterable[int]) -> None:
        """Send key lists again for these shards: they have new owners."""

    def wanted(self, epoch: int, shard: int, digest: str) -> list[Message]:
        """Return the list of keys that a server requests, if it is still in use."""

    def summary(self) -> list[Effect]:
        """Report the run's traffic, at its end."""


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
    """Yield (start, elements) of a frozen vector [n]; the elements are views that never change."""
    most = piece_length(vector.dtype)
    for start in range(0, vector.size, most):
        yield start, vector[start : start + most]


KeyedPlace = tuple[int, int, int, int]
"""(number of rows in all, first row of the piece, its number of rows, number of elements)."""


def rows_in_piece(width: int, kind: np.dtype[np.floating]) -> int:
    """Return the number of rows of every piece but the last, of `width` elements and a key each."""
    return max(1, PIECE_BYTES // (4 + width * kind.itemsize))


def keyed_pieces(rows: Rows) -> Iterator[tuple[KeyedPlace, tuple[Keys, Vector]]]:
    """Yield (place, (keys, elements)) of some rows, at least one; the arrays are views that never change."""
    matrix = rows.matrix
    most = rows_in_piece(matrix.shape[1], rows.values.dtype)
    for start in range(0, len(rows.keys), most):
        keys, values = rows.keys[start : start + most], matrix[start : start + most].reshape(-1)
        yield (len(rows.keys), start, keys.size, values.size), (keys, frozen(values))


class Assembly:
    """A vector [length] during its arrival.  Invariant: `_missing` are the starts of the missing pieces."""

    def __init__(self, length: int, kind: np.dtype[Any]) -> None:
        self.length, self.kind = length, kind
        self._missing: set[int] = set(range(0, length, piece_length(kind)))
        self._vector: Vector | None = None

    def expects(self, start: int, vectors: Sequence[Vector]) -> bool:
        """Return whether the vectors of a message are a piece of this vector."""
        most = piece_length(self.kind)
        fits = _shapes(vectors) == [(self.kind, (min(most, self.length - start),))]
        return start % most == 0 and 0 <= start < self.length and fits

    def has(self, start: int) -> bool:
        """Return whether an expected piece was received before."""
        return start not in self._missing

    def take(self, start: int, vectors: Sequence[Vector]) -> None:
        """Store an expected, new piece; a single piece is not copied."""
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
        """The vector, frozen, if it is complete; else None."""
        return frozen(self._vector) if self._vector is not None and not self._missing else None


class RowAssembly:
    """Rows [of, width] with ascending keys during their arrival; only received pieces use memory, for any `of`."""

    def __init__(self, of: int, width: int, kind: np.dtype[np.floating]) -> None:
        self.of, self.width, self.kind = of, width, kind
        self._most = rows_in_piece(width, kind)
        self._pieces: dict[int, tuple[Keys, Vector]] = {}
        self._here = 0

    def expects(self, start: int, vectors: Sequence[npt.NDArray[Any]]) -> bool:
        """Return whether the vectors of a message are a piece of these rows, with keys in order with the others."""
        rows = min(self._most, self.of - start)
        shapes = [(np.dtype(np.uint32), (rows,)), (self.kind, (rows * self.width,))]
        if start % self._most or not 0 <= start < self.of or _shapes(vectors) != shapes:
            return False
        keys, before, after = vectors[0], self._pieces.get(start - self._most), self._pieces.get(start + self._most)
        follows = (before is None or before[0][-1] < keys[0]) and (after is None or keys[-1] < after[0][0])
        return follows and bool((keys[1:] > keys[:-1]).all())

    def has(self, start: int) -> bool:
        """Return whether an expected piece was received before."""
        return start in self._pieces

    def take(self, start: int, vectors: Sequence[npt.NDArray[Any]]) -> None:
        """Store an expected, new piece."""
        self._pieces[start] = vectors[0], vectors[1]
        self._here += vectors[0].size

    @property
    def whole(self) -> Rows | None:
        """The rows, if they are complete; else None."""
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


@dataclass(frozen=True)
class ShardCoding:
    """`pushing`, `pulling`: codecs; None: uncoded.  `segments`: the tensors of each shard, if it has them whole."""

    placement: Placement
    kind: np.dtype[np.floating]
    seed: int
    rounds: int
    pushing: Codec | None = None
    pulling: Codec | None = None
    segments: tuple[tuple[Segment, ...], ...] = ()

    @cached_property
    def layouts(self) -> tuple[VectorLayout, ...]:
        """The layouts of the shards."""
        shards = self.placement.shards
        return tuple(
            VectorLayout.of_length(one.length, self.kind, self.segments[one.number] if self.segments else ())
            for one in shards
        )

    def push_turn(self, shard: int, worker: NodeId, clock: int) -> CodecTurn:
        """Return the turn of a worker's push of a shard."""
        return CodecTurn(self.seed, worker, clock, shard + 1)

    def push_size(self, shard: int, clock: int) -> int:
        """Return the number of bytes of a push."""
        assert self.pushing
        return self.pushing.size(self.layouts[shard], clock)

    def decode_push(self, payload: Payload, shard: int, worker: NodeId, clock: int) -> Vector:
        """Return the gradient of a shard decoded from a push.  Raises ProtocolError as `Codec.decode`."""
        assert self.pushing
        return self.pushing.decode(payload, self.layouts[shard], self.push_turn(shard, worker, clock))

    def codes_pull(self, clock: int) -> bool:
        """Return whether a pulled shard for this clock of a worker is encoded."""
        return self.pulling is not None and clock < self.rounds

    def pull_size(self, shard: int) -> int:
        """Return the number of bytes of an encoded pulled shard."""
        assert self.pulling
        return self.pulling.size(self.layouts[shard], 0)

    def encode_pull(self, part: Vector, shard: int) -> Payload:
        """Return the payload of a pulled shard; it depends on its elements alone."""
        assert self.pulling
        return frozen(self.pulling.encode(part, self.layouts[shard], CodecTurn(0, 0, 0)))

    def decode_pull(self, payload: Payload, shard: int) -> Vector:
        """Return the shard decoded from a pulled payload.  Raises ProtocolError as `Codec.decode`."""
        assert self.pulling
        return self.pulling.decode(payload, self.layouts[shard], CodecTurn(0, 0, 0))

    def decode_model(self, model: Vector, clock: int) -> Vector:
        """Return the decoded model [d] that workers use at a clock; the first one is not pulled."""
        if clock == 0 or not self.codes_pull(clock):
            return model
        whole = np.empty_like(model)
        for one in self.placement.shards:
            one.put_into(whole, self.decode_pull(self.encode_pull(one.taken_from(model), one.number), one.number))
        return frozen(whole)


class CodedPushes(CodecMemory):
    """One worker's gradients, with a codec for each shard.

    If a clock is closed without this worker, its push is lost, but not the error memory.
    """

    def __init__(self, node: NodeId, sender: Sender, coding: ShardCoding) -> None:
        super().__init__(node, sender.start(VectorLayout.of_length(coding.placement.length, coding.kind)))
        self._sender, self._coding = sender, coding

    def coded(
        self, gradient: Vector | None, examples: int, metrics: Mapping[str, float], round: int
    ) -> Contribution | None:
        """Return the contribution of a clock's gradient, a payload for each shard; None if no sum can hold it."""
        assert gradient is not None, "a gradient was asked for"
        return (weight_of(examples, metrics), self.payloads(gradient, round)) if summable(gradient) else None

    def payloads(self, gradient: Vector, round: int) -> tuple[Payload, ...]:
        """Return the payload of each shard of a clock's gradient [d]."""
        found, left = [], [np.empty_like(one) for one in self.memory]
        for shard in self._coding.placement.shards:
            held = tuple(shard.taken_from(one) for one in self.memory)
            about = self._coding.layouts[shard.number], self._coding.push_turn(shard.number, self._node, round)
            payload, kept = self._sender.send(held, shard.taken_from(gradient), *about)
            found.append(frozen(payload))
            for whole, part in zip(left, kept, strict=True):
                shard.put_into(whole, part)
        self._round, self._next = round, tuple(map(frozen, left))
        return tuple(found)

    def take_result(self, found: Vector) -> None:
        """Do nothing: the error memory does not depend on the clock's result."""

    def settled(self, rounds: int) -> None:
        """Update the error memory after this number of completed clocks."""
        if 0 <= self._round < rounds:
            self.memory = self._next
        self._round, self._next = -1, self.memory


def check_coded(*, coded: bool, expected: bool, what: str, sender: NodeId) -> None:
    """Raise ProtocolError for a coded message in place of an uncoded one, or the other way round."""
    if coded != expected:
        by = "by a codec" if coded else "without its codec"
        raise ProtocolError(f"{what} {by}", "Have all the same experiment file?", peer=sender)
