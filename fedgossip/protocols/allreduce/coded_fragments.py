"""The fragments of a vector (`algorithms.gossip.fragments`): each is summed and encoded in its turn.

A fragment is a vector of its own: its codec has its tensors alone, and keeps its error memory until its next turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedgossip.algorithms.collectives.table import Table
from fedgossip.base.vectors import Vector
from fedgossip.protocols.allreduce.chunk_exchange import contribution_of
from fedgossip.protocols.allreduce.coded_gradients import LEFT_OUT, CodedGradients
from fedgossip.protocols.allreduce.low_rank_sums import LowRankGradients
from fedgossip.protocols.allreduce.round_sums import Contribution, RoundSum, RoundSums


@dataclass(frozen=True)
class FragmentSums:
    """`parts`: the sums of each fragment."""

    parts: tuple[RoundSums, ...]

    @property
    def collective(self) -> Callable[[int], Table]:
        return self.parts[0].collective

    def at(self, round: int) -> RoundSums:
        """Return the sums of the fragment of a round."""
        return self.parts[round % len(self.parts)]

    def length(self, round: int) -> int:
        return self.at(round).length(round)

    def of(self, rank: int, workers: int, round: int) -> RoundSum:
        return self.at(round).of(rank, workers, round)

    def gradient(self, found: Vector, round: int) -> Vector:
        return self.at(round).gradient(found, round)


class CodedFragments:
    """One worker's fragments: `parts` are their codecs, of which one at most has a round open; None: uncoded."""

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
        """Update the error memory by the result of the round."""
        if self._open:
            self._open.take_result(found)

    def settled(self, rounds: int) -> None:
        """Update the error memories after so many completed rounds: with or without this worker in the last one."""
        for _, one in self._coded:
            one.settled(rounds)

    @property
    def _coded(self) -> list[tuple[int, CodedGradients | LowRankGradients]]:
        return [(number, one) for number, one in enumerate(self._parts) if one]

    @property
    def saved(self) -> Mapping[str, Vector]:
        """The vectors of a checkpoint."""
        return {_named(number, name): held for number, one in self._coded for name, held in one.saved.items()}

    def resume(self, vectors: Mapping[str, Vector]) -> None:
        """Restore the vectors of a checkpoint.  Raises ResumeError for those of another codec."""
        for number, one in self._coded:
            before = _named(number, LEFT_OUT)
            held = {name: vector for name, vector in vectors.items() if name.startswith(before)}
            one.resume({LEFT_OUT + name.removeprefix(before): vector for name, vector in held.items()})


RoundCoding = CodedGradients | LowRankGradients | CodedFragments
"""The codec of a worker's contributions."""


def _named(number: int, name: str) -> str:
    return f"{LEFT_OUT}{number}/{name.removeprefix(LEFT_OUT)}"
