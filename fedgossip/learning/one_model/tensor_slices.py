"""Places of a process's elements in the line of all trained elements, with reads and writes there.

    |  ...  |  a tensor of the line, in rows   |  ...  |
               .  .  [ cut ]  .  .  .
               .  .  [ cut ]  .  .  .          held: `start` to `stop` of the cut, row after row

A stretch of the line is a tensor of one axis, nothing cut away.  No torch here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Line = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Place:
    """Elements `start` to `stop` of `cut`, in order, out of a tensor of this shape that begins at `offset`."""

    offset: int
    shape: tuple[int, ...]
    cut: tuple[slice, ...]
    """Slices of the tensor's first axes; other axes are whole."""
    start: int
    stop: int

    @classmethod
    def stretch(cls, start: int, stop: int) -> Place:
        """Return the place of a stretch of the line."""
        return cls(start, (stop - start,), (), 0, stop - start)

    @classmethod
    def tensor(cls, offset: int, shape: tuple[int, ...]) -> Place:
        """Return the place of a whole tensor."""
        return cls(offset, shape, (), 0, math.prod(shape))

    @property
    def size(self) -> int:
        return self.stop - self.start

    def divided(self, axis: int, part: int, parts: int) -> Place:
        """Return the place of one of `parts` of a whole tensor, divided along an axis as torch.chunk divides."""
        where = slice(*chunk(self.shape[axis], part, parts))
        held = (*self.shape[:axis], where.stop - where.start, *self.shape[axis + 1 :])
        return replace(self, cut=(*[slice(None)] * axis, where), stop=math.prod(held))

    def between(self, start: int, stop: int) -> Place:
        """Return the place of elements `start` to `stop` of these."""
        return replace(self, start=self.start + start, stop=self.start + stop)

    def before(self, end: int) -> int:
        """Return how many of the elements lie before `end` of the line, which is the end of a tensor of it."""
        return min(self.size, max(0, end - self.offset))

    def take(self, line: Line, first: int = 0) -> Line:
        """Return a copy [size] of the elements; `line` may omit the elements before `first`."""
        return self._cut(line, first).reshape(-1)[self.start : self.stop].copy()

    def put(self, line: Line, part: Line, first: int = 0) -> None:
        """Write the elements, an array of `size`; `line` as for `take`."""
        cut, values = self._cut(line, first), part.reshape(-1)
        if cut.flags.c_contiguous:
            cut.reshape(-1)[self.start : self.stop] = values
        elif self.size == cut.size:
            cut[...] = values.reshape(cut.shape)
        else:
            cut.flat[self.start : self.stop] = values

    def _cut(self, line: Line, first: int) -> Line:
        begin = self.offset - first
        return line[begin : begin + math.prod(self.shape)].reshape(self.shape)[self.cut]


def chunk(size: int, part: int, parts: int) -> tuple[int, int]:
    """Return where one of `parts` begins and ends of so many rows, as torch.chunk divides: the last may have fewer."""
    each = -(-size // parts)
    return min(size, part * each), min(size, (part + 1) * each)
