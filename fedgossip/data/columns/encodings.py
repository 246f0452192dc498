"""Encoding of a table's columns as the numbers of an example: by name, in any order, the same for everybody.

A column of numbers is one feature; one of categories has a feature for each agreed category, 1 for its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from fedgossip.data.columns.declarations import DeclaredColumn

NOTHING = "(missing)"
"""The last part of the name of a feature that is 1 where a cell is empty."""
_WITH_UNIT = re.compile(r"(.*\S)\s*\[([^\[\]]*)\]")


class EncodedColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One column of a table."""

    name: str
    unit: str = ""
    """As in "height [cm]" in the first line of a file; "" without one."""
    categories: tuple[str, ...] = ()
    """Categories of a column of words."""
    fill: tuple[float, ...] = ()
    """The features of an empty cell; () where such a cell is refused."""
    declared: DeclaredColumn | None = None
    """How its cells are brought into this form; None where they have it."""

    indicator: bool = False
    """Whether a further feature, the last of the column, is 1 where a cell is empty."""

    @property
    def features(self) -> Sequence[str]:
        """The names of its features."""
        names = [f"{self.name}={one}" for one in self.categories] or [self.name]
        return [*names, f"{self.name}={NOTHING}"] if self.indicator else names


class TableEncoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The used columns, in the order of their features."""

    columns: tuple[EncodedColumn, ...]
    labels: tuple[EncodedColumn, ...] | msgspec.UnsetType = msgspec.UNSET
    """The label columns whose cells are declared."""

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.features)


def plain(columns: Sequence[str]) -> TableEncoding:
    """Return the encoding of columns of numbers without empty cells."""
    return TableEncoding(tuple(EncodedColumn(name) for name in columns))


def parted(head: str) -> tuple[str, str]:
    """Return the name and the unit of a column by its cell in the first line: "height [cm]"."""
    found = _WITH_UNIT.fullmatch(head)
    return (found[1], found[2].strip()) if found else (head, "")
