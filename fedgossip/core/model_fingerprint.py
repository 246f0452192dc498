"""Properties outside the layout that models must share to be averaged.

They are sent in a `Hello`, can be pinned in a client's policy, and are compared as numbers, since processors round
differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CODE, FROZEN, PROBE = "code", "frozen", "probe"

DIFFERS: Mapping[str, str] = {
    CODE: "the source of its modules",
    FROZEN: "its frozen tensors",
    PROBE: "the outputs of its first model for the probe",
}
"""Texts of the differences."""

TOLERANCE: Mapping[str, float] = {FROZEN: 1e-5, PROBE: 1e-3}
"""Relative tolerances: 100 times the rounding on different processors, a hundredth of another activation function."""


@dataclass(frozen=True)
class Likeness:
    """`code`: the user's functions with a hash of their source, "module:function=HASH ...", or "".

    `frozen`, `probe`: projections of frozen tensors, and of the first model's outputs on common test examples; empty
    without a model.
    """

    code: str = ""
    frozen: tuple[float, ...] = ()
    probe: tuple[float, ...] = ()

    def changed(self, other: Likeness) -> tuple[str, ...]:
        """Return the names of user functions with a different source at the other."""
        ours, theirs = (dict(part.rpartition("=")[::2] for part in one.code.split()) for one in (self, other))
        return tuple(name for name, code in ours.items() if theirs.get(name, code) != code)

    def unlike(self, other: Likeness) -> tuple[str, ...]:
        """Return those of CODE, FROZEN, PROBE that differ."""
        found = [CODE] if self.code != other.code else []
        for name, ours, theirs in ((FROZEN, self.frozen, other.frozen), (PROBE, self.probe, other.probe)):
            if not near(ours, theirs, TOLERANCE[name]):
                found.append(name)
        return tuple(found)


NO_LIKENESS = Likeness()


def near(ours: Sequence[float], theirs: Sequence[float], tolerance: float) -> bool:
    """Whether two rows have equal length and differ by at most `tolerance` times their largest number."""
    largest = max(map(abs, (*ours, *theirs)), default=0.0)
    close = (abs(a - b) <= tolerance * largest for a, b in zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(close)


def describe_differences(unlike: Sequence[str]) -> str:
    """Return a text such as "the source of its modules and its frozen tensors"."""
    *first, last = (DIFFERS[name] for name in unlike)
    return f"{', '.join(first)} and {last}" if first else last
