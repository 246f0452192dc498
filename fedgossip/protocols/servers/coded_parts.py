"""A worker's part of a vector model whose gradients are pushed by a codec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedgossip.algorithms.codecs.base import Payload
from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import Vector, summable
from fedgossip.core.machine import Effect, RowsChosen, Train
from fedgossip.core.messages import CodedPush, Message
from fedgossip.protocols.allreduce.chunk_links import Chunk
from fedgossip.protocols.servers.model_parts import PushFacts, WholeParts
from fedgossip.protocols.servers.pieces import pieces
from fedgossip.protocols.servers.shard_coding import CodedPushes


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
