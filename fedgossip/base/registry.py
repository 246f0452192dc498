"""Tables of what can be named: a name means one thing."""

from __future__ import annotations

from typing import TypeVar

Entry = TypeVar("Entry")


def table(*entries: tuple[str, Entry]) -> dict[str, Entry]:
    """Return the entries by their names, in order.  Raises ValueError where two have the same."""
    found: dict[str, Entry] = {}
    for name, entry in entries:
        if name in found:
            raise ValueError(f"two entries are called {name!r}: {found[name]!r} and {entry!r}")
        found[name] = entry
    return found
