"""Noise on a site's sums before they leave it, so that a single record is hidden in them, whoever adds them up.

Every number is divided by the most that one record can add to it, rounded to grains, and has discrete Gaussian noise in
grains (`secure.noise`).  A record is in the number of records, in each column either missing or in sum and squares, in
one bin or category of each: so the length of what it adds is bounded, and each of the two rounds is one Gaussian
release, whose noise is a multiple of that length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from fedgossip.base.errors import ConfigError
from fedgossip.data.columns.table_schema import MEAN, SchemaColumn, TableSchema
from fedgossip.secure.noise import discrete_gaussian
from fedgossip.secure.primitives import Entropy

Name = tuple[str, ...]

GRAIN = 1 << 16
"""Grains of the most that one record adds to a number."""
NORMAL_95 = 1.959964
"""The standard normal lies within as much of 0 in 95 % of cases."""
MOST = 12
"""Deviations of the noise that a number's bound has room for."""


def check_bounded(schema: TableSchema) -> None:
    """Raise ConfigError for a column without declared bounds: nobody knows how much one record adds to its sum."""
    for one in schema.columns:
        if not one.categories and not one.bounded:
            text = f"column {one.name!r} has no bounds, so no noise can hide a record in its sum"
            raise ConfigError(text, f'Declare them: [data.columns] "{one.name}" = {{ low = ..., high = ... }}.')


def length_of(schema: TableSchema, round: int) -> float:
    """Return the greatest length of what one record adds to the numbers of a round, in their units."""
    if round:
        return math.sqrt(len(schema.columns))
    gaps = schema.missing == MEAN
    return math.sqrt(1 + sum((gaps and not one.label) if one.categories else 2 for one in schema.columns))


def deviation_of(schema: TableSchema, round: int, names: int, multiplier: float) -> float:
    """Return the deviation of the noise on each of so many numbers, in grains; rounding makes a record longer."""
    return grains_of(length_of(schema, round), names, multiplier)


def grains_of(length: float, names: int, multiplier: float) -> float:
    """Return the deviation of the noise on each of so many numbers, in grains, by a record's length in their units."""
    return multiplier * (length * GRAIN + math.sqrt(names))


def unit_of(column: SchemaColumn, what: str, shift: int) -> int:
    """Return the most that one record adds to a number of this column."""
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
    """Return how far noise moves a sum over so many sites in 95 % of cases, in the units of the number.

    The discrete Gaussian of a `deviation` that is no small number of grains has that deviation (Canonne, Kamath and
    Steinke, The discrete Gaussian for differential privacy, NeurIPS 2020), and the sites draw theirs apart: the sum has
    variance sites * ((deviation * unit / GRAIN)^2 + 1/12), the twelfth for the rounding to a whole number, and the
    interval is that of a normal one.
    """
    return NORMAL_95 * math.sqrt(sites * ((deviation * unit / GRAIN) ** 2 + 1 / 12))


def divided(number: int, by: int) -> int:
    """Return the whole number next to a quotient, of two as near the even one, so that none is moved on average."""
    down, rest = divmod(number, by)
    return down + (2 * rest > by or (2 * rest == by and down % 2))
