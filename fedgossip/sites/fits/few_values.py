"""Whether the sums of a fit count few records: of two categories, or of few numbers of a column.

Estimates of a fit with such columns alone are a table of counts in another form (Brandt et al., Guidelines for the
checking of output based on microdata research, 2010, section 2.2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedgossip.base.errors import TrainingError
from fedgossip.data.agreed.agreed_table import AgreedColumn, AgreedTable
from fedgossip.sites.fits.glm.glm import ScaledColumns, Values

ALONE = "Estimates of categories alone would count them: put some together, or leave a column out, drop=COLUMN."
UNCLEAR = (
    'One sum of it would count its records: declare its values as categories, set data.missing = "drop", or leave it '
    "out, drop={}."
)
SLACK = 1e-3
"""Rounding error of a sum of records, which are whole, or parts of ten."""


def terms_of(design: ScaledColumns) -> Iterator[tuple[str, list[int]]]:
    """Yield the name of each column of the table with its places in the design: all categories of one together."""
    of = {name: one.name for one in design.encoding.columns if one.categories for name in one.features}
    terms = [of.get(name, name) for name in design.columns]
    for term, places in itertools.groupby(range(len(terms)), terms.__getitem__):
        yield term, list(places)


def counted_outcomes(
    agreed: AgreedTable, family: str, records: int, squares: float, ones: Values, sums: Values
) -> Values:
    """Return the sums of columns over the records of each outcome, [k, p + 1], for `few_share`; of few numbers above
    the least and below the greatest, of counts `sums`.

    `ones`, `sums` [p + 1]: of the columns, and of them times the outcome; `squares`: of the outcomes.
    """
    known = next((one for one in agreed.columns if one.label), None)
    if codes := None if family == "gamma" else _codes(known, records, float(sums[0]), squares):
        least, greatest, apart = codes
        return np.stack([greatest * ones - sums, sums - least * ones]) / apart
    return sums[None] if family == "poisson" else np.zeros((0, len(sums)))


def _codes(known: AgreedColumn | None, records: int, total: float, squares: float) -> tuple[float, ...] | None:
    """Return least, greatest and spacing of a column of few values, () if unknown; None for many values.

    Without agreed ones a number that is a or a + 1 in every record has few: for whole numbers the sum of
    (x - a)(x - a - 1) is 0.
    """
    if known is not None and known.levels:
        return known.codes
    low = math.floor(total / records + 1e-9)
    off = squares - (2 * low + 1) * total + low * (low + 1) * records
    return (low, low + 1, 1) if abs(off) < 1e-6 * records else None


class _Score(NamedTuple):
    """Evenly spaced values of a column, and how many records have each; () if unknown."""

    least: float
    greatest: float
    apart: float
    counts: tuple[int, ...]

    def ends(self, x: Values, ones: Values) -> Values:
        """Return a record's distances from the least and the greatest value, in spacings, as rows [2, p + 1]."""
        return np.concatenate([x - self.least * ones, self.greatest * ones - x]) / self.apart

    def distances(self, m: Values, sums: Values, records: int) -> Iterator[Values]:
        """Yield the distances of `sums` over m records [k] from the least and the greatest possible ones, in spacings,
        and the numbers of records with each value if these alone are possible.
        """
        of_records = self.counts and sum(m) <= records + SLACK  # not of counts
        many = np.array(self.counts if of_records else [max(records, *m)] * 2, np.float64)
        values = np.linspace(self.least, self.greatest, len(many))
        for n, x in ((many, values), (many[::-1], values[::-1])):
            packed = np.clip(m[:, None] - (np.cumsum(n) - n), 0, n)
            away = np.abs(sums - packed @ x) / self.apart
            yield from (away, packed[away < 1 / 2], (n - packed)[away < 1 / 2])


def few_share(
    design: ScaledColumns, products: Values, records: int, agreed: AgreedTable, outcomes: Values | None = None
) -> bool:
    """Return whether 1 to `agreed.suppress` - 1 records share two categories, or one and an outcome.

    Of a column of few numbers a sum over a category's records counts few if it is close to the least or greatest one
    possible: `suppress` spacings away several tables have it.  Without even spacing, or with filled cells, one sum
    may determine all counts, and they are taken to be few.

    `products`: X'X of scaled columns and their ones, [p + 1, p + 1].  `outcomes`: sums of the columns over each
    outcome's records, [k, p + 1].

    Raises TrainingError if they do and no column is of other numbers.
    """
    units = np.diag([1.0, *design.deviation])
    units[1:, 0] = design.mean
    counts, one = units @ products @ units.T, np.eye(len(units))
    known = {column.name: column for column in agreed.columns}
    classes = [] if outcomes is None else [outcomes @ units.T]
    words, scores, unclear, plain = list[Values](), list[tuple[Values, _Score]](), list[str](), False
    for term, places in terms_of(design):
        x, at, column = one[[place + 1 for place in places]], places[0] + 1, known.get(term)
        of_words = term not in design.columns
        codes = (0.0, 1.0, 1.0) if of_words else _codes(column, records, counts[0, at], counts[at, at])
        if codes is None:
            plain = True
        elif not codes or (column and agreed.fills and _is_mixed(column, of_words=of_words)):
            unclear.append(term)
        elif of_words:
            words.append(np.concatenate([one[:1] - x.sum(axis=0), x]))
        else:
            known_counts = column.spectrum if column and not column.imputed else ()
            scores.append((x, _Score(codes[0], codes[1], codes[2], known_counts)))
    tables = [a @ counts @ b.T for a, b in itertools.combinations(words, 2)] + [
        of @ a.T for of in classes for a in words
    ]
    ends = [score.ends(x, one[:1]) for x, score in scores]
    tables += [a @ counts @ b.T for a, b in itertools.combinations(ends, 2)]
    for x, score in scores:
        for of in (*classes, *(a @ counts for a in words)):
            tables += score.distances(of[:, 0], (of @ x.T)[:, 0], records)
    few = any(((table > SLACK) & (table < agreed.suppress - SLACK)).any() for table in tables)
    if few and not plain:
        text = f"fewer than {agreed.suppress} records share two categories, or one and an outcome"
        raise TrainingError(f"{text}, and no column is of numbers", ALONE)
    if unclear and not plain:
        text = f"column {unclear[0]!r}: few values, unevenly spaced or with empty cells filled, and no column of many"
        raise TrainingError(text, UNCLEAR.format(unclear[0]))
    return few or bool(unclear)


def _is_mixed(column: AgreedColumn, *, of_words: bool) -> bool:
    """Return whether other numbers than a column's few stand in its empty cells."""
    own = (of_words and column.indicated) or (column.imputed and column.is_two_valued)
    return column.missing != 0 and not own


def is_coarse(design: ScaledColumns, agreed: AgreedTable) -> bool:
    """Return whether all columns are of few values, one of three or more: with further sums, as of squared residuals,
    exact estimates would give how many records have which value and outcome.
    """
    levels = {one.name: one.levels for one in agreed.columns}
    numbers = [levels.get(name, 0) for name, _ in terms_of(design) if name in design.columns]
    return all(numbers) and max(numbers, default=0) > 2
