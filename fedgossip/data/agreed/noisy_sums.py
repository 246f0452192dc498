"""Noise on a site's sums before it sends them: it hides a single record from everybody, the coordinator included.

Every number is divided by one record's maximum contribution, rounded to grains, and gets discrete Gaussian noise in
grains (`secure.noise`).  A record counts in the number of records, in each column either as missing or in sum and
squares, in one bin or category of each: so the length of its contribution is bounded, and each of the two rounds is one
Gaussian release with noise that is a multiple of that length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from fedgossip.base.errors import ConfigError
from fedgossip.data.columns.table_schema import INDICATOR, MEAN, SchemaColumn, TableSchema
from fedgossip.secure.noise import discrete_gaussian
from fedgossip.secure.primitives import Entropy

Name = tuple[str, ...]

GRAIN = 1 << 16
"""Grains per maximum contribution of one record to a number."""
NORMAL_95 = 1.959964
"""Quantile: the standard normal is within this distance of 0 in 95 % of cases."""
MOST = 12
"""Standard deviations of noise that a number's bound allows for."""


def check_bounded(schema: TableSchema) -> None:
    """Raise ConfigError for a column without declared bounds: a record's contribution to its sum is unbounded."""
    for one in schema.columns:
        if not one.categories and not one.bounded:
            text = f"column {one.name!r} has no bounds, so no noise can hide a record in its sum"
            raise ConfigError(text, f'Declare them: [data.columns] "{one.name}" = {{ low = ..., high = ... }}.')


def length_of(schema: TableSchema, round: int) -> float:
    """Return the maximum length of one record's contribution to the numbers of a round, in their units."""
    if round:
        return math.sqrt(len(schema.columns))
    gaps = schema.missing in (MEAN, INDICATOR)
    return math.sqrt(1 + sum((gaps and not one.label) if one.categories else 2 for one in schema.columns))


def deviation_of(schema: TableSchema, round: int, names: int, multiplier: float) -> float:
    """Return the standard deviation of noise on each of so many numbers, in grains, with the effect of rounding."""
    return grains_of(length_of(schema, round), names, multiplier)


def grains_of(length: float, names: int, multiplier: float) -> float:
    """Return the standard deviation of noise on each of so many numbers, in grains, by a record's `length` in units."""
    return multiplier * (length * GRAIN + math.sqrt(names))


def unit_of(column: SchemaColumn, what: str, shift: int) -> int:
    """Return one record's maximum contribution to a number of this column."""
    if what not in ("sum", "squares"):
        return 1
    largest = math.ceil(math.ldexp(max(abs(column.low or 0.0), abs(column.high or 0.0)), shift))
    return largest if what == "sum" else largest * largest


def hidden(
    numbers: Mapping[Name, int], units: Callable[[Name], int], deviation: float, entropy: Entropy
) -> dict[Name, int]:
    """Return the numbers with noise: functions of their noisy grains, and of nothing finer."""
    draws: Sequence[int] = discrete_gaussian(deviation, len(numbers), entropy).tolist()
    found = {}
    for (name, value), draw in zip(numbers.items(), draws, strict=True):
        unit = units(name)
        found[name] = divided((divided(value * GRAIN, unit) + draw) * unit, GRAIN)
    return found


def half_width(deviation: float, unit: int, sites: int) -> float:
    """Return the maximum shift by noise of a sum over so many sites, at 95 % confidence, in the units of the number.

    The discrete Gaussian of a `deviation` of more than a few grains has that standard deviation (Canonne, Kamath and
    Steinke, The discrete Gaussian for differential privacy, NeurIPS 2020), and the sites draw independently: the sum
    has variance sites * ((deviation * unit / GRAIN)^2 + 1/12), the twelfth for the rounding to a whole number, and the
    interval is that of a normal distribution.
    """
    return NORMAL_95 * math.sqrt(sites * ((deviation * unit / GRAIN) ** 2 + 1 / 12))


def divided(number: int, by: int) -> int:
    """Return the whole number nearest to a quotient, ties to even, so that rounding has no bias."""
    down, rest = divmod(number, by)
    return down + (2 * rest > by or (2 * rest == by and down % 2))
