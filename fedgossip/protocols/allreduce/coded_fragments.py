"""Encoded gradients of one worker with their error memory: of vectors, of fragments, and of low rank.

Each fragment is a separate vector: its codec keeps its error memory until its next turn.  The error memory:

    closed --coded: the payload is sent--> open --settled(later round): it was counted--> closed

A repeated round sends the same payload.  If the others continued without a worker, its memory is as before that round:
its gradient is lost, as without a codec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.codecs.base import CodecTurn
from fedgossip.algorithms.codecs.low_rank import LowRank
from fedgossip.algorithms.codecs.senders import Memory, Sender
from fedgossip.algorithms.collectives.table import Table
from fedgossip.base.errors import ResumeError
from fedgossip.base.vectors import Vector, add, frozen, subtract, summable
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import TAIL
from fedgossip.protocols.allreduce.reduction import LowRankReduction
from fedgossip.protocols.allreduce.round_sums import (
    CodedSums,
    Contribution,
    RoundSum,
    RoundSums,
    coded_contribution,
    contribution_of,
    weight_of,
)


@dataclass(frozen=True)
class FragmentSums:
    """`parts`: the sums of each fragment."""

    parts: tuple[RoundSums, ...]

    @property
    def collective(self) -> Callable[[int], Table]:
        return self.parts[0].collective

    def select_sums(self, round: int) -> RoundSums:
        """Return the sums of the fragment of a round."""
        return self.parts[round % len(self.parts)]

    def length(self, round: int) -> int:
        return self.select_sums(round).length(round)

    def make_sum(self, rank: int, workers: int, round: int) -> RoundSum:
        return self.select_sums(round).make_sum(rank, workers, round)

    def gradient(self, found: Vector, round: int) -> Vector:
        return self.select_sums(round).gradient(found, round)


class CodedFragments:
    """One worker's fragments: `parts` are their codecs, at most one with an open round; None: uncoded."""

    def __init__(self, parts: Sequence[CodedGradients | LowRankGradients | None]) -> None:
        self._parts = list(parts)
        self._open = self._parts[0]

    def coded(
        self, gradient: Vector | None, examples: int, metrics: Mapping[str, float], round: int
    ) -> Contribution | None:
        """Return the contribution of the fragment of a round; None if no sum can hold it."""
        self._open = self._parts[round % len(self._parts)]
        if self._open is None:
            return contribution_of(gradient, examples, metrics)
        return self._open.coded(gradient, examples, metrics, round)

    def take_result(self, found: Vector) -> None:
        """Update the error memory from the result of the round."""
        if self._open:
            self._open.take_result(found)

    def settled(self, rounds: int) -> None:
        """Update the error memories after `rounds` completed rounds: with or without this worker in the last one."""
        for _, one in self._coded:
            one.settled(rounds)

    @property
    def _coded(self) -> list[tuple[int, CodedGradients | LowRankGradients]]:
        return [(number, one) for number, one in enumerate(self._parts) if one]

    @property
    def saved(self) -> Mapping[str, Vector]:
        """The vectors of a checkpoint."""
        return {_qualify_name(number, name): held for number, one in self._coded for name, held in one.saved.items()}

    def resume(self, vectors: Mapping[str, Vector]) -> None:
        """Restore the vectors of a checkpoint.  Raises ResumeError for those of another codec."""
        for number, one in self._coded:
            before = _qualify_name(number, LEFT_OUT)
            held = {name: vector for name, vector in vectors.items() if name.startswith(before)}
            one.resume({LEFT_OUT + name.removeprefix(before): vector for name, vector in held.items()})


@dataclass(frozen=True)
class LowRankSums:
    """The sums of low-rank gradients, the same at all workers.  `bucket`: number of elements of a bucket."""

    collective: Callable[[int], Table]
    low: LowRank
    bucket: int

    def length(self, round: int) -> int:  # noqa: ARG002
        return self.low.first_length

    def make_sum(self, rank: int, workers: int, round: int) -> LowRankReduction:  # noqa: ARG002
        return LowRankReduction(rank, self.collective(workers), self.low, self.bucket)

    def gradient(self, found: Vector, round: int) -> Vector:  # noqa: ARG002
        """Return the mean gradient [d] of a round's result: all P, the uncompressed part with its tail, and all Q."""
        return self.low.restored(*self._split(found))

    def right(self, found: Vector) -> Vector:
        """Return the first Q of the next round."""
        return self.low.upright(self._split(found)[2])

    def _split(self, found: Vector) -> tuple[Vector, Vector, Vector]:
        left, first = self.low.left_length, self.low.first_length
        return found[:left], found[left:first], found[first + TAIL :]


