"""Results shared within a process that plays all participants, computed once instead of once per participant.

A simulation plays the coordinator and every client.  Work that only separates participants is skipped there: the key
of a pair is a hash of its public keys, in place of an X25519 agreement, for there is no adversary to hide it from;
results of derivation, drawing and sealing at one end are reused at the other; own signatures and packed messages need
no check.  The sent bytes are those that the same keys give real participants.

Never where participants are real: this hides nothing, and keeps keys in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, TypeVar

Result = TypeVar("Result")
Name = Hashable
"""The computation and its arguments."""

REMEMBERED_BYTES = 128 << 20
"""Maximum number of bytes of stored results, by their estimate; beyond it, all are dropped."""

ENTRY_BYTES = 400
"""Estimated size of a short result with its name."""


class Remembered:
    """Results by name; a caller without a result computes it."""

    __slots__ = ("_bytes", "_found")

    def __init__(self) -> None:
        self._found: dict[Name, Any] = {}
        self._bytes = 0

    def get(self, name: Name) -> Any:
        """Return the stored value; None without one."""
        return self._found.get(name)

    def keep(self, name: Name, value: object, size: int = 0) -> None:
        """Store a value, never None, of so many bytes beside those of any entry."""
        self._bytes += ENTRY_BYTES + size
        if self._bytes > REMEMBERED_BYTES:
            self._found.clear()
            self._bytes = ENTRY_BYTES + size
        self._found[name] = value

    def take(self, name: Name, size: int = 0) -> Any:
        """Return the stored value of this size and drop it: nothing else will request it.  None without one."""
        if (value := self._found.pop(name, None)) is not None:
            self._bytes -= ENTRY_BYTES + size
        return value

    def keep_all(self, names: Sequence[Name], values: Sequence[object], size: int = 0) -> None:
        """Store so many values, none of them None, of so many bytes each."""
        self._bytes += (ENTRY_BYTES + size) * len(names)
        if self._bytes > REMEMBERED_BYTES:
            self._found.clear()
            self._bytes = (ENTRY_BYTES + size) * len(names)
        self._found.update(zip(names, values, strict=True))

    def take_all(self, names: Sequence[Name], size: int = 0) -> list[Any]:
        """Return and drop the stored values of the names, each of this size; None for missing ones."""
        values = list(map(self._found.pop, names, repeat(None)))
        self._bytes -= (ENTRY_BYTES + size) * (len(values) - values.count(None))
        return values


_memory: Remembered | None = None


def memory() -> Remembered | None:
    """Return the memory of a process that plays all participants; None in any other."""
    return _memory


@contextmanager
def remembering() -> Iterator[None]:
    """Skip, in this process with all participants, the work that only separates them."""
    global _memory  # noqa: PLW0603 of the whole process, as the simulation is
    before = _memory
    _memory = before or Remembered()
    try:
        yield
    finally:
        _memory = before


def each_once(names: Sequence[Name], compute: Callable[[Sequence[int]], list[Result]], size: int = 0) -> list[Result]:
    """Return the results for these places in `names`, of so many bytes each.

    Where one process plays all participants, both ends of a pair request a name, and the first request computes it.
    """
    if _memory is None:
        return compute(range(len(names)))
    found: list[Result] = _memory.take_all(names, size)
    if missing := [place for place, value in enumerate(found) if value is None]:
        computed = compute(missing)
        for place, value in zip(missing, computed, strict=True):
            found[place] = value
        _memory.keep_all([names[place] for place in missing], computed, size)
    return found


def once_for(thing: object, facts: Name, compute: Callable[[], Result]) -> Result:
    """Return the result for a constant object and these facts; as `once`, without hashing the object."""
    if _memory is None:
        return compute()
    name = id(thing), facts
    found: tuple[object, Result] | None = _memory.get(name)
    if found is None or found[0] is not thing:
        _memory.keep(name, found := (thing, compute()))  # the thing too: its id stays unique while it exists
    return found[1]


def once(name: Name, compute: Callable[[], Result]) -> Result:
    """Return the result; where one process plays all participants, the first request for this name computes it."""
    if _memory is None:
        return compute()
    found: Result | None = _memory.get(name)
    if found is None:
        found = compute()
        _memory.keep(name, found)
    return found
