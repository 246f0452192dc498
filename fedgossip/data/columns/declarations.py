"""Declarations of tables: how a site's cells are converted to the common form of all sites.

    [data.columns.bmi]          in the plan, for all files; before it, of one file: [columns.bmi] in TABLE.csv.toml
    aliases = ["BMI"]           other names of the column
    missing = ["-999", "99"]    cells that mean a missing value
    synonyms = { f = ["w", "female"] }      spellings; capitals and spaces do not matter
    recode = { "1" = "yes" }    cells, exactly; numbers by their value
    date = "%d.%m.%Y"           a date, as days since `since`
    factor = 0.1                times the number; or by the unit in the first line: units = { mm = 0.1 }
    order = ["none", "mild"]    levels as numbers, from 0
    cuts = [18, 65]             a number as one of the categories <18, 18-65, >=65
    merge = { other = ["C", "D"] }, rest = "other"      combined levels; all levels without a name
    product = ["age", "sex=f"]              a computed column: the product of others of the plan; 1 if sex is f
    log = "days"                            the natural logarithm of another, which may be dropped: for an offset
    spline = "age", knots = [30, 50, 70], term = 1      a term of a restricted cubic spline of another

They apply in this order; computed columns last.  The plan's are in its hash, and in that of the agreed statistics.  A
column of numbers is one feature.  A column of categories has one feature per agreed category, 1 for its own, at all
sites.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.cells import class_name, is_missing, number_in, shorten
from fedgossip.base.decoding import from_toml
from fedgossip.base.errors import ConfigError, reason

DAY, SINCE = "%Y-%m-%d", "1970-01-01"
"""The day 0 of dates."""
OWN = ".toml"
"""Suffix, after a table's name, of the declaration of this file only."""


class FileDeclaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The format of a file; empty fields are detected."""

    delimiter: str = ""
    decimal: str = ""
    encoding: str = ""
    sheet: str = ""


class DeclaredColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The declaration of a column in [data.columns]."""

    unit: str = ""
    low: float | None = None
    high: float | None = None
    categories: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    synonyms: dict[str, tuple[str, ...]] = {}
    recode: dict[str, str] = {}
    date: str = ""
    since: str = SINCE
    factor: float | None = None
    units: dict[str, float] = {}
    order: tuple[str, ...] = ()
    cuts: tuple[float, ...] = ()
    merge: dict[str, tuple[str, ...]] = {}
    rest: str = ""
    product: tuple[str, ...] = ()
    log: str = ""
    spline: str = ""
    knots: tuple[float, ...] = ()
    term: int = 1

    @property
    def made_of(self) -> tuple[str, ...]:
        """The columns that it is computed from; () for a column of the file."""
        return tuple(one.partition("=")[0] for one in self.product) or tuple(filter(None, [self.spline, self.log]))

    def compute(self, cells: Sequence[str]) -> str:
        """Return the cell computed from those of `made_of`, "" if one is missing.

        Raises ValueError for a cell that is no number.
        """
        if any(map(is_missing, cells)):
            return ""
        values = list[float]()
        for cell, (_, named, level) in zip(cells, map(_level_of, self.product or self.made_of), strict=True):
            value = float(class_name(cell) == class_name(level)) if named else number_in(cell)
            if value is None:
                raise ValueError(f"{shorten(cell)!r} is no number to make a column of")
            values.append(value)
        if self.log and not values[0] > 0:
            raise ValueError(f"{shorten(cells[0])!r} has no logarithm")
        if self.log:
            return repr(math.log(values[0]))
        try:
            return repr(math.prod(values) if self.product else restricted_spline(values[0], self.knots, self.term))
        except ArithmeticError:  # knots whose distance, or its third power, is no number
            raise ValueError(f"{shorten(cells[0])!r} has no spline of these knots") from None

    @property
    def rewrites(self) -> bool:
        """Whether it changes cells, or the names in the first line."""
        plain = DeclaredColumn(unit=self.unit, low=self.low, high=self.high, categories=self.categories)
        return self != plain

    @property
    def is_number(self) -> bool:
        """Whether its rules convert its cells to numbers."""
        return not self.cuts and (bool(self.order or self.date or self.units) or self.factor is not None)

    @property
    def levels(self) -> tuple[str, ...]:
        """The declared categories, including those of cuts."""
        if not self.cuts or self.categories:
            return self.categories
        ends = [f"{one:g}" for one in self.cuts]
        between = (f"{low}-{high}" for low, high in pairwise(ends))
        return (f"<{ends[0]}", *between, f">={ends[-1]}")


