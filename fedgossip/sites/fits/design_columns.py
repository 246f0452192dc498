"""The columns of a regression, from the agreed statistics: categories against the first, numbers by their scale.

Sums dominated by few records disclose them, so a site checks its effective records at a point:

    n       = sum of w / max of (w, unit)          w: the working weights of the records, unit: a record's at the start
    n_j     = sum of w x_j^2 / max of w x_j^2      x_j: the scaled column of one coefficient

`unit` refuses a point at which all of a site's records have small weight: a sum over sites would nearly be another's.

Source of n: the largest share of one record in a sum is 1 / n, as in the dominance rules of official statistics
(Hundepool et al., Statistical disclosure control, 2012, section 4.2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.columns.table_schema import SchemaColumn
from fedgossip.secure.session import N_MIN
from fedgossip.sites.fits.glm.glm import Values

COLUMNS = 200
RECORDS_EACH = 5
"""Minimum number of records per coefficient: with fewer, sums of products disclose much of single ones."""


@dataclass(frozen=True)
class DesignColumns:
    """Each column of a design matrix except the intercept."""

    names: tuple[str, ...]
    places: tuple[int, ...]
    """Index of each column in the features of a table."""
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    against: tuple[str, ...]
    """Reference categories."""
    constant: tuple[str, ...]
    """Omitted columns: those with one value at every site."""


def design_columns(agreed: AgreedTable, of: str, coefficients: int = 1, without: Sequence[str] = ()) -> DesignColumns:
    """Return the columns of a model `of` a kind, with `coefficients` further ones, `without` some columns.

    Raises ConfigError for no or too many columns, too few records, and disclosing categories.
    """
    check_counted(agreed, [one for one in agreed.schema.features if one.name not in without])
    known, encoded = {one.name: one for one in agreed.columns}, {one.name: one for one in agreed.encoding.columns}
    names, places, mean, deviation, against, constant = [], [], [], [], [], []
    place = 0
    for one in agreed.schema.features:
        if one.name in without:
            pass
        elif one.categories:
            there = [k for k, count in enumerate(known[one.name].counts) if count]
            constant += [f"{one.name}={name}" for k, name in enumerate(one.categories) if k not in there]
            against += [f"{one.name}={one.categories[k]}" for k in there[:1]]
            names += [f"{one.name}={one.categories[k]}" for k in there[1:]]
            places += [place + k for k in there[1:]]
            mean += [0.0] * len(there[1:])
            deviation += [1.0] * len(there[1:])
        elif not known[one.name].deviation:
            constant.append(one.name)
        else:
            names.append(one.name)
            places.append(place)
            mean.append(known[one.name].mean or 0.0)
            deviation.append(known[one.name].deviation or 1.0)
        place += len(encoded[one.name].features)
        if encoded[one.name].indicator and one.name not in without:
            names.append(encoded[one.name].features[-1])
            places.append(place - 1)
            mean.append(0.0)
            deviation.append(1.0)
    if not 0 < len(names) <= COLUMNS:
        raise ConfigError(f"{of} of {len(names)} columns", f"There are 1 to {COLUMNS}; leave some out: drop=A,B.")
    every = len(names) + coefficients
    if agreed.records < RECORDS_EACH * every:
        text = f"{agreed.records} records for {every} coefficients: sums of products would disclose single ones"
        raise ConfigError(text, f"Leave columns out, drop=A,B: {RECORDS_EACH} records for each coefficient are needed.")
    return DesignColumns(*map(tuple, (names, places, mean, deviation, against, constant)))  # type: ignore[arg-type]


def codes_of(agreed: AgreedTable, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the columns of a design by source column, if each is of categories or of two values; else none."""
    levels = {one.name: one.levels for one in agreed.columns}
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        one = next(one for one in agreed.encoding.columns if name in one.features)
        if not (one.categories or 0 < levels[one.name] <= 2 or name != one.name):
            return ()
        found.setdefault(name if not one.categories else one.name, []).append(place)
    return tuple(map(tuple, found.values()))


