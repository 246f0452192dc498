"""evaluation.json: the quality of a model over all sites together, per group and per site, computed only from sums.

The file neither contains nor discloses a count from 1 to `suppress` - 1 (of groups, confusion cells, outcomes, wrong
outputs; see `suppression`); a budget's noise hides all counts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from fedgossip.base.seeds import stream
from fedgossip.data.agreed.sums_task import read_sums_file
from fedgossip.data.agreed.suppression import (
    hidden_confusion,
    hidden_places,
    hidden_rows,
    round_share,
    round_shares,
    suppressed,
)
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION
from fedgossip.sites.evaluation.evaluation_sums import (
    DECILES,
    PLACES,
    SHIFT,
    SITES,
    EvaluationLayout,
    Name,
    Numbers,
    score_of,
)

FORMAT = 1
Z = 1.959963984540054
"""Normal quantile of a 95 % interval."""


class ReliabilityPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The records with a predicted probability between two bounds; a figure of too few records is None."""

    low: float
    high: float
    records: int | None
    said: float | None
    """Mean predicted probability."""
    were: float | None
    """Observed share of records with the outcome."""


class OutcomeFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One outcome: the second of two classes, each of several classes against the rest, each of several labels."""

    name: str
    positives: int | None = None
    """Number of records with the outcome."""
    brier: float | None = None
    """Mean squared difference of probability and truth."""
    said: float | None = None
    """Mean predicted probability."""
    were: float | None = None
    """Observed share of records with the outcome."""
    auroc: float | None = None
    auroc_within: float | None = None
    """Maximum distance to the AUROC of the records themselves: the effect of the histogram's bin width."""
    auroc_between: tuple[float, float] | None = None
    """95 % interval of the AUROC of other records like these."""
    slope: tuple[float, float, float] | None = None
    """Calibration slope, 1 at best, with its 95 % interval: below 1 the probabilities are too extreme."""
    intercept: tuple[float, float, float] | None = None
    """Calibration in the large, 0 at best, with its 95 % interval: below 0 the probabilities are too high."""
    calibration_error: float | None = None
    """Mean absolute difference of predicted and observed share over the parts, weighted by records."""
    parts: tuple[ReliabilityPart, ...] = ()
    noise_within: Mapping[str, float] = {}
    """Maximum shift by noise, per figure name, at 95 % confidence."""


class NumberFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One label of a regression, in its unit."""

    name: str
    rmse: float
    mae: float


class GroupFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The records of a group; all figures are None if the group is too small to report."""

    name: str
    records: int | None = None
    score: float | None = None
    score_within: float = 0.0
    """Maximum rounding error: the score is reported in steps, to hide small numbers of wrong or right outputs."""
    score_between: tuple[float, float] | None = None
    """95 % interval of the score of other records like these."""
    loss: float | None = None
    outcomes: tuple[OutcomeFigures, ...] = ()
    noise_within: Mapping[str, float] = {}


class SiteFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of one site; present only if all sites consented to be named."""

    site: int
    records: int
    score: float | None
    score_within: float = 0.0


class MembershipFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Results of the sites' own membership tests, and the gap between trained and held-out records."""

    tested: int
    """Number of sites with enough records for a test."""
    flagged: int
    records: int
    score: float | None
    loss: float


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The contents of evaluation.json."""

    format: int = FORMAT
    layout: EvaluationLayout
    suppress: int
    sites: int
    least: int
    """Minimum number of sites in a sum."""
    records: int
    score: float | None
    score_within: float = 0.0
    """Maximum rounding error, as in `GroupFigures`."""
    score_between: tuple[float, float] | None = None
    loss: float | None = None
    """None under a budget: the loss of one record has no upper bound."""
    outcomes: tuple[OutcomeFigures, ...] = ()
    numbers: tuple[NumberFigures, ...] = ()
    confusion: tuple[tuple[int | None, ...], ...] = ()
    """[true class][predicted class]; None for a cell that would disclose few records."""
    groups: tuple[GroupFigures, ...] = ()
    places: tuple[tuple[float, float], ...] = ()
    """Bounds of each site's score, the worst first, without sites with fewer than `suppress` right, or wrong, outputs;
    () if named sites report their numbers of records.
    """
    named: tuple[SiteFigures, ...] = ()
    membership: MembershipFigures | None = None
    noise_within: Mapping[str, float] = {}

    @property
    def unplaced(self) -> int:
        """Number of sites missing in `places`; 0 if no place is reported."""
        return self.sites - len(self.places) if self.places else 0


def evaluation_of(layout: EvaluationLayout, numbers: Numbers, suppress: int, least: int) -> Evaluation:
    """Return the figures of the sums over the sites."""
    records = numbers["records",]
    counts = [numbers["group", group, "records"] for group in layout.groups]
    apart = {place for place, group in enumerate(layout.groups) if 0 < numbers.get(("at", group), SITES) < SITES}
    published = suppressed(counts, suppress, apart, records - sum(counts))
    shown = [group for group, count in zip(layout.groups, published, strict=True) if count is not None]
    every = PublishedFigures(layout, numbers, suppress, shown)
    named = _named(layout, numbers, suppress)
    score, within = every.score
    return Evaluation(
        layout=layout,
        suppress=suppress,
        sites=numbers["sites",],
        least=least,
        records=records,
        score=score,
        score_within=within,
        score_between=_between(layout, score, within, records),
        loss=_loss(numbers, (), records),
        outcomes=tuple(_outcome(layout, numbers, (), one, every) for one in layout.outcomes),
        numbers=tuple(_number(numbers, one) for one in layout.labels if layout.kind == REGRESSION),
        confusion=tuple(
            tuple(None if (j, k) in every.confusion else count for k, count in enumerate(row))
            for j, row in enumerate(_confusion(layout, numbers))
        ),
        groups=tuple(
            GroupFigures(name=group) if group not in shown else _group(layout, numbers, group, every)
            for group in layout.groups
        ),
        places=tuple(
            (place / PLACES, (place + 1) / PLACES)
            for place in range(PLACES)
            for _ in range(numbers.get(("place", str(place)), 0))
            if not any(one.score is None or one.score_within for one in named)
        ),
        named=named,
        membership=_membership(layout, numbers, suppress),
    )


def _confusion(layout: EvaluationLayout, numbers: Numbers) -> list[list[int]]:
    return [[numbers["confusion", true, answer] for answer in layout.classes] for true in layout.classes]


class PublishedFigures:
    """The publishable figures of an evaluation; with noise, all except those of small groups."""

    def __init__(self, layout: EvaluationLayout, numbers: Numbers, suppress: int, groups: Sequence[str]) -> None:
        """`groups`: the groups with a published number of records."""
        self._layout, self._numbers, self.suppress, self._groups = layout, numbers, suppress, groups
        self._exact, self._counted = not layout.noise, layout.kind != REGRESSION

    @property
    def score(self) -> tuple[float | None, float]:
        layout, numbers = self._layout, self._numbers
        if not self._exact or not self._counted or not numbers["records",]:
            return score_of(layout, numbers, ()), 0.0
        return round_share(numbers["right",], numbers["records",], self.suppress)

    @cached_property
    def scores(self) -> Mapping[str, tuple[float | None, float]]:
        """Return the score of each group, and its maximum rounding error."""
        layout, numbers = self._layout, self._numbers
        if not self._exact or not self._counted:
            return {one: (score_of(layout, numbers, ("group", one)), 0.0) for one in self._groups}
        right = [numbers["group", one, "right"] for one in self._groups]
        rows = [(a, numbers["group", one, "records"] - a) for a, one in zip(right, self._groups, strict=True)]
        rest = numbers["right",] - sum(right), numbers["records",] - numbers["right",] - sum(b for _, b in rows)
        return dict(zip(self._groups, round_shares(rows, self.suppress, rest), strict=True))

    @cached_property
    def classes(self) -> Collection[int]:
        """Return the indices of outcomes with an unpublished number of records."""
        layout, records = self._layout, self._numbers["records",]
        positives = [self._numbers["positives", one] for one in layout.outcomes]
        if not self._exact:
            return ()
        if layout.kind == CLASSIFICATION and len(layout.outcomes) > 1:
            return hidden_places(positives, self.suppress)
        return [k for k, one in enumerate(positives) if hidden_places([one, records - one], self.suppress)]

    @cached_property
    def confusion(self) -> Collection[tuple[int, int]]:
        if not self._exact or self._layout.kind != CLASSIFICATION:
            return ()
        table = _confusion(self._layout, self._numbers)
        found = hidden_confusion(table, self.suppress)
        if len(table) == 2:
            return {(j, k) for j in range(2) for k in range(2)} if self.classes else found
        return {*found, *((j, k) for j in self.classes for k in range(len(table)))}

    @property
    def has_parts(self) -> bool:
        """Whether reliability parts may be published: with two classes, their two halves add up to the confusion."""
        return not (self._exact and len(self._layout.classes) == 2 and self.confusion)

    def hidden_parts(self, rows: Sequence[tuple[int, int]]) -> tuple[Collection[int], Collection[int]]:
        """Return the parts whose numbers of records `rows` (without, with the outcome) are withheld, and those without
        shares.

        With two classes the confusion discloses each half's records, so each is a separate list.
        """
        if not self._exact:
            return hidden_places([sum(row) for row in rows], self.suppress), ()
        half = len(rows) // 2 if len(self._layout.classes) == 2 else len(rows)
        counts, shares = set[int](), set[int]()
        for begin in range(0, len(rows), half):
            part = rows[begin : begin + half]
            counts |= {begin + k for k in hidden_places([sum(row) for row in part], self.suppress)}
            shares |= {begin + k for k in hidden_rows(part, self.suppress)}
        return counts, shares

    @cached_property
    def groups_of(self) -> Mapping[str, Collection[str]]:
        """Return per outcome the groups with a published number of records with it."""
        layout = self._layout
        rows = {one: {group: self._row(one, ("group", group)) for group in self._groups} for one in layout.outcomes}
        found: dict[str, Collection[str]] = {}
        if not self._exact:
            for one, row in rows.items():
                found[one] = [group for group, cells in row.items() if min(cells) >= self.suppress]
            return found
        together = layout.kind == CLASSIFICATION
        for one, row in rows.items():
            cells = [[k for other in rows for k in rows[other][group]] if together else row[group] for group in row]
            whole = [k for other in rows for k in self._row(other, ())] if together else list(self._row(one, ()))
            rest = [whole[k] - sum(row[k] for row in cells) for k in range(len(whole))]
            hidden = hidden_rows([*cells, rest], self.suppress)
            if hidden == {len(cells)}:
                hidden = frozenset(range(len(cells) + 1))
            found[one] = [group for k, group in enumerate(self._groups) if k not in hidden]
        return found

    def _row(self, outcome: str, where: Name) -> tuple[int, int]:
        positives = self._numbers[*where, "positives", outcome]
        return self._numbers[*where, "records"] - positives, positives

    def reports(self, where: Name, outcome: str) -> bool:
        """Return whether the number of records with an outcome is published, over all records or in a group."""
        if where:
            return where[1] in self.groups_of[outcome]
        return self._layout.outcomes.index(outcome) not in self.classes


def _named(layout: EvaluationLayout, numbers: Numbers, suppress: int) -> tuple[SiteFigures, ...]:
    there = {site: count for site in range(layout.named) if (count := numbers["site", str(site), "records"])}
    scores: list[float | None] = [_mean(numbers["site", str(site), "score"], 1) for site in there]
    shares: list[tuple[float | None, float]] = [(score, 0.0) for score in scores]
    if layout.kind != REGRESSION:
        right = [round((score or 0.0) * count) for score, count in zip(scores, there.values(), strict=True)]
        rows = [(a, count - a) for a, count in zip(right, there.values(), strict=True)]
        rest = numbers["right",] - sum(right), numbers["records",] - numbers["right",] - sum(b for _, b in rows)
        shares = round_shares(rows, suppress, rest)
        scores = [None if share is None else share if within else own
                  for own, (share, within) in zip(scores, shares, strict=True)]  # fmt: skip
    return tuple(
        SiteFigures(site, count, score, within)
        for (site, count), score, (_, within) in zip(there.items(), scores, shares, strict=True)
    )


def _loss(numbers: Numbers, where: Name, records: int) -> float | None:
    return _mean(numbers[*where, "loss"], records) if (*where, "loss") in numbers else None


DRAWS = 100
"""Number of redrawn noise samples for `noise_within`."""


def noisy_evaluation_of(layout: EvaluationLayout, numbers: Numbers, suppress: int, least: int) -> Evaluation:
    """Return the figures of noisy sums, and the shift of each figure under noise of this size."""
    sites = numbers["sites",]

    def of(noisy: Numbers) -> Evaluation:
        return evaluation_of(layout, {("sites",): sites} | layout.noisy.completed(noisy), suppress, least)

    draw = stream(0, "noise of an evaluation", 0)  # same seed at every site: all write the same file
    moved = [of(layout.noisy.moved(numbers, sites, draw)) for _ in range(DRAWS)]
    found = of(numbers)
    groups = tuple(
        _with_noise(one, [other.groups[place] for other in moved], ("records", "score"))
        for place, one in enumerate(found.groups)
    )
    found = msgspec.structs.replace(found, groups=groups)
    return _with_noise(found, moved, ("records", "score"))


Figures = TypeVar("Figures", Evaluation, GroupFigures)
OF_OUTCOMES = ("positives", "brier", "said", "were", "auroc")


def _with_noise(one: Figures, moved: Sequence[Figures], names: Sequence[str]) -> Figures:
    outcomes = []
    for place, outcome in enumerate(one.outcomes):
        others = [other.outcomes[place] for other in moved if other.outcomes]
        outcomes.append(msgspec.structs.replace(outcome, noise_within=_widths(outcome, others, OF_OUTCOMES)))
    return msgspec.structs.replace(one, outcomes=tuple(outcomes), noise_within=_widths(one, moved, names))


def _widths(one: object, moved: Sequence[object], names: Sequence[str]) -> dict[str, float]:
    found = {}
    for name in (name for name in names if getattr(one, name) is not None):
        values = [value for other in moved if (value := getattr(other, name)) is not None]
        found[name] = float(f"{1.96 * np.std(values):.2g}") if len(values) > 1 else math.inf
    return found


def _mean(total: int, count: int) -> float:
    return total / (count << SHIFT) if count else 0.0


def _number(numbers: Numbers, label: str) -> NumberFigures:
    records = numbers["records",]
    squared, absolute = (_mean(numbers[what, label], records) for what in ("squared", "absolute"))
    return NumberFigures(label, squared**0.5, absolute)


def _membership(layout: EvaluationLayout, numbers: Numbers, suppress: int) -> MembershipFigures | None:
    records = numbers.get(("trained", "records"), 0)
    if not records:
        return None
    score = None if layout.kind == REGRESSION else round_share(numbers["trained", "right"], records, suppress)[0]
    loss = _mean(numbers["trained", "loss"], records)
    return MembershipFigures(numbers["tested",], numbers["flagged",], records, score, loss)


def _group(layout: EvaluationLayout, numbers: Numbers, group: str, published: PublishedFigures) -> GroupFigures:
    where = ("group", group)
    records = numbers[*where, "records"]
    return GroupFigures(
        name=group,
        records=records,
        score=published.scores[group][0],
        score_within=published.scores[group][1],
        score_between=_between(layout, *published.scores[group], records),
        loss=_loss(numbers, where, records) if records else None,
        outcomes=tuple(_outcome(layout, numbers, where, one, published) for one in layout.outcomes if records),
    )


def _outcome(
    layout: EvaluationLayout, numbers: Numbers, where: Name, name: str, published: PublishedFigures
) -> OutcomeFigures:
    """Return an outcome's figures, without those that disclose few records."""
    records, positives = numbers[*where, "records"], numbers[*where, "positives", name]
    brier = _mean(numbers[*where, "brier", name], records)
    predicted = _mean(numbers[*where, "said", name], records)
    if not published.reports(where, name):
        return OutcomeFigures(name=name, brier=brier, said=predicted)
    bins = [str(k) for k in range(layout.bins)]
    having, lacking = ([numbers[*where, what, name, k] for k in bins] for what in ("with", "without"))
    area, within = area_of(having, lacking)
    parts = _parts(numbers, name, published) if not where and published.has_parts else ()
    slope, intercept = calibration_of(having, lacking) if not where and not layout.noise else (None, None)
    return OutcomeFigures(
        name=name,
        positives=positives,
        brier=brier,
        said=predicted,
        were=positives / records if records else 0.0,
        auroc=area,
        auroc_within=within,
        auroc_between=None if area is None or layout.noise else hanley_mcneil(area, positives, records - positives),
        slope=slope,
        intercept=intercept,
        calibration_error=None if where or layout.noise else _calibration_error(numbers, name),
        parts=parts,
    )


