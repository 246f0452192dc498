"""The metric of a run: its name, its direction, and its format in reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HIGHER, LOWER = "higher", "lower"


@dataclass(frozen=True, slots=True)
class Score:
    """The metric of a run, reported for the averaged model, the mean peer and the worst peer."""

    name: str
    """Name of the metric; empty for a task without one, whose values are all None."""
    better: str = HIGHER
    """HIGHER or LOWER."""
    unit: str = ""
    """Unit of the number, as a text."""
    share: bool = False
    """Whether it lies between 0 and 1."""
    percent: bool = False
    """Whether reports print it in percent."""
    title: str = ""
    """Start of a heading; empty: the name with a capital."""

    def best(self, values: Iterable[float]) -> float:
        """Return the best of at least one value."""
        return (max if self.better == HIGHER else min)(values)

    def worst(self, values: Iterable[float]) -> float:
        """Return the worst of at least one value."""
        return (min if self.better == HIGHER else max)(values)

    def figure(self, value: float) -> str:
        """Return a value with four decimals; a small one in scientific notation."""
        return f"{value:.1e}" if not self.share and 0 < abs(value) < 1e-2 else f"{value:.4f}"

    @property
    def heading(self) -> str:
        return self.title or self.name[:1].upper() + self.name[1:]

    @property
    def word(self) -> str:
        """The name for a sentence."""
        return self.title or self.name

    @property
    def note(self) -> str:
        """Return the unit and the better direction in brackets; empty if the name implies both."""
        notes = ", ".join(part for part in (self.unit, f"{self.better} is better") if part)
        return "" if self.percent else f" ({notes})"


ACCURACY = Score("accuracy", unit="share that is right", share=True, percent=True)
NO_SCORE = Score("")


@dataclass
class BestSoFar:
    """The round with the best finite score, the first of equal ones; never round 0.

    `patience`: number of successive evaluations without a better score that end the run; 0: no limit.
    """

    score: Score
    patience: int = 0
    round: int = 0
    """0: no round has been evaluated."""
    value: float = 0.0
    since: int = 0
    """Number of evaluations since that round."""

    def takes(self, round: int, value: float) -> bool:
        """Record the score of the model after `round`; return whether it is the best so far."""
        better = math.isfinite(value) and (not self.round or self._above(value))
        if better:
            self.round, self.value, self.since = round, value, 0
        else:
            self.since += 1
        return better

    def _above(self, value: float) -> bool:
        return value != self.value and self.score.best((value, self.value)) == value

    @property
    def over(self) -> bool:
        """Whether `patience` evaluations have passed without a better model."""
        return 0 < self.patience <= self.since

    @property
    def facts(self) -> Mapping[str, object]:
        """Return the facts of an early stop, for the records."""
        return {"best": self.round, "score": self.value, "evaluations": self.since}