class CellRules:
    """The rules of a declared column, ready to apply to its cells."""

    def __init__(self, declared: DeclaredColumn, unit: str = "") -> None:
        """`unit`: the column's unit in the first line."""
        self._d = declared
        self._missing = {_plain(one) for one in declared.missing}
        self._synonyms = {_plain(word): name for name, words in declared.synonyms.items() for word in (*words, name)}
        self._recode = {class_name(cell): to for cell, to in declared.recode.items()}
        self._merged = {word: name for name, words in declared.merge.items() for word in words}
        factor = declared.units.get(unit, declared.factor) if unit != declared.unit else declared.factor
        self._factor = None if factor is None else Decimal(repr(factor))
        self._since = datetime.fromisoformat(declared.since).date()

    def read(self, cell: str) -> str:
        """Return the cell in the common form, "" for a missing one.  Raises ValueError for a cell that does not fit."""
        d = self._d
        if is_missing(cell) or _plain(cell) in self._missing:
            return ""
        cell = self._synonyms.get(_plain(cell), cell)
        cell = self._recode.get(class_name(cell), cell)
        if is_missing(cell):
            return ""
        if d.date:
            cell = str(self._days(cell))
        if self._factor is not None and number_in(cell) is not None:
            cell = repr(float(Decimal(cell) * self._factor))
        if d.order:
            cell = str(self._rank(cell))
        if d.cuts:
            cell = self._interval(cell)
        cell = self._merged.get(cell, cell)
        named = not d.categories or cell in d.categories or class_name(cell) in d.categories
        return cell if named or not d.rest else d.rest

    def is_rest(self, cell: str, read: str) -> bool:
        """Whether a cell was none of the named levels."""
        return bool(self._d.rest) and read == self._d.rest and cell != read and cell not in self._merged

    def _days(self, cell: str) -> int:
        try:
            return (datetime.strptime(cell, self._d.date).date() - self._since).days
        except ValueError:
            raise ValueError(f"{shorten(cell)!r} is no date of the form {self._d.date}") from None

    def _rank(self, cell: str) -> int:
        if cell not in self._d.order:
            raise ValueError(f"{shorten(cell)!r} is none of the {len(self._d.order)} ordered levels")
        return self._d.order.index(cell)

    def _interval(self, cell: str) -> str:
        value = number_in(cell)
        if value is None:
            raise ValueError(f"{shorten(cell)!r} is no number to cut")
        return self._d.levels[sum(value >= one for one in self._d.cuts)]


def _level_of(of: str) -> tuple[str, bool, str]:
    name, named, level = of.partition("=")
    return name, bool(named), level


def restricted_spline(x: float, knots: Sequence[float], term: int) -> float:
    """Return term 1 .. k - 2, in the unit of x, of a cubic spline with k knots and linear outside them, to be used in
    addition to x.

    Source: Harrell, Regression modeling strategies, 2nd edition, 2015, section 2.4.5.
    """
    *_, before, last = knots

    def cube(knot: float) -> float:
        return max(x - knot, 0.0) ** 3

    at, wide = knots[term - 1], last - before
    found = cube(at) - cube(before) * (last - at) / wide + cube(last) * (before - at) / wide
    return found / (last - knots[0]) ** 2


def _plain(cell: str) -> str:
    """Return the common form of a word's spellings; for a number its shortest form."""
    name = class_name(cell)
    return name if name != cell else " ".join(cell.casefold().split())


def declared_columns(columns: Mapping[str, Any], where: str = "data.columns") -> Mapping[str, DeclaredColumn]:
    """Return the declaration of each column in [data.columns].  Raises ConfigError for an invalid one."""
    found = {}
    for name, keys in columns.items():
        try:
            one = found[name] = msgspec.convert(keys, DeclaredColumn)
        except msgspec.ValidationError as error:
            advice = 'Write { unit = "mm", low = 0, high = 50 } or { categories = ["f", "m"] }.'
            raise ConfigError(f"{where}: {name!r}: {error}", advice) from None
        if (one.categories or one.cuts) and (one.low, one.high) != (None, None):
            raise ConfigError(f"{where}: {name!r} has categories and bounds", "Give one of them.")
        if (one.low is None) != (one.high is None) or (one.low is not None and not one.low < one.high):  # type: ignore[operator]
            raise ConfigError(f"{where}: {name!r}: low and high bound it from both sides", "Give low below high.")
        if len(set(one.categories)) != len(one.categories) or any(map(is_missing, one.categories)):
            text = f"{where}: {name!r}: a category that occurs twice, or is empty"
            raise ConfigError(text, "Name each category once; an empty cell is none.")
        _check_rules(f"{where}: {name!r}", one)
    return found


