"""How good a model is, in one number: what it is called, which way is better, and how it is told to people."""

from __future__ import annotations

from collections.abc import Iterable
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