LEFT_OUT = "left_out/"
"""Prefix of these vectors in a checkpoint."""


class CodecMemory:
    """The error memory of one worker's codec.

    Invariant: `memory` covers all completed rounds; a later incarnation resumes from it.
    """

    def __init__(self, node: NodeId, memory: Memory) -> None:
        self._node, self.memory = node, memory
        self._round, self._next = -1, memory

    def settled(self, rounds: int) -> None:
        """Update the memory after this number of completed rounds: with or without this worker in the last one."""
        if self._round == rounds - 1:
            self.memory = self._next
        self._round, self._next = -1, self.memory

    @property
    def saved(self) -> Mapping[str, Vector]:
        """The vectors of a checkpoint."""
        return {f"{LEFT_OUT}{number}": vector for number, vector in enumerate(self.memory)}

    def resume(self, vectors: Mapping[str, Vector]) -> None:
        """Restore the vectors of a checkpoint.  Raises ResumeError for those of another codec."""
        held = [vectors[name] for name in sorted(vectors) if name.startswith(LEFT_OUT)]
        if [(one.size, one.dtype) for one in held] != [(one.size, one.dtype) for one in self.memory]:
            text = f"worker {self._node}: the checkpoint holds {len(held)} vectors of what a codec left out"
            raise ResumeError(f"{text}, not {len(self.memory)}", "Go on with parallel.codec as it was.")
        self.memory = self._next = tuple(held)


class CodedGradients(CodecMemory):
    """One worker's gradients, each encoded separately."""

    def __init__(self, node: NodeId, sender: Sender, sums: CodedSums) -> None:
        super().__init__(node, sender.start(sums.layout))
        self._sender, self._sums = sender, sums

    def coded(
        self, gradient: Vector | None, examples: int, metrics: Mapping[str, float], round: int
    ) -> Contribution | None:
        """Return the contribution of a round's gradient; None if no sum can hold it."""
        assert gradient is not None, "a gradient was asked for"
        if not summable(gradient):
            return None
        payload, self._next = self._sender.send(self.memory, gradient, self._sums.layout, self._turn(round))
        self._round = round
        return coded_contribution(self._sums, weight_of(examples, metrics), payload, metrics.get("loss", 0.0))

    def _turn(self, round: int) -> CodecTurn:
        return CodecTurn(self._sums.seed, self._node, round)

    def take_result(self, found: Vector) -> None:
        """Do nothing: the error memory does not depend on the round's result."""


class LowRankGradients(CodecMemory):
    """One worker's low-rank gradients.  `memory` is the error [d], and the last Q.

    The error is the difference between the worker's vector and the decoded mean.
    """

    def __init__(self, node: NodeId, sums: LowRankSums) -> None:
        low = sums.low
        super().__init__(node, (frozen(np.zeros(low.layout.length, low.layout.dtype)), low.start()))
        self._sums = sums
        self._whole = self.memory[0]

    def coded(
        self, gradient: Vector | None, examples: int, metrics: Mapping[str, float], round: int
    ) -> Contribution | None:
        """Return the contribution of a round's gradient; None if no sum can hold it."""
        assert gradient is not None, "a gradient was asked for"
        whole = add(gradient, self.memory[0])
        if not summable(whole):
            return None
        self._round, self._next, self._whole = round, self.memory, whole
        tail = frozen(np.array([metrics.get("loss", 0.0), 1.0], whole.dtype))
        return weight_of(examples, metrics), (self._sums.low.first(whole, self.memory[1]), tail, whole)

    def take_result(self, found: Vector) -> None:
        """Update the memory by the result of a round with this worker's contribution."""
        self._next = (subtract(self._whole, self._sums.gradient(found, self._round)), self._sums.right(found))


RoundCoding = CodedGradients | LowRankGradients | CodedFragments
"""The codec of a worker's contributions."""


def _qualify_name(number: int, name: str) -> str:
    return f"{LEFT_OUT}{number}/{name.removeprefix(LEFT_OUT)}"