def _check_rules(where: str, d: DeclaredColumn) -> None:
    for what, factor in (("factor", d.factor), *((f"units: {unit}", factor) for unit, factor in d.units.items())):
        if factor is not None and not (math.isfinite(factor) and factor != 0):
            raise ConfigError(f"{where}: {what} = {factor:g}", "A factor is a number other than 0: 0.1 for tenths.")
    if d.units and not d.unit:
        raise ConfigError(f"{where}: units without unit", 'Name the common one:  unit = "cm", units = { mm = 0.1 }.')
    if list(d.cuts) != sorted(set(d.cuts)) or not all(map(math.isfinite, d.cuts)):
        raise ConfigError(f"{where}: cuts = {list(d.cuts)}", "Give cut points in ascending order, each once.")
    if d.cuts and d.categories and len(d.categories) != len(d.cuts) + 1:
        text = f"{where}: {len(d.cuts)} cuts and {len(d.categories)} categories"
        raise ConfigError(text, f"Name {len(d.cuts) + 1}, or leave categories out: they are named by the cuts.")
    if len(set(d.order)) != len(d.order) or len(d.order) == 1 or any(map(is_missing, d.order)):
        raise ConfigError(
            f"{where}: order = {list(d.order)}",
            "Name two or more levels, each once, the lowest first; none of them empty or like NA.",
        )
    if d.order and (d.cuts or d.categories or d.low is not None):
        raise ConfigError(f"{where}: order with cuts, categories or bounds", "Its levels are numbers from 0.")
    if d.rest and d.categories and d.rest not in d.categories:
        raise ConfigError(f"{where}: rest = {d.rest!r} is none of its categories", "Name it among them.")
    if d.rest and (d.order or d.cuts):
        raise ConfigError(f"{where}: rest with order or cuts, which name all levels", "Leave it out.")
    _check_made(where, d)
    _check_once(where, "synonyms", d.synonyms, d.missing)
    _check_once(where, "merge", d.merge, ())
    try:
        datetime.strptime(d.since, DAY)
    except ValueError:
        raise ConfigError(f"{where}: since = {d.since!r} is no day", 'Write since = "2020-01-31".') from None
    if d.date and not _is_form(d.date):
        text = f"{where}: date = {shorten(d.date)!r} is no form of a date"
        raise ConfigError(text, 'Write date = "%d.%m.%Y" for 31.01.2020.')


def _is_form(date: str) -> bool:
    try:  # a part twice, "%Y%Y", is an error of the expression that it is made into
        return "%" in date and bool(datetime.strptime(datetime(2001, 2, 3, tzinfo=UTC).strftime(date), date))
    except (ValueError, re.error):
        return False


def _check_made(where: str, d: DeclaredColumn) -> None:
    if d.product and not 2 <= len(d.product) <= 3:
        raise ConfigError(f"{where}: product = {list(d.product)}", "Name two or three columns, or WORDS=LEVEL.")
    if sum(map(bool, (d.product, d.spline, d.log))) > 1:
        raise ConfigError(f"{where}: more than one of product, spline and log", "Make a column of one of them.")
    if (d.knots or d.term != 1) and not d.spline:
        raise ConfigError(f"{where}: knots or term without spline", 'Name the column:  spline = "age".')
    if d.spline and (list(d.knots) != sorted(set(d.knots)) or not 3 <= len(d.knots) <= 10):
        raise ConfigError(f"{where}: knots = {list(d.knots)}", "Give three to ten in ascending order, each once.")
    if d.spline and not (1 <= d.term <= len(d.knots) - 2 and all(map(math.isfinite, d.knots))):
        text = f"{where}: term = {d.term} of {len(d.knots)} knots"
        raise ConfigError(
            text, f"There are terms 1 to {len(d.knots) - 2}, each a column, in addition to the column itself."
        )
    made = DeclaredColumn(unit=d.unit, low=d.low, high=d.high, product=d.product, log=d.log, spline=d.spline,
                          knots=d.knots, term=d.term)  # fmt: skip
    if d.made_of and d != made:
        raise ConfigError(
            f"{where}: rules of cells with product, spline or log", "They are of the columns it is made of."
        )


