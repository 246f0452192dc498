"""The numbers by which sites judge a model under a budget of records: each site adds noise to its own.

The noise hides every record from everybody, the coordinator included, as in statistics (`column_sums`): a site's part
is one release of a Gaussian mechanism.  The numbers are few, without those that follow from others, for each costs
noise on all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedgossip.data.agreed.column_sums import GRAIN, MOST, divided, grains_of, hidden
from fedgossip.secure.primitives import Entropy

BINS = 20
"""Number of bins of a probability histogram: steps of log-odds from -5 to 5; the end bins are open."""
EDGES = 1 / (1 + np.exp(-np.linspace(-5, 5, BINS - 1)))
DECILES = 10
"""Parts of equal width that compare predicted probabilities with observed shares."""
SHIFT = 104
"""Bits behind the point."""
RECORDS = 1 << 31
"""Maximum number of records of a site."""

Name = tuple[str, ...]
Numbers = Mapping[Name, int]
Values = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def whole(values: Values) -> int:
    """Return the sum of numbers, each as the whole number nearest to it times 2^SHIFT."""
    return sum(int(value) for value in np.rint(np.ldexp(values, SHIFT)).tolist())


@dataclass(frozen=True)
class NoisyNumbers:
    """The numbers of a classification model; `noise`: a multiple of the length of one record's contribution."""

    classes: tuple[str, ...]
    outcomes: tuple[str, ...]
    groups: tuple[str, ...]
    noise: float

    @cached_property
    def units(self) -> Mapping[Name, int]:
        """Return one record's maximum contribution to each number."""
        found: dict[Name, int] = {("confusion", true, answer): 1 for true in self.classes for answer in self.classes}
        found |= {("group", group, what): 1 for group in self.groups for what in ("right", "wrong")}
        for where in ((), *(("group", group) for group in self.groups)):
            for one in self.outcomes:
                found |= {(*where, what, one, str(k)): 1 for what in ("with", "without") for k in range(BINS)}
                found |= {(*where, what, one): 1 << SHIFT for what in (("said", "brier") if where else ("brier",))}
        for one in self.outcomes:
            for part in map(str, range(DECILES)):
                found |= {("part", one, part, "having"): 1, ("part", one, part, "lacking"): 1}
                found["part", one, part, "said"] = 1 << SHIFT
        return found

    @property
    def length(self) -> float:
        """Return the maximum length of one record's contribution, in units.

        A record counts in one cell of the confusion, and per outcome in one bin and one part.  The probabilities of
        classes are together at most 1, and their squared differences from the truth 2.  In its group the same again,
        without parts.
        """
        k = len(self.outcomes)
        answer, brier = min(k, 1), min(k, 2)
        return math.sqrt(1 + 2 * k + answer + brier + (1 + k + answer + brier if self.groups else 0))

    @property
    def grains(self) -> float:
        """Return the standard deviation of a site's noise on each number, in grains of its unit."""
        return grains_of(self.length, len(self.units), self.noise)

    @property
    def bounds(self) -> Mapping[Name, int]:
        """Return the largest magnitude of each number of a site."""
        room = math.ceil(MOST * (self.grains / GRAIN + 1))
        return {name: (RECORDS + room) * unit for name, unit in self.units.items()}

    # --- at a site ------------------------------------------------------------------------------------------------

    def of_records(self, answers: Values, y: npt.NDArray[np.generic], groups: Places | None) -> dict[Name, int]:
        """Return the noiseless numbers of records with labels y [m], answers [m, k] and places of their groups [m]."""
        table = np.zeros((len(self.classes),) * 2, np.int64)
        truth, answered = y.astype(np.int64), answers.argmax(axis=1)
        np.add.at(table, (truth, answered), 1)
        found: dict[Name, int] = {
            ("confusion", true, answer): count
            for true, row in zip(self.classes, table.tolist(), strict=True)
            for answer, count in zip(self.classes, row, strict=True)
        }
        everybody = np.ones(len(truth), bool)
        found |= self._of_outcomes((), answers, truth, everybody)
        for place, group in enumerate(self.groups):
            rows = everybody & False if groups is None else groups == place
            right = int((truth[rows] == answered[rows]).sum())
            found |= {("group", group, "right"): right, ("group", group, "wrong"): int(rows.sum()) - right}
            found |= self._of_outcomes(("group", group), answers, truth, rows)
        return found

    def _of_outcomes(self, where: Name, answers: Values, truth: Places, rows: npt.NDArray[np.bool_]) -> dict[Name, int]:
        found: dict[Name, int] = {}
        for one in self.outcomes:
            place = self.classes.index(one)
            answer, positive = answers[rows, place].clip(0, 1), truth[rows] == place
            found[*where, "brier", one] = whole((answer - positive) ** 2)
            for what, some in (("with", positive), ("without", ~positive)):
                counts = np.bincount(np.searchsorted(EDGES, answer[some], side="right"), minlength=BINS)
                found |= {(*where, what, one, str(k)): count for k, count in enumerate(counts.tolist())}
            if where:
                found[*where, "said", one] = whole(answer)
                continue
            parts = np.minimum((answer * DECILES).astype(np.int64), DECILES - 1)
            for part in range(DECILES):
                inside = parts == part
                found["part", one, str(part), "having"] = int(positive[inside].sum())
                found["part", one, str(part), "lacking"] = int((~positive[inside]).sum())
                found["part", one, str(part), "said"] = whole(answer[inside])
        return found

    def hidden(self, numbers: Numbers, entropy: Entropy) -> Numbers:
        """Return a site's numbers with noise, as sent."""
        return hidden(numbers, lambda name: self.units[name], self.grains, entropy)

    # --- of all sites ---------------------------------------------------------------------------------------------

    def moved(self, numbers: Numbers, sites: int, draw: np.random.Generator) -> Numbers:
        """Return the sums over so many sites with a further draw of noise on top of their own."""
        grains = np.rint(draw.normal(0, self.grains * math.sqrt(sites), len(self.units))).astype(np.int64).tolist()
        return {name: numbers[name] + divided(one * unit, GRAIN)
                for (name, unit), one in zip(self.units.items(), grains, strict=True)}  # fmt: skip

    def completed(self, numbers: Numbers) -> dict[Name, int]:
        """Return the numbers of an exact evaluation, without losses, from noisy sums, clipped to their ranges."""
        cells = {(true, answer): numbers["confusion", true, answer] for true in self.classes for answer in self.classes}
        records = max(0, sum(cells.values()))
        found: dict[Name, int] = {
            ("records",): records,
            ("right",): _within(sum(cells[one, one] for one in self.classes), records),
        }
        found |= {("confusion", *names): max(0, count) for names, count in cells.items()}
        for one in self.outcomes:
            positives = sum(cells[one, answer] for answer in self.classes)
            parts = [("part", one, str(part)) for part in range(DECILES)]
            answer = sum(numbers[*part, "said"] for part in parts)
            found |= self._of_one((), one, numbers, records, (positives, answer))
            for part in parts:
                having, lacking = (max(0, numbers[*part, what]) for what in ("having", "lacking"))
                found |= {(*part, "records"): having + lacking, (*part, "positives"): having}
                found[*part, "said"] = _inside(part, numbers[*part, "said"], having + lacking)
        for group in self.groups:
            where = ("group", group)
            count = max(0, numbers[*where, "right"] + numbers[*where, "wrong"])
            found |= {(*where, "records"): count, (*where, "right"): _within(numbers[*where, "right"], count)}
            for one in self.outcomes:
                positives = sum(numbers[*where, "with", one, str(k)] for k in range(BINS))
                found |= self._of_one(where, one, numbers, count, (positives, numbers[*where, "said", one]))
        return found

    def _of_one(self, where: Name, one: str, numbers: Numbers, records: int, sums: tuple[int, int]) -> dict[Name, int]:
        positives, answer = sums
        found: dict[Name, int] = {(*where, "positives", one): _within(positives, records)}
        found[*where, "said", one] = _within(answer, records << SHIFT)
        found[*where, "brier", one] = _within(numbers[*where, "brier", one], records << SHIFT)
        bins: Sequence[Name] = [(*where, what, one, str(k)) for what in ("with", "without") for k in range(BINS)]
        return found | {name: numbers[name] for name in bins}


def _inside(part: Name, answer: int, records: int) -> int:
    """Return the sum of predictions of so many records in a part, clipped to the part's bounds."""
    number = int(str(part[-1]))
    least, most = ((records * end << SHIFT) // DECILES for end in (number, number + 1))
    return min(max(answer, least), most)


def _within(value: int, most: int) -> int:
    return min(max(value, 0), most)
