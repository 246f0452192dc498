"""What two participants must have in common beside the shape of their models, so that averaging them has a meaning.

Each says it in its first words, and a client pins it in its policy.  Numbers stand for what rounds otherwise on unlike
processors: they are compared, and not hashed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CODE, FROZEN, PROBE = "code", "frozen", "probe"

DIFFERS: Mapping[str, str] = {
    CODE: "the source of its modules",
    FROZEN: "its frozen tensors",
    PROBE: "what its first model gives for the probe",
}
"""What may differ, in words."""

TOLERANCE: Mapping[str, float] = {FROZEN: 1e-5, PROBE: 1e-3}
"""Relative: rounding on unlike processors is a hundredth of it, another activation function a hundred times as much."""


@dataclass(frozen=True)
class Likeness:
    """`code`: the user's own functions, each with a hash of the source behind it, "module:function=HASH ..."; "" where
    the experiment names none.

    `frozen`, `probe`: a few projections of what does not train and is not mixed, and of what the first model gives for
    examples of the common test set; nothing for a task that has no model.
    """

    code: str = ""
    frozen: tuple[float, ...] = ()
    probe: tuple[float, ...] = ()

    def changed(self, other: Likeness) -> tuple[str, ...]:
        """Return the names of our own functions that the other has too, with another source."""
        ours, theirs = (dict(part.rpartition("=")[::2] for part in one.code.split()) for one in (self, other))
        return tuple(name for name, code in ours.items() if theirs.get(name, code) != code)

    def unlike(self, other: Likeness) -> tuple[str, ...]:
        """Return what differs, of CODE, FROZEN, PROBE."""
        found = [CODE] if self.code != other.code else []
        for name, ours, theirs in ((FROZEN, self.frozen, other.frozen), (PROBE, self.probe, other.probe)):
            if not near(ours, theirs, TOLERANCE[name]):
                found.append(name)
        return tuple(found)


NOT_SAID = Likeness()


def near(ours: Sequence[float], theirs: Sequence[float], tolerance: float) -> bool:
    """Whether two rows of numbers are as long, and equal but for `tolerance` times the largest of them."""
    largest = max(map(abs, (*ours, *theirs)), default=0.0)
    close = (abs(a - b) <= tolerance * largest for a, b in zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(close)


def in_words(unlike: Sequence[str]) -> str:
    """Return "the source of its modules and its frozen tensors" """
    *first, last = (DIFFERS[name] for name in unlike)
    return f"{', '.join(first)} and {last}" if first else last
