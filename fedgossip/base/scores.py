"""How good a model is, in one number: what it is called, which way is better, and how it is told to people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HIGHER, LOWER = "higher", "lower"


@dataclass(frozen=True, slots=True)
class Score:
    """The metric by which a run is judged; it stands for the averaged model, the mean peer and the worst peer."""

    name: str
    """Of the metric; empty where a task has none, and all values are None."""
    better: str = HIGHER
    """HIGHER or LOWER."""
    unit: str = ""
    """What the number counts, in words."""
    share: bool = False
    """Whether it lies between 0 and 1."""
    percent: bool = False
    """Whether people are told it in percent."""
    title: str = ""
    """As a heading begins; empty: the name with a capital."""

    def best(self, values: Iterable[float]) -> float:
        """Return the best of at least one value."""
        return (max if self.better == HIGHER else min)(values)

    def worst(self, values: Iterable[float]) -> float:
        """Return the worst of at least one value."""
        return (min if self.better == HIGHER else max)(values)

    def figure(self, value: float) -> str:
        """Return a value with four digits behind the point; of a small one its size."""
        return f"{value:.1e}" if not self.share and 0 < abs(value) < 1e-2 else f"{value:.4f}"

    @property
    def heading(self) -> str:
        return self.title or self.name[:1].upper() + self.name[1:]

    @property
    def word(self) -> str:
        """The name in a sentence."""
        return self.title or self.name

    @property
    def note(self) -> str:
        """What the number counts and which way is better, in brackets; nothing where its name says it."""
        told = ", ".join(part for part in (self.unit, f"{self.better} is better") if part)
        return "" if self.percent else f" ({told})"


ACCURACY = Score("accuracy", unit="share that is right", share=True, percent=True)
NO_SCORE = Score("")


@dataclass
class BestSoFar:
    """The round whose model scored best until now, the first of equal ones; round 0, which nobody trained, is none.

    A score that is no finite number is never better.  `patience`: the number of evaluations in a row without a better
    score that end the run; 0: none do.
    """

    score: Score
    patience: int = 0
    round: int = 0
    """0: no round has been evaluated."""
    value: float = 0.0
    since: int = 0
    """Number of evaluations since that round."""

    def takes(self, round: int, value: float) -> bool:
        """Take the evaluation of the model after `round`; return whether it is the best until now."""
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
        """Whether the run has waited long enough for a better model."""
        return 0 < self.patience <= self.since

    @property
    def facts(self) -> Mapping[str, object]:
        """For the records, of a run that ends for it."""
        return {"best": self.round, "score": self.value, "evaluations": self.since}
