"""How long a gossip peer waits at the beginning and at the end, whatever its machine does between."""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.base.limits import MOST

AGAIN_NS = 250_000_000
AGAIN_TIMES = 20
"""Number of goodbyes without an answer after which a partner counts as hung."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of every run.  Times in nanoseconds."""

    rounds: int
    start_ns: int = 300_000_000_000
    """How long to wait for all links at the start; people start peers on several machines by hand."""
    drain_ns: int = 30_000_000_000
    """How long to stay after the last round for accounts to settle, and for partners that are not done."""
    hurry_ns: int = 1_000_000_000
    """How long to stay for open accounts when the user stops the run."""
    again_ns: int = AGAIN_NS
    """After so long a goodbye is said again."""

    @property
    def endless(self) -> bool:
        """Whether a peer makes as many rounds as its own loop, also when all others have left."""
        return self.rounds >= MOST
