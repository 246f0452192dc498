"""The limits of a federated run, as its coordinator keeps to them."""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.base.limits import MOST
from fedgossip.base.scores import ACCURACY, Score


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Limits of one run.  Times in nanoseconds."""

    rounds: int
    min_clients: int = 1
    """A round of fewer contributions is abandoned; with fewer clients there none begins."""
    deadline_ns: int = 300_000_000_000
    """The longest wait in one phase of a round; above the slowest client's training time and transfer."""
    least_deadline_ns: int = 5_000_000_000
    """The deadline follows the rounds that were seen, within these two; equal: it is constant."""
    start_ns: int = 300_000_000_000
    """How long to wait for all clients at the start, and for enough of them whenever too few are left."""
    return_ns: int = 10_000_000_000
    """How long a coordinator that is started again waits for all clients, before it goes on with those that came."""
    drain_ns: int = 30_000_000_000
    """How long to stay after the last round until every client has the model."""
    again_ns: int = 2_000_000_000
    """After so long a last model that was not answered is sent again."""
    score: Score = ACCURACY
    """What clients measure, of the model that they are sent."""

    patience: int = 0
    """After so many evaluations in a row without a better score the run ends; 0: never."""
    every: int = 0
    """Number of rounds between two evaluations that count for it; 0: those count that clients measure."""

    def judges(self, round: int) -> bool:
        """Whether the model after `round` is to be measured before the next round begins."""
        return self.patience > 0 and self.every > 0 and round % self.every == 0 and 0 < round < self.rounds

    @property
    def endless(self) -> bool:
        """Whether it goes on until too few clients are left: their loops end it."""
        return self.rounds >= MOST
