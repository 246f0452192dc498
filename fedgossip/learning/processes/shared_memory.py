"""Arrays shared by several processes of this machine: a file without a name that all of them map.

One process writes arrays and sends the others their places; nothing is copied to them.  The file is removed when the
last of them ends.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError

ALIGNMENT = 64  # bytes: a line of the cache
ZEROS = bytes(1 << 20)


class ArrayPlace(msgspec.Struct, frozen=True):
    """Where an array lies in a board; `kind` is its dtype."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.kind).itemsize


Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""name -> (dtype, shape)"""


class SharedArrays:
    """The file.  `descriptor` may be handed to another process, which makes its own SharedArrays of it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def new(cls) -> SharedArrays:
        """Return an empty board.  Its descriptor is the caller's to close."""
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def lay(self, arrays: Mapping[str, npt.NDArray[Any]]) -> list[ArrayPlace]:
        """Write the arrays over the old content, and return their places."""
        places = self.room({name: (array.dtype.str, array.shape) for name, array in arrays.items()})
        for name, view in self.views(places).items():
            view[...] = arrays[name]
        return places

    def room(self, shapes: Shapes) -> list[ArrayPlace]:
        """Make room for arrays of these shapes over the old content.  Raises ConfigError where the disk has none."""
        places, end = [], 0
        for name, (kind, shape) in shapes.items():
            place = ArrayPlace(name, kind, shape, end)
            places.append(place)
            end += -(-place.bytes // ALIGNMENT) * ALIGNMENT
        try:
            self._grow(end)
        except OSError as error:
            advice = "The processes of a client share it; set TMPDIR to a folder on another disk."
            raise ConfigError(
                f"no room for {end / 1e6:,.0f} MB in {tempfile.gettempdir()}: {error.strerror}", advice
            ) from None
        return places

    def views(self, places: Sequence[ArrayPlace]) -> dict[str, npt.NDArray[Any]]:
        """Return arrays over the file's memory: a write to one is visible to all processes."""
        end = max((place.offset + place.bytes for place in places), default=0)
        memory = mmap.mmap(self.descriptor, end) if end else b""
        return {
            place.name: np.ndarray(place.shape, place.kind, memory if place.bytes else None, place.offset)
            if place.bytes
            else np.empty(place.shape, place.kind)
            for place in places
        }

    def _grow(self, size: int) -> None:
        # written, not only extended: on a full disk a mapping would fail by a deadly signal
        at = os.fstat(self.descriptor).st_size
        while at < size:
            at += os.pwrite(self.descriptor, ZEROS[: size - at], at)
