"""One worker's encoded gradients, and its error memory.

    closed --coded: the payload goes out--> open --settled(later round): it was counted--> closed

A repeated round sends the same payload.  If the others went on without a worker, its memory is as before that round:
its gradient is lost, as it is without a codec.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedgossip.algorithms.codecs.base import CodecTurn
from fedgossip.algorithms.codecs.senders import Memory, Sender
from fedgossip.base.errors import ResumeError
from fedgossip.base.vectors import Vector, summable
from fedgossip.core.machine import NodeId
from fedgossip.protocols.allreduce.round_sums import CodedSums, Contribution, coded_contribution, weight_of

LEFT_OUT = "left_out/"
"""Prefix of these vectors in a checkpoint."""


class CodecMemory:
    """The error memory of one worker's codec.

    Invariant: `memory` is that of all completed rounds, from which a next life resumes.
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
    """One worker's gradients, each encoded by itself."""

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
        """Nothing to update: the error memory does not depend on the round's result."""
