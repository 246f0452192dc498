"""The columns of a regression, of what sites have agreed on: categories against the first, numbers by their scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedgossip.errors import ConfigError
from fedgossip.learning.agreed import AgreedTable

COLUMNS = 200
RECORDS_EACH = 5
"""Records that there must be for each coefficient, or sums of products would say much of single ones."""


@dataclass(frozen=True)
class DesignColumns:
    """Each column of a design matrix but the intercept."""

    names: tuple[str, ...]
    places: tuple[int, ...]
    """Of each among the features of a table."""
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    against: tuple[str, ...]
    """Categories that others are compared with."""
    constant: tuple[str, ...]
    """Columns that are left out, for they have one value at every site."""


def design_columns(agreed: AgreedTable, of: str, coefficients: int = 1, without: Sequence[str] = ()) -> DesignColumns:
    """Return the columns of a model `of` a kind, which has `coefficients` beside them, `without` some.

    Raises ConfigError for none or too many, for too few records, and for categories of so few that a coefficient would
    tell of them.
    """
    _check_counted(agreed)
    known = {one.name: one for one in agreed.columns}
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
        place += len(one.categories) or 1
    if not 0 < len(names) <= COLUMNS:
        raise ConfigError(f"{of} of {len(names)} columns", f"There are 1 to {COLUMNS}; leave some out: drop=A,B.")
    every = len(names) + coefficients
    if agreed.records < RECORDS_EACH * every:
        text = f"{agreed.records} records for {every} coefficients: sums of products would tell of single ones"
        raise ConfigError(text, f"Leave columns out, drop=A,B: {RECORDS_EACH} records for each coefficient are needed.")
    return DesignColumns(*map(tuple, (names, places, mean, deviation, against, constant)))  # type: ignore[arg-type]


def _check_counted(agreed: AgreedTable) -> None:
    """Raise ConfigError for a category of so few records that a sum over them would tell of each."""
    for one in agreed.columns:
        if one.label:
            continue
        few = [name for name, count in zip(one.categories, one.counts, strict=False) if count is None]
        if few:
            lone, others = (", ".join([k for k in few if (k in one.uncounted) == are][:5]) for are in (True, False))
            rare = f"of under {agreed.suppress} records, or not told lest another be found"
            told = [f"{lone} at too few sites" if lone else "", f"{others} {rare}" if others else ""]
            text = f"column {one.name!r}: {'; '.join(filter(None, told))}"
            raise ConfigError(text, f"A coefficient of it would tell of them: leave the column out, drop={one.name}.")
