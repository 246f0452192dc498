"""What a worker of parameter servers has of the model: all of it, a part from each shard.

`ModelParts` is what a worker asks of it, so that one machine serves a vector and a table (`row_parts`).
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
    """What is pulled for a clock, and what is pushed of it."""

    @property
    def model(self) -> Vector:
        """What the run is measured by, [d]."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it is known what to pull."""
        ...

    @property
    def always_whole(self) -> bool:
        """Whether `model` is all that a gradient needs, in every round, and before the first too."""
        ...

    def choose(self, clock: int) -> list[Effect]:
        """Find out what to pull for a clock."""
        ...

    def chosen(self, event: RowsChosen) -> None:
        """Take the answer.  Raises TrainingError for one that cannot be."""
        ...

    def fits(self, clock: int) -> bool:
        """Whether what is pulled now is what a clock needs."""
        ...

    def length(self, shard: int) -> int:
        """Return how many elements are pulled of a shard."""
        ...

    def digest(self, shard: int) -> str:
        """Return by what list of keys they are known; empty where they are all."""
        ...

    def pull(self, epoch: int, shard: int, clock: int, first: int) -> list[Message]:
        """Return what asks for them."""
        ...

    def take(self, pulled: Mapping[int, Vector], clock: int) -> None:
        """Take what has come of all shards for a clock: those before it are behind."""
        ...

    def training(self, clock: int, accumulate: int | None) -> Train:
        """Ask for the gradient at what was taken."""
        ...

    def divide(self, gradient: Vector | None, clock: int) -> None:
        """Take the gradient of a clock, to be pushed in parts."""
        ...

    def push(self, facts: PushFacts) -> tuple[list[Message], list[Chunk]]:
        """Return the push of a shard: what goes before it, and what goes until it has arrived."""
        ...

    @property
    def saved(self) -> Mapping[str, Vector]:
        """What a checkpoint holds of it beside the model."""
        ...

    def told_anew(self, shards: Iterable[int]) -> None:
        """Whoever has these shards now knows nothing of what was told before."""
        ...

    def wanted(self, epoch: int, shard: int, digest: str) -> list[Message]:
        """Return what a server asks for, where it is here still."""
        ...

    def summary(self) -> list[Effect]:
        """Report what the run has cost, at its end."""
        ...


class WholeParts:
    """Of a vector all elements go both ways."""

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

    def told_anew(self, shards: Iterable[int]) -> None:
        pass

    def wanted(self, epoch: int, shard: int, digest: str) -> list[Message]:  # noqa: ARG002
        return []

    def summary(self) -> list[Effect]:
        return []
