"""evaluation.json: how well a model answers at all sites together, in its groups and at each site, by sums alone.

Groups of fewer than `suppress` records are left out, and a second one where one alone could be found by subtraction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from fedgossip.learning.evaluation_sums import (
    PLACES,
    SITES,
    EvaluationLayout,
    score_of,
)
from fedgossip.learning.noisy_evaluation import DECILES, SHIFT, Name, Numbers
from fedgossip.learning.objectives import REGRESSION
from fedgossip.learning.suppression import suppressed
from fedgossip.learning.told_files import read_told
from fedgossip.seeds import stream

EVALUATION = "evaluation.json"
"""In the folder of the model."""
FORMAT = 1


class ReliabilityPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The records to which the model gives a probability within some bounds; None where they are too few."""

    low: float
    high: float
    records: int | None
    said: float | None
    """The mean probability."""
    were: float | None
    """The share that have the outcome."""


class OutcomeFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One outcome: of two classes the second, of more each against the rest, each of several labels."""

    name: str
    positives: int | None = None
    """Number of records that have it."""
    brier: float | None = None
    """Mean squared difference of probability and truth."""
    said: float | None = None
    """The mean probability that the model gives it."""
    were: float | None = None
    """The share of records that have it."""
    auroc: float | None = None
    auroc_within: float | None = None
    """So far the AUROC may lie from that of the records themselves: by the width of the histograms' bins."""
    calibration_error: float | None = None
    """The mean difference of what was said and what was, over the parts, by their records."""
    parts: tuple[ReliabilityPart, ...] = ()
    noise_within: Mapping[str, float] = {}
    """By the name of a figure: so far noise has moved it at most, 95 times of 100."""


class NumberFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One label of a regression, in its unit."""

    name: str
    rmse: float
    mae: float


class GroupFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The records of a group; all None where they are too few to be told."""

    name: str
    records: int | None = None
    score: float | None = None
    loss: float | None = None
    outcomes: tuple[OutcomeFigures, ...] = ()
    noise_within: Mapping[str, float] = {}


class SiteFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One site, where all have allowed that it is named."""

    site: int
    records: int
    score: float


class MembershipFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the sites' own membership tests say, and the gap between records trained on and kept."""

    tested: int
    """Number of sites with enough records for a test."""
    flagged: int
    records: int
    score: float | None
    loss: float


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The file."""

    format: int = FORMAT
    layout: EvaluationLayout
    suppress: int
    sites: int
    least: int
    """Number of sites that a sum is over, at least."""
    records: int
    score: float | None
    loss: float | None = None
    """None under a budget: there is no most that one record adds to it."""
    outcomes: tuple[OutcomeFigures, ...] = ()
    numbers: tuple[NumberFigures, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    """[true class][answered class]."""
    groups: tuple[GroupFigures, ...] = ()
    places: tuple[tuple[float, float], ...] = ()
    """Between which bounds the score of each site lies, the worst first."""
    named: tuple[SiteFigures, ...] = ()
    membership: MembershipFigures | None = None
    noise_within: Mapping[str, float] = {}


def evaluation_of(layout: EvaluationLayout, numbers: Numbers, suppress: int, least: int) -> Evaluation:
    """Return what the sums over the sites say."""
    records = numbers["records",]
    counts = [numbers["group", group, "records"] for group in layout.groups]
    apart = {place for place, group in enumerate(layout.groups) if 0 < numbers.get(("at", group), SITES) < SITES}
    told = suppressed(counts, suppress, apart, records - sum(counts))
    return Evaluation(
        layout=layout,
        suppress=suppress,
        sites=numbers["sites",],
        least=least,
        records=records,
        score=score_of(layout, numbers, ()),
        loss=_loss(numbers, (), records),
        outcomes=tuple(_outcome(layout, numbers, (), one, suppress) for one in layout.outcomes),
        numbers=tuple(_number(numbers, one) for one in layout.labels if layout.kind == REGRESSION),
        confusion=tuple(tuple(numbers["confusion", true, said] for said in layout.classes) for true in layout.classes),
        groups=tuple(
            GroupFigures(name=group) if count is None else _group(layout, numbers, group, suppress)
            for group, count in zip(layout.groups, told, strict=True)
        ),
        places=tuple(
            (place / PLACES, (place + 1) / PLACES)
            for place in range(PLACES)
            for _ in range(numbers.get(("place", str(place)), 0))
        ),
        named=tuple(
            SiteFigures(site, count, _mean(numbers["site", str(site), "score"], 1))
            for site in range(layout.named)
            if (count := numbers["site", str(site), "records"])
        ),
        membership=_membership(layout, numbers),
    )


def _loss(numbers: Numbers, where: Name, records: int) -> float | None:
    return _mean(numbers[*where, "loss"], records) if (*where, "loss") in numbers else None


DRAWS = 100
"""Times that other noise is drawn, to see how far it moves a figure."""


def noisy_evaluation_of(layout: EvaluationLayout, numbers: Numbers, suppress: int, least: int) -> Evaluation:
    """Return what sums with noise say, and how far noise of this size moves each figure."""
    sites = numbers["sites",]

    def of(noisy: Numbers) -> Evaluation:
        return evaluation_of(layout, {("sites",): sites} | layout.noisy.completed(noisy), suppress, least)

    draw = stream(0, "noise of an evaluation", 0)  # the same at all, who write the same file
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


def _membership(layout: EvaluationLayout, numbers: Numbers) -> MembershipFigures | None:
    records = numbers.get(("trained", "records"), 0)
    if not records:
        return None
    score = None if layout.kind == REGRESSION else numbers["trained", "right"] / records
    loss = _mean(numbers["trained", "loss"], records)
    return MembershipFigures(numbers["tested",], numbers["flagged",], records, score, loss)


def _group(layout: EvaluationLayout, numbers: Numbers, group: str, suppress: int) -> GroupFigures:
    where = ("group", group)
    records = numbers[*where, "records"]
    return GroupFigures(
        name=group,
        records=records,
        score=score_of(layout, numbers, where),
        loss=_loss(numbers, where, records) if records else None,
        outcomes=tuple(_outcome(layout, numbers, where, one, suppress) for one in layout.outcomes if records),
    )


def _outcome(layout: EvaluationLayout, numbers: Numbers, where: Name, name: str, suppress: int) -> OutcomeFigures:
    """Return the figures of an outcome; of a group those alone that do not show how few have it, or have it not."""
    records, positives = numbers[*where, "records"], numbers[*where, "positives", name]
    brier = _mean(numbers[*where, "brier", name], records)
    said = _mean(numbers[*where, "said", name], records)
    if where and not suppress <= positives <= records - suppress:
        return OutcomeFigures(name=name, brier=brier, said=said)
    bins = [str(k) for k in range(layout.bins)]
    having, lacking = ([numbers[*where, what, name, k] for k in bins] for what in ("with", "without"))
    area, within = area_of(having, lacking)
    parts = () if where else _parts(numbers, name, suppress)
    return OutcomeFigures(
        name=name,
        positives=positives,
        brier=brier,
        said=said,
        were=positives / records if records else 0.0,
        auroc=area,
        auroc_within=within,
        calibration_error=None if where or layout.noise else _calibration_error(numbers, name),
        parts=parts,
    )


def area_of(having: Sequence[int], lacking: Sequence[int]) -> tuple[float | None, float | None]:
    """Return the AUROC by the counts in each bin, and how far it may lie from that of the values themselves.

    Of pairs within a bin half count; any order of them is possible.  None where one side is empty; counts with noise
    may be below 0, what is made of them not.
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


def _parts(numbers: Numbers, name: str, suppress: int) -> tuple[ReliabilityPart, ...]:
    counts = [numbers["part", name, str(part), "records"] for part in range(DECILES)]
    found = []
    for part, count in enumerate(suppressed(counts, suppress)):
        bounds = part / DECILES, (part + 1) / DECILES
        if not count:
            found.append(ReliabilityPart(*bounds, count, None, None))
            continue
        said = _mean(numbers["part", name, str(part), "said"], count)
        found.append(ReliabilityPart(*bounds, count, said, numbers["part", name, str(part), "positives"] / count))
    return tuple(found)


def _calibration_error(numbers: Numbers, name: str) -> float:
    total, records = 0.0, numbers["records",]
    for part in map(str, range(DECILES)):
        said, positives = numbers["part", name, part, "said"], numbers["part", name, part, "positives"]
        total += abs(said - (positives << SHIFT)) / (1 << SHIFT)
    return total / records if records else 0.0


def read(path: Path) -> Evaluation:
    """Read the file.  Raises ConfigError where it is not there, or none."""
    advice = "The sites make it together: fedgossip evaluate MODEL EXPERIMENT.toml."
    return read_told(Evaluation, path, FORMAT, "evaluation there", advice)
