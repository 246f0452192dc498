"""A series of strikes ends when the run makes no progress between them; otherwise neither would end."""

from __future__ import annotations

from fedgossip.core.machine import NodeId

MOST_IN_VAIN = 20
"""Maximum number of strikes of series, for each participant, while no participant completes a new round."""


class RunProgress:
    """The newest round of each of `n` participants, and the strikes of series since the last new round.

    A round that is done a second time, from an older checkpoint, is not a new one.  An ended series stays ended.
    """

    def __init__(self, n: int) -> None:
        self._reached = [0] * n
        self._in_vain = 0

    @property
    def over(self) -> bool:
        """Whether series strike no more."""
        return self._in_vain >= MOST_IN_VAIN * len(self._reached)

    def round_of(self, node: NodeId) -> int:
        """Return the newest round of a participant, 0 before the first."""
        return self._reached[node]

    def reached(self, node: NodeId, round: int) -> None:
        if round > self._reached[node]:
            self._reached[node] = round
            self._in_vain = self._in_vain if self.over else 0

    def struck(self) -> bool:
        """Count a strike of a series; return whether it was the last."""
        self._in_vain += 1
        return self.over
