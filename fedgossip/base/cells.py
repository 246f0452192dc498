"""A table's cell as missing, a number, or a word, for all readers of tables.

Numbers have ASCII digits, a point, an exponent: 1_000 and inf are words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import lru_cache

MISSING = frozenset(
    {"", "na", "n/a", "nan", "-nan", "null", "none", "?", ".", "#n/a", "#na", "#n/a n/a", "<na>", "nat"}
    | {"1.#qnan", "-1.#qnan", "1.#ind", "-1.#ind", "#value!", "#null!", "#div/0!", "#ref!", "#num!", "#name?"}
)
"""Missing values in lower case, as written by pandas, R, SAS, SQL and spreadsheets."""

LARGEST = (2 - 2.0**-23) * 2.0**127
"""Largest finite float32."""

SHOWN = 60
"""Maximum number of letters of a cell in a message."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_EXACT = 15
"""Maximum number of digits of an integer that float64 always represents exactly."""
_CODES = re.compile(r"-9{1,5}")
"""-9, -99, -999: codes of missing values in SPSS, PLINK and questionnaires."""


def is_missing(cell: str) -> bool:
    return cell.lower() in MISSING


@lru_cache(1 << 16)  # a command reads a cell for the schema, the model and the digest of records
def number_in(cell: str) -> float | None:
    """Return the number in a cell; None without one, beyond float32, or for an integer (a patient number) beyond
    float64.
    """
    if not _NUMBER.fullmatch(cell):
        return None
    value = float(cell)
    if abs(value) > LARGEST or (len(cell) > _EXACT and cell.lstrip("+-").isdecimal() and int(cell) != int(value)):
        return None
    return value


def is_number(cell: str) -> bool:
    """Return whether a cell is a number within float32."""
    return number_in(cell) is not None


def class_name(cell: str) -> str:
    """Return the name of a class: for a number its shortest form, so that 1 and 1.0 are one class."""
    value = number_in(cell)
    return cell if value is None else f"{value:.17g}"


def missing_labels(cells: Collection[str], classes: Collection[str] = ()) -> frozenset[str]:
    """Return the distinct cells of a label column that mean a missing label.

    Those of `is_missing`; "-" in a column without "+"; and a code like -9 or -999, the only negative number.
    `classes`: known classes (from a model, or the common test file): in the last two cases a cell in it is that class.
    """
    found = {cell for cell in cells if is_missing(cell)}
    if "-" in cells and "+" not in cells and "-" not in classes:
        found.add("-")
    negative = [cell for cell in cells if (number_in(cell) or 0) < 0]
    if len(negative) == 1 and _CODES.fullmatch(negative[0]) and negative[0] not in classes:
        found.add(negative[0])
    return frozenset(found)


def like_names(names: Iterable[str]) -> list[str]:
    """Return the first names that differ only in case or spaces; [] without any."""
    by_word = defaultdict(list)
    for name in dict.fromkeys(names):
        by_word[" ".join(name.casefold().split())].append(name)
    return next((several for several in by_word.values() if len(several) > 1), [])


def shorten(cell: str) -> str:
    """Return a cell for a message, truncated to SHOWN letters."""
    return cell if len(cell) <= SHOWN else f"{cell[: SHOWN - 3]}..."


def advise_point(cell: str) -> str:
    """Return the advice for a number in another notation; "" for other cells."""
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
