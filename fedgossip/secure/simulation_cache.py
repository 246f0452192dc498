"""What a process that is all participants remembers, so that it does once what each of them would do for itself.

A simulation plays the coordinator and every client.  What only keeps participants apart is spared there: the key that a
pair agrees on is a hash of its public keys, in place of an X25519 agreement, for nobody is there from whom to hide it;
what one end derives, draws or seals its other end takes; what was signed or packed here is known.  The bytes that are
sent are those that the same keys give everybody.

Never where participants are real: this hides nothing, and keeps keys in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, TypeVar

Result = TypeVar("Result")
Name = Hashable
"""What was computed, and of what."""

REMEMBERED_BYTES = 128 << 20
"""Maximum number of bytes of results that are kept, by their estimate; one more, and all are forgotten."""

ENTRY_BYTES = 400
"""Estimate of what a short result takes with its name."""


class Remembered:
    """Results by name; whoever does not find one computes it."""

    __slots__ = ("_bytes", "_found")

    def __init__(self) -> None:
        self._found: dict[Name, Any] = {}
        self._bytes = 0

    def get(self, name: Name) -> Any:
        """Return what was kept; None where nothing is."""
        return self._found.get(name)

    def keep(self, name: Name, value: object, size: int = 0) -> None:
        """Keep a value, never None, of so many bytes beside those of any entry."""
        self._bytes += ENTRY_BYTES + size
        if self._bytes > REMEMBERED_BYTES:
            self._found.clear()
            self._bytes = ENTRY_BYTES + size
        self._found[name] = value

    def take(self, name: Name, size: int = 0) -> Any:
        """Return what was kept, of this size, and let go of it: nobody else will ask.  None where nothing is."""
        if (value := self._found.pop(name, None)) is not None:
            self._bytes -= ENTRY_BYTES + size
        return value

    def keep_all(self, names: Sequence[Name], values: Sequence[object], size: int = 0) -> None:
        """Keep so many values, none of them None, of so many bytes each."""
        self._bytes += (ENTRY_BYTES + size) * len(names)
        if self._bytes > REMEMBERED_BYTES:
            self._found.clear()
            self._bytes = (ENTRY_BYTES + size) * len(names)
        self._found.update(zip(names, values, strict=True))

    def take_all(self, names: Sequence[Name], size: int = 0) -> list[Any]:
        """Return what was kept under each name, each of this size, and let go of it; None where nothing is."""
        values = list(map(self._found.pop, names, repeat(None)))
        self._bytes -= (ENTRY_BYTES + size) * (len(values) - values.count(None))
        return values


_memory: Remembered | None = None


def memory() -> Remembered | None:
    """Return the memory of a process that is everybody; None in any other."""
    return _memory


@contextmanager
def remembering() -> Iterator[None]:
    """Spare this process, which is all participants, what only serves to keep them apart."""
    global _memory  # noqa: PLW0603 of the whole process, as the simulation is
    before = _memory
    _memory = before or Remembered()
    try:
        yield
    finally:
        _memory = before


def each_once(names: Sequence[Name], compute: Callable[[Sequence[int]], list[Result]], size: int = 0) -> list[Result]:
    """Return what is computed for these places in `names`, of so many bytes each.

    Where one process is everybody, a name is asked for twice, by both ends of a pair, and computed for the first.
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
    """Return what is computed of a thing that does not change, and of these facts; as `once`, without hashing it."""
    if _memory is None:
        return compute()
    name = id(thing), facts
    found: tuple[object, Result] | None = _memory.get(name)
    if found is None or found[0] is not thing:
        _memory.keep(name, found := (thing, compute()))  # the thing too: its id is nobody else's as long as it is there
    return found[1]


def once(name: Name, compute: Callable[[], Result]) -> Result:
    """Return what is computed; where one process is everybody it is computed for the first who asks for this name."""
    if _memory is None:
        return compute()
    found: Result | None = _memory.get(name)
    if found is None:
        found = compute()
        _memory.keep(name, found)
    return found
