"""What a site should look at in its own table before it agrees with others: for `fedgossip data describe`.

Nothing is changed by what is found: a number is a code, or in another unit, if the site declares it so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fedgossip.base.cells import shown
from fedgossip.data.columns.table_schema import BadCell, SiteColumns, options_of

QUOTED = 5
"""Maximum number of cells of a column that are quoted."""
LEAST_OFTEN = 3
"""Minimum number of records with a number that is taken for a code; 1 of -9 and below beside no other negative one."""
FAR = 3
"""A code is so many usual distances between neighbouring numbers away from the nearest other one."""
_CODE = re.compile(r"-?(9{1,6}|8{1,6}|7{1,6}|-1)|-1")
"""The codes for nothing of questionnaires and of statistical packages."""
FACTORS = (10.0, 100.0, 1000.0, 1e4, 1e6, 2.54, 2.2046, 18.016, 38.67, 88.42)
"""Quotients of usual units: powers of ten, inches, pounds, and mg/dl by mmol/l of glucose, cholesterol, creatinine."""
NEAR = 1.15
"""Maximum quotient of two means' quotient and that of two units."""
APART = {True: 0.75, False: 3.0}
"""Minimum distance of two means by the sum of their deviations: for factors from 10, and for smaller ones."""


def describe_bad(bad: Sequence[BadCell]) -> Iterator[str]:
    """Yield, for each column, the number of cells that do not fit, and the first ones by their rows."""
    for name in dict.fromkeys(one.column for one in bad):
        cells = [one for one in bad if one.column == name]
        yield f"column {name!r}: {_counted(len(cells))} not fit{'s' if len(cells) == 1 else ''}; the first:"
        yield from (f"  {str(one.error).rpartition('/')[2]}" for one in cells[:QUOTED])


def _counted(number: int) -> str:
    return "1 cell does" if number == 1 else f"{number} cells do"


def counted_as_rest(site: SiteColumns) -> Iterator[str]:
    """Yield the cells that no declaration names, and which count as the rest."""
    for place, cells in sorted(site.table.rest.items()):
        told = ", ".join(f"{shown(cell)!r} ({count})" for cell, count in Counter(cells).most_common(QUOTED))
        name = site.table.header[place]
        yield f"column {name!r}: {len(cells)} cells are none of its levels and count as the rest: {told}"


def repeated_rows(site: SiteColumns) -> Iterator[str]:
    """Yield the number of rows that are the same as an earlier one, in all columns."""
    if rows := site.table.repeated():
        many = "1 row is" if len(rows) == 1 else f"{len(rows)} rows are"
        yield f"{many} the same as an earlier one in all columns, the first in {site.table.where(rows[0])}"


def likely_codes(site: SiteColumns) -> Iterator[str]:
    """Yield numbers at an end of a column that look like codes for nothing: repeated, and apart from all others."""
    for one in site.schema.columns:
        if one.categories or one.label:
            continue
        values, counts = np.unique(site.numbers(one.name), return_counts=True)
        if len(values) < 3:
            continue
        for end, next_to in ((0, 1), (-1, -2)):
            value, usual = float(values[end]), float(np.median(np.diff(np.delete(values, end))))
            far = abs(value - float(values[next_to])) > FAR * usual
            least = 1 if value <= -9 and values[1] >= 0 else LEAST_OFTEN
            if far and counts[end] >= least and _CODE.fullmatch(f"{value:g}"):
                cells = "1 cell" if counts[end] == 1 else f"{counts[end]} cells"
                text = f"column {one.name!r}: {value:g} in {cells}, apart from all others: a code for nothing?"
                yield f'{text}  Declare it: missing = ["{value:g}"]'


def units_unlike(site: SiteColumns, test: str) -> Iterator[str]:
    """Yield columns whose numbers are a factor of units away from those of the common file."""
    common = SiteColumns(options_of(test)[0], site.schema, bad=[])
    for one in site.schema.columns:
        if not one.categories and len(other := common.numbers(one.name)):
            yield from unlike(
                one.name, site.numbers(one.name), float(other.mean()), float(other.std()), "the common file"
            )


def unlike(name: str, own: npt.NDArray[np.float64], mean: float, deviation: float, whose: str) -> Iterator[str]:
    """Yield a line where numbers differ from others, by their mean and deviation, as those of another unit do.

    They lie apart, by the deviations of both, and the quotient of the means is near that of two usual units.
    """
    if not len(own) or not mean or float(own.mean()) / mean <= 0:
        return
    median, own_mean = float(np.median(own)), float(own.mean())
    times = max(own_mean / mean, mean / own_mean)
    apart = abs(own_mean - mean) / max(float(own.std()) + deviation, 1e-300)
    for factor in FACTORS:
        if max(times / factor, factor / times) < NEAR and apart > APART[factor >= 10]:
            more = abs(own_mean) > abs(mean)
            way = f"{factor:g} times" if more else f"1/{factor:g} of"
            text = f"column {name!r}: its mean {own_mean:.6g} (median {median:.6g}) is about {way} that of {whose}"
            back = 1 / factor if more else factor
            yield f"{text}, {mean:.6g}: another unit?  Declare it beside the table: factor = {back:.6g}"
            return
