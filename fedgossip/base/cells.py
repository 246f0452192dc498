"""What a cell of a table holds: nothing, a number, or a word.  All readers of tables ask here, so that they agree.

A number is what a spreadsheet reads as one: digits of ASCII, a point, an exponent.  Python's 1_000, inf and digits of
other scripts are words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable

MISSING = frozenset(
    {"", "na", "n/a", "nan", "-nan", "null", "none", "?", ".", "#n/a", "#na", "#n/a n/a", "<na>", "nat"}
    | {"1.#qnan", "-1.#qnan", "1.#ind", "-1.#ind", "#value!", "#null!", "#div/0!", "#ref!", "#num!", "#name?"}
)
"""Cells that hold nothing, in small letters, as pandas, R, SAS, SQL and spreadsheets write them."""

LARGEST = (2 - 2.0**-23) * 2.0**127
"""Largest number that float32 can hold."""

SHOWN = 60
"""Maximum number of letters of a cell in a message."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_EXACT = 15
"""So many digits of a whole number float64 always holds."""
_CODES = re.compile(r"-9{1,5}")
"""-9, -99, -999: by which SPSS, PLINK and questionnaires mark that a value is missing."""


def is_missing(cell: str) -> bool:
    """Return whether a cell holds nothing."""
    return cell.lower() in MISSING


def number_in(cell: str) -> float | None:
    """Return the number in a cell; None for one that holds none, or none that float32 can hold.

    A whole number of so many digits that float64 would change it is a name, as that of a patient, and None.
    """
    if not _NUMBER.fullmatch(cell):
        return None
    value = float(cell)
    if abs(value) > LARGEST or (len(cell) > _EXACT and cell.lstrip("+-").isdecimal() and int(cell) != int(value)):
        return None
    return value


def is_number(cell: str) -> bool:
    """Return whether a cell is a number that float32 can hold."""
    return number_in(cell) is not None


def class_name(cell: str) -> str:
    """Return the name of a class: of a number the shortest that is it, so that 1 and 1.0 are one class."""
    value = number_in(cell)
    return cell if value is None else f"{value:.17g}"


def no_label(cells: Collection[str]) -> frozenset[str]:
    """Return which of the different cells of a label column hold no label: they are never a class.

    Beside cells that hold nothing these are "-" without a "+" beside it, and one code like -9 or -999 among whole
    numbers of which no other is negative.
    """
    found = {cell for cell in cells if is_missing(cell)}
    if "-" in cells and "+" not in cells:
        found.add("-")
    negative = [cell for cell in cells if (number_in(cell) or 0) < 0]
    if len(negative) == 1 and _CODES.fullmatch(negative[0]):
        found.add(negative[0])
    return frozenset(found)


def like_names(names: Iterable[str]) -> list[str]:
    """Return the first names that differ in capitals or in spaces alone; [] where there are none."""
    by_word = defaultdict(list)
    for name in dict.fromkeys(names):
        by_word[" ".join(name.casefold().split())].append(name)
    return next((several for several in by_word.values() if len(several) > 1), [])


def shown(cell: str) -> str:
    """Return a cell as a message shows it: its beginning, where it is long."""
    return cell if len(cell) <= SHOWN else f"{cell[: SHOWN - 3]}..."


def with_point(cell: str) -> str:
    """Return the advice for a number that is written otherwise; "" for another cell."""
    bare = cell.replace(" ", "").replace("\u00a0", "").replace("\u202f", "")
    if bare.endswith("%") and is_number(bare[:-1].replace(",", ".")):
        return "Write a share as a number: 0.12 for 12 %."
    if "_" not in bare and "," not in bare:
        return f"Write numbers without marks between thousands: {bare}." if bare != cell and is_number(bare) else ""
    plain = bare.replace("_", "")
    if plain.count(",") == 1 and "." not in plain and is_number(plain.replace(",", ".")):
        point, whole = plain.replace(",", "."), plain.replace(",", "")
        thousands = f"; {whole} if the comma stands between thousands" if len(plain.rpartition(",")[2]) == 3 else ""
        return f"Write numbers with a point: {point}{thousands}."
    if is_number(plain.replace(".", "").replace(",", "")):
        return "Write numbers with a point, and without marks between thousands."
    return ""