def _check_once(where: str, key: str, words: Mapping[str, Sequence[str]], missing: Sequence[str]) -> None:
    known = {_plain(one): "nothing" for one in missing}
    for name, several in words.items():
        for word in dict.fromkeys([*several, *([name] if key == "synonyms" else [])]):
            if known.setdefault(_plain(word), name) != name:
                text = f"{where}: {key}: {word!r} stands for {known[_plain(word)]!r} and for {name!r}"
                raise ConfigError(text, "Give each word one meaning.")


def file_declaration(keys: Mapping[str, Any], where: str = "data.file") -> FileDeclaration:
    """Return the declared format of a file.  Raises ConfigError for an invalid one."""
    try:
        found = msgspec.convert(keys, FileDeclaration)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}", 'Write { decimal = ",", encoding = "cp1252" }.') from None
    if found.decimal not in ("", ",", "."):
        raise ConfigError(f"{where}: decimal = {found.decimal!r}", 'It is "," or ".".')
    if len(found.delimiter) > 1 or (found.delimiter and found.delimiter in '\r\n"0123456789'):
        raise ConfigError(f"{where}: delimiter = {found.delimiter!r}", 'It is one mark: ",", ";", "\\t" or "|".')
    if found.encoding:
        try:
            text = codecs.lookup(found.encoding)._is_text_encoding
        except (LookupError, ValueError):
            text = False
        if not text:
            raise ConfigError(f"{where}: unknown encoding {found.encoding!r}", "Such as utf-8, cp1252, latin-1, cp850.")
    return found


def read_declaration(path: Path) -> tuple[FileDeclaration, Mapping[str, DeclaredColumn]]:
    """Return [file] and [columns.NAME] of the declaration file of a table, if any.

    Raises ConfigError for an unreadable one, and for declarations that all sites must share.
    """
    own = path.parent / f"{path.name}{OWN}"  # not with_name, which raises for "."
    if not own.is_file():
        return FileDeclaration(), {}
    try:
        keys = from_toml(outside_files.read_text(outside_files.resolve(own)))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{own}: cannot be read: {reason(error)}", "It has [file] and [columns.NAME], as TOML."
        ) from None
    if strangers := sorted(keys.keys() - {"file", "columns"}):
        raise ConfigError(f"{own}: unknown key {strangers[0]!r}", "It has [file] and [columns.NAME].")
    for name in ("file", "columns"):
        if not isinstance(keys.get(name, {}), dict):
            raise ConfigError(f"{own}: {name} is no table", "It has [file] and [columns.NAME].")
    columns = declared_columns(keys.get("columns", {}), f"{own}: columns")
    for name, one in columns.items():
        if one.low is not None or (one.categories and not (one.cuts or one.rest)):
            text = f"{own}: columns: {name!r} declares bounds or categories"
            raise ConfigError(text, "All sites have the same: declare them in [data.columns] of the plan.")
    return file_declaration(keys.get("file", {}), f"{own}: file"), columns


NOTHING = "(missing)"
"""The last part of the name of a feature that is 1 for an empty cell."""
_WITH_UNIT = re.compile(r"(.*\S)\s*\[([^\[\]]*)\]")


class EncodedColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One column of a table."""

    name: str
    unit: str = ""
    """As in "height [cm]" in the first line of a file; "" without one."""
    categories: tuple[str, ...] = ()
    """Categories of a column of words."""
    fill: tuple[float, ...] = ()
    """The features of an empty cell; () if such a cell is refused."""
    declared: DeclaredColumn | None = None
    """Conversion of its cells to this form; None if they have it."""

    indicator: bool = False
    """Whether a further feature, the last of the column, is 1 for an empty cell."""

    @property
    def features(self) -> Sequence[str]:
        """The names of its features."""
        names = [f"{self.name}={one}" for one in self.categories] or [self.name]
        return [*names, f"{self.name}={NOTHING}"] if self.indicator else names


class TableEncoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The used columns, in the order of their features."""

    columns: tuple[EncodedColumn, ...]
    labels: tuple[EncodedColumn, ...] | msgspec.UnsetType = msgspec.UNSET
    """The label columns with declarations."""

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.features)


def plain(columns: Sequence[str]) -> TableEncoding:
    """Return the encoding of columns of numbers without empty cells."""
    return TableEncoding(tuple(EncodedColumn(name) for name in columns))


def parted(head: str) -> tuple[str, str]:
    """Return the name and the unit of a column from its cell in the first line: "height [cm]"."""
    found = _WITH_UNIT.fullmatch(head)
    return (found[1], found[2].strip()) if found else (head, "")
