"""A worker's copy of the model: all of a vector, or the needed rows of a table.

`ModelParts` is the interface that a worker uses, so that one machine serves a vector and a table (`row_parts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.machine import Effect, RowsChosen, Train
from fedgossip.core.messages import Message, ShardPull, ShardPush
from fedgossip.protocols.allreduce.chunk_links import Chunk
from fedgossip.protocols.servers.pieces import pieces

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