def area_of(having: Sequence[int], lacking: Sequence[int]) -> tuple[float | None, float | None]:
    """Return the AUROC by the counts in each bin, and its maximum distance to that of the values themselves.

    Pairs within one bin count half.  None if one side is empty; noisy results are clipped to the range.
    """
    pairs = sum(having) * sum(lacking)
    if pairs <= 0 or sum(having) < 0:
        return None, None
    below = above = same = 0
    for one, other in zip(having, lacking, strict=True):
        above += one * below
        same += one * other
        below += other
    return min(max((2 * above + same) / (2 * pairs), 0.0), 1.0), max(same / (2 * pairs), 0.0)


def wilson(share: float, records: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `records`.  Source: Wilson, JASA 22 (1927)."""
    z2 = Z * Z / records
    middle, half = share + z2 / 2, Z * math.sqrt((share * (1 - share) + z2 / 4) / records)
    return max(0.0, (middle - half) / (1 + z2)), min(1.0, (middle + half) / (1 + z2))


def hanley_mcneil(area: float, positives: int, negatives: int) -> tuple[float, float]:
    """Return the 95 % interval of an AUROC.  Source: Hanley and McNeil, Radiology 143 (1982)."""
    one, other = area / (2 - area), 2 * area * area / (1 + area)
    spread = area * (1 - area) + (positives - 1) * (one - area * area) + (negatives - 1) * (other - area * area)
    half = Z * math.sqrt(max(0.0, spread) / (positives * negatives))
    return max(0.0, area - half), min(1.0, area + half)


def _between(layout: EvaluationLayout, score: float | None, within: float, records: int) -> tuple[float, float] | None:
    """Return the interval of a share of right outputs, widened by its rounding, or None."""
    if score is None or not records or layout.noise or layout.kind != CLASSIFICATION:
        return None
    return wilson(max(0.0, score - within), records)[0], wilson(min(1.0, score + within), records)[1]


Calibration = tuple[float, float, float] | None


def calibration_of(having: Sequence[int], lacking: Sequence[int]) -> tuple[Calibration, Calibration]:
    """Return calibration slope and intercept with their 95 % intervals, by the counts in each bin of log-odds.

    Logistic regression of the outcome on the middle of each bin (within a sixteenth); the intercept is the one for a
    slope of 1.  Rounded to three digits of their errors.  None for equal outcomes, one bin, or separation.  Source:
    Cox, Biometrika 45 (1958).
    """
    y, n = np.array(having, float), np.array(having, float) + np.array(lacking, float)
    step = 32 / (len(n) - 2)
    middles = np.linspace(-16 - step / 2, 16 + step / 2, len(n))
    if min(y.sum(), (n - y).sum()) < 1 or (n > 0).sum() < 2:
        return None, None
    found = list[Calibration]()
    for x, offset, wanted in (
        (np.column_stack([middles, np.ones(len(n))]), np.zeros(len(n)), 0),
        (np.ones((len(n), 1)), middles, 0),
    ):
        point = np.zeros(x.shape[1])
        for _ in range(50):
            p = 1 / (1 + np.exp(-np.clip(x @ point + offset, -40, 40)))
            information = x.T @ (x * (n * p * (1 - p))[:, None])
            if np.linalg.cond(information) > 1e12:
                break
            change = np.linalg.solve(information, x.T @ (y - n * p))
            point = point + change * min(1.0, 2 / max(float(np.abs(change).max()), 1e-300))
        if np.linalg.cond(information) > 1e12 or np.abs(change).max() > 1e-8:
            found.append(None)
            continue
        error = math.sqrt(float(np.linalg.inv(information)[wanted, wanted]))
        digits = 2 - math.floor(math.log10(error))
        value = float(point[wanted])
        found.append((round(value, digits), round(value - Z * error, digits), round(value + Z * error, digits)))
    return found[0], found[1]


def _parts(numbers: Numbers, name: str, published: PublishedFigures) -> tuple[ReliabilityPart, ...]:
    parts = [("part", name, str(part)) for part in range(DECILES)]
    positives = [numbers[*part, "positives"] for part in parts]
    counts = [numbers[*part, "records"] for part in parts]
    hidden, few = published.hidden_parts([(count - has, has) for count, has in zip(counts, positives, strict=True)])
    found = []
    for part, count in enumerate(counts):
        bounds = part / DECILES, (part + 1) / DECILES
        if not count or part in hidden or part in few:
            found.append(ReliabilityPart(*bounds, None if part in hidden else count, None, None))
            continue
        predicted = _mean(numbers[*parts[part], "said"], count)
        found.append(ReliabilityPart(*bounds, count, predicted, positives[part] / count))
    return tuple(found)


class DecisionThreshold(NamedTuple):
    """The result of acting on all records with a predicted probability of `at` or more."""

    at: float
    sensitivity: float
    specificity: float
    benefit: float
    """Net benefit: true positives, less false ones at the odds of `at`, per record."""
    of_all: float
    """Net benefit of acting on all records; of acting on none it is 0."""


def thresholds_of(one: OutcomeFigures, records: int) -> list[DecisionThreshold]:
    """Return the points of the ROC and the decision curve of `records`, without those with a withheld part on either
    side.

    Source of net benefit: Vickers and Elkin, Medical Decision Making 26 (2006).
    """
    positives = one.positives
    if not positives or positives == records or one.noise_within:
        return []
    cells = [
        None if part.records is None or (part.were is None and part.records) else
        (round(part.records * (part.were or 0.0)), part.records) for part in one.parts
    ]  # fmt: skip
    found = []
    for place, part in enumerate(one.parts[1:], 1):
        above, below = cells[place:], cells[:place]
        cells_shown = [cell for cell in (above if None not in above else below) if cell is not None]
        if None in above and None in below:
            continue
        hits, all_of = (sum(cell[k] for cell in cells_shown) for k in (0, 1))
        if None in above:
            hits, all_of = positives - hits, records - all_of
        odds, false = part.low / (1 - part.low), all_of - hits
        found.append(
            DecisionThreshold(
                part.low, hits / positives, 1 - false / (records - positives), (hits - false * odds) / records,
                (positives - (records - positives) * odds) / records,
            )
        )  # fmt: skip
    return found


def _calibration_error(numbers: Numbers, name: str) -> float:
    total, records = 0.0, numbers["records",]
    for part in map(str, range(DECILES)):
        predicted, positives = numbers["part", name, part, "said"], numbers["part", name, part, "positives"]
        total += abs(predicted - (positives << SHIFT)) / (1 << SHIFT)
    return total / records if records else 0.0


def read(path: Path) -> Evaluation:
    """Read the file.  Raises ConfigError if it is missing or invalid."""
    advice = "The sites make it together: fedgossip evaluate MODEL EXPERIMENT.toml."
    return read_sums_file(Evaluation, path, FORMAT, "evaluation there", advice)