def has_few_values(agreed: AgreedTable, names: Sequence[str]) -> bool:
    """Return whether each column of a design is of categories, or of at most `data.levels` values."""
    levels = {one.name: one.levels for one in agreed.columns}
    return all(one.categories or levels[one.name] or one.name not in names for one in agreed.encoding.columns)


def check_undetermined(agreed: AgreedTable, names: Sequence[str], of: str) -> None:
    """Raise ConfigError for a design without a column of many values, where each site's likelihood is one of a list.

    A reader who knows how many records of each category a site has finds which of them add up to a sum over sites:
    few do, also of rounded sums.
    """
    if has_few_values(agreed, names):
        text = f"{of} without a column of many values: its sums would count each site's records by outcome"
        raise ConfigError(text, "Keep a column of numbers in the model, such as the age; or fit glm, of all records.")


def bounds_of(agreed: AgreedTable) -> tuple[tuple[str, float, float], ...]:
    """Return name, low and high of each feature with agreed bounds."""
    there = (one for one in agreed.schema.features if one.low is not None and one.high is not None)
    return tuple((one.name, one.low, one.high) for one in there)  # type: ignore[misc]


def check_outcome(agreed: AgreedTable) -> None:
    """Raise ConfigError for an outcome, or a time to an event, with one value at all sites."""
    name = agreed.schema.labels[0].name
    (known,) = (one for one in agreed.columns if one.name == name)
    if known.deviation == 0 or len(known.categories) == 1:
        text = f"column {name!r}: one value in all {known.count} records, so there is nothing to explain"
        raise ConfigError(text, "Take another label, or look how the sites' files write it.")


def check_counted(agreed: AgreedTable, columns: Sequence[SchemaColumn]) -> None:
    """Raise ConfigError for columns with a category so rare that a sum discloses its records, and for numbers with few
    distinct values.
    """
    names = {one.name for one in columns}
    for one in (column for column in agreed.columns if column.name in names):
        label = "take another label" if one.label else f"leave the column out, drop={one.name}"
        if one.rare and one.is_coded:
            text = f"column {one.name!r}: few different values, one of them of under {agreed.suppress} records"
            raise ConfigError(text, f"A coefficient of it would disclose them: {label}, or put values together.")
        few = [name for name, count in zip(one.categories, one.counts, strict=False) if count is None]
        if few:
            lone, others = (", ".join([k for k in few if (k in one.uncounted) == are][:5]) for are in (True, False))
            rare = f"of under {agreed.suppress} records, or suppressed to protect another"
            reasons = [f"{lone} at too few sites" if lone else "", f"{others} {rare}" if others else ""]
            text = f"column {one.name!r}: {'; '.join(filter(None, reasons))}"
            raise ConfigError(text, f"A coefficient of it would disclose them: {label}.")


def check_outside(agreed: AgreedTable, name: str, where: str) -> None:
    """Raise ConfigError for a column of clusters that is one of the model too."""
    if name in (one.name for one in agreed.columns):
        text = f"{where}: it is a column of the model, or its label"
        raise ConfigError(text, f"Leave it out of the model, drop={name}, and agree again.")


def check_clusters(agreed: AgreedTable, options: Mapping[str, str], where: str) -> None:
    """Raise ConfigError for a `cluster` beside errors that are not robust, or that is a column of the model."""
    if "cluster" not in options:
        return
    if options.get("errors") != "robust":
        raise ConfigError(f"{where}: clusters beside errors of single records", "Add errors=robust.")
    check_outside(agreed, options["cluster"], where)


CUT_SHORT = "the last rounds failed, or sites refused a point at which few of their records count"
"""Why a fit has taken fewer steps than it may, and is not at its end."""
FAR = "as some are far out in"
TWO = 2.0
"""Effective number of a column's records at a point that is enough, unless two are nearly all."""
OF_TWO = 0.75
"""Maximum share of two records in a column's sum of squares at such a point."""
OF_ONE = ((20, 0.75), (5, 0.9))
"""Maximum share of one record in a sum of squared residuals of so many records or more: of five, chance alone gives one
in fifty above .9, and one in eight above .75.
"""
LOOK = (
    "The command of the site that refused prints the column, as its metrics.jsonl has it; the coordinator's names the "
    "site: values far out, or a rare category, carry the column's sum, or its coefficients diverge. Declare its bounds "
    "or cuts in [data.columns], leave it out, drop=COLUMN, or agree on a smaller data.suppress"
)


def effective(weights: Values, unit: float = 0.0) -> float:
    """Return the effective number of records [m] with these weights, all >= 0; 0 if all are 0."""
    largest = max(float(weights.max(initial=0.0)), unit)
    return float(weights.sum()) / largest if largest > 0 else 0.0


def too_few(
    weights: Values,
    unit: float,
    columns: Sequence[tuple[str, Values]],
    least: float,
    begin: Values | None = None,
    of: str = "records",
) -> str:
    """Return in words a sum with fewer than `least` effective records, or clusters; "" if all have enough.

    For a column a quarter of the number without weights is enough, but at least two and a third of `least`, as a sum is
    of three sites, or half of fewer than twice that: no record is more than half of a column's sum of squares at a
    site, nor two of four or more above OF_TWO of it.
    `begin`: weights by outcomes at the start, [m]; then two are enough, or the number at the start, because an honest
    point has few of a column with much of such weights.
    """
    far = [name for name, values in columns if effective(values * values) < least]
    if effective(weights, unit) < least:
        why = f", {FAR} {', '.join(map(repr, far))}" if far else ""
        return f"fewer than {least:g} of this site's {of} count there{why}"
    few = []
    for name, values in columns:
        own, there = effective(squares := values * values), weights * squares
        number, wanted, most = effective(there), max(own / 4, TWO, least / N_MIN), OF_TWO
        if begin is not None:
            wanted, most = min(effective(begin * squares), TWO), max(_of_two(begin * squares), OF_TWO)
        heavy = least > number and own >= 2 * TWO and _of_two(there) > most
        if heavy or number < min(least, wanted, own / 2):
            few.append(name)
    return f"too few of this site's {of} count there for {', '.join(map(repr, few))}" if few else ""


def _of_two(parts: Values) -> float:
    """Return the share of the two largest in a sum; 0 for an empty one."""
    total = float(parts.sum())
    return float(np.partition(parts, -2)[-2:].sum()) / total if total > 0 else 0.0


def carried_by_one(columns: Sequence[tuple[str, Values]], of: str = "records") -> str:
    """Return in words the columns whose sum of squares [m] is nearly one record's, or cluster's; "" without any.

    With few squares, as of a category, one often dominates; an outlying record also dominates the sum of all records.
    """
    few = []
    for name, squares in columns:
        most = next((share for many, share in OF_ONE if np.count_nonzero(squares) >= many), 1.0)
        if squares.max(initial=0.0) > most * squares.sum():
            few.append(repr(name))
    return f"one of this site's {of} is most of the squared residuals of {', '.join(few)}" if few else ""


def quartile_cuts(agreed: AgreedTable) -> dict[str, list[float]]:
    """Return the agreed quartiles of each column of numbers with many distinct values, rounded, as cut points."""
    found = {}
    for one in agreed.columns:
        ends = sorted({float(f"{one.quantiles[share]:.2g}") for share in ("0.25", "0.5", "0.75") if one.quantiles})
        if ends and not (one.label or one.is_coded):
            found[one.name] = ends
    return found


def words_instead(name: str, agreed: AgreedTable) -> str:
    """Return the advice if a column that groups records has no words: another column, or how codes become words."""
    numbers = [one.name for one in agreed.columns if not (one.categories or one.label)]
    if name in numbers:
        codes = f'[data.columns.{json.dumps(name, ensure_ascii=False)}] categories = ["0", "1"]'
        return f"It has numbers.  If these are codes, list all of them in the experiment, {codes}, and agree again."
    words = [one.name for one in agreed.columns if one.categories and not one.label]
    return nearest(name, words) if words else "No column has words."
