"""The trained elements of a module in the training loop, and their transfer from and to vectors.  No torch.

A module's *line* is its personal parameters, then the exchanged ones, [trained]: the optimiser's view.  A process holds
`values`, tensors [1, k], whose elements have `places` in that line.

A place is a cut of a tensor of the line:

    |  ...  |  a tensor of the line, in rows   |  ...  |
               .  .  [ cut ]  .  .  .
               .  .  [ cut ]  .  .  .          held: `start` to `stop` of the cut, row after row

A stretch of the line is a tensor of one axis, without a cut.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedgossip.base.vectors import Vector
from fedgossip.core.task import Segment
from fedgossip.learning.one_model import optimizers
from fedgossip.learning.one_model.flat import Layout

__all__ = [
    "FlatWeights",
    "Held",
    "Line",
    "Place",
    "compacted",
    "gathered",
    "local_buffers",
    "scattered",
    "spread_over",
    "trained_segments",
]


class Held(Protocol):
    """A process's part of a module."""

    @property
    def places(self) -> Sequence[Place]: ...

    @property
    def values(self) -> Sequence[torch.Tensor]: ...

    @property
    def gradients(self) -> Sequence[torch.Tensor]:
        """Return the sums of the backward passes since `forget_gradients`, one [1, k] per value."""

    def forget_gradients(self) -> None: ...

    def combine_gradients(self) -> None:
        """Add other processes' parts of the gradient; call once after the backward passes of a batch."""

    def clip(self, longest: float) -> None:
        """Scale the whole gradient down to length `longest` if it is longer."""

    def finite(self) -> bool:
        """Return whether every element of the whole gradient is finite."""

    def refresh(self) -> None:
        """Update the module to the present `values`."""

    def load(self, vector: Vector) -> None:
        """Load a vector [length]: its parameters and buffers."""

    def load_own(self, personal: Line | None) -> None:
        """Load a node's personal parameters; None: every node's initial ones."""

    def store(self, vector: Line, personal: Line) -> None:
        """Write the held elements to their places in a vector [length] and in personal parameters."""


class FlatWeights:
    """The whole module in one flat tensor, with its own tensors as views: loading a vector is one copy.

    On CUDA the weights of recurrent layers are copies, in the contiguous memory that cuDNN requires.
    """

    def __init__(self, module: nn.Module, layout: Layout, own: Layout, device: torch.device) -> None:
        self._p = own.length
        trained = own.length + layout.parameters
        self._all = torch.empty(own.length + layout.length, device=device)  # own first: all trained elements together
        self._own, self._flat = self._all[: own.length], self._all[own.length :]
        layout.adopt(module, self._flat)
        own.adopt(module, self._own)
        self._fresh_own = self._own.clone()
        self.places = (Place.stretch(0, trained),)
        self.values = (self._all[:trained].unsqueeze(0),)
        self._gradient = torch.zeros_like(self.values[0])
        tensors = dict(module.named_parameters())
        for part, gradient in ((own, self._gradient[0, : own.length]), (layout, self._gradient[0, own.length :])):
            for name, where, shape in part.places():
                if name in tensors:
                    tensors[name].grad = gradient[where].view(shape)
        self._copies = compacted(module) if _uses_cudnn(device) else []
        self.elsewhere = device.type != "cpu"
        """Whether it is in a device's memory, so that a copy of the loaded elements is kept there for differences."""
        self._loaded = torch.empty_like(self._flat) if self.elsewhere else self._flat

    @property
    def gradients(self) -> Sequence[torch.Tensor]:
        return (self._gradient,)

    def forget_gradients(self) -> None:
        self._gradient.zero_()

    def combine_gradients(self) -> None:
        pass  # DDP has, in the backward pass

    def clip(self, longest: float) -> None:
        optimizers.clip(self.gradients, longest)

    def finite(self) -> bool:
        return bool(torch.isfinite(self._gradient).all())

    def refresh(self) -> None:
        for copy, view in self._copies:
            copy.copy_(view)

    def standing(self) -> list[torch.Tensor]:
        """Return all tensors that a step changes, including averaged buffers, at fixed addresses."""
        return [self._all, *(copy for copy, _ in self._copies)]

    def load(self, vector: Vector) -> None:
        if self.elsewhere:
            self._loaded.copy_(view_read_only(vector))
            self._flat.copy_(self._loaded)
        else:
            np.copyto(self._flat.numpy(), vector)
        self.refresh()

    def load_own(self, personal: Line | None) -> None:
        self._own.copy_(self._fresh_own if personal is None else torch.from_numpy(np.array(personal)))
        self.refresh()

    def store(self, vector: Line, personal: Line) -> None:
        torch.from_numpy(vector).copy_(self._flat)
        torch.from_numpy(personal).copy_(self._own)

    def store_difference(self, vector: Line, personal: Line) -> None:
        """As `store`, but write the exchanged elements as differences to the loaded ones."""
        torch.from_numpy(vector).copy_(self._flat - self._loaded)
        torch.from_numpy(personal).copy_(self._own)

    def finite_difference(self) -> bool:
        """Return whether this difference is finite everywhere."""
        return bool(torch.isfinite((self._flat - self._loaded).sum()))


def view_read_only(vector: Vector) -> torch.Tensor:
    """Return a read-only tensor over a vector's memory: torch itself would copy a frozen vector."""
    if vector.flags.writeable or not vector.flags.c_contiguous:
        return torch.from_numpy(np.ascontiguousarray(vector))
    seen = np.ctypeslib.as_array((ctypes.c_float * vector.size).from_address(vector.ctypes.data))
    return torch.from_numpy(seen)


def _uses_cudnn(device: torch.device) -> bool:
    return device.type == "cuda"


def compacted(module: nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Copy the recurrent layers' weights from views of the flat tensor to memory for cuDNN; return each
    with its view.
    """
    found = []
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            views = [(parameter, parameter.data) for parameter in part.parameters()]
            for parameter, view in views:
                parameter.data = view.clone()
            part.flatten_parameters()
            found += [(parameter.data, view) for parameter, view in views]
    return found


def trained_segments(own: Layout, layout: Layout) -> list[Segment]:
    """Return the positions of a module's tensors in its line."""
    travels = [replace(one, start=own.length + one.start) for one in layout.segments if one.stop <= layout.parameters]
    return [*own.segments, *travels]


def scattered(line: Line | None, places: Sequence[Place], device: torch.device) -> list[torch.Tensor]:
    """Return the places of a line as separate tensors [1, k] on the device; zeros for None."""
    if line is None:
        return [torch.zeros((1, place.size), device=device) for place in places]
    return [torch.from_numpy(place.take(line)).to(device).unsqueeze(0) for place in places]


def spread_over(parts: Sequence[torch.Tensor], line: Line | None, places: Sequence[Place]) -> None:
    """Write the places of a line to tensors [1, k]; zeros for None."""
    for part, place in zip(parts, places, strict=True):
        if line is None:
            part.zero_()
        else:
            part[0].copy_(torch.from_numpy(place.take(line)))


def gathered(parts: Sequence[torch.Tensor], places: Sequence[Place], line: Line) -> None:
    """Write tensors [1, k] to their places of a line."""
    for part, place in zip(parts, places, strict=True):
        place.put(line, part.cpu().numpy())


def local_buffers(module: nn.Module, layout: Layout) -> Mapping[str, torch.Tensor]:
    """Return the buffers that belong to a node and are in no vector."""
    return {name: buffer for name, buffer in module.named_buffers() if name not in layout.names}


Line = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Place:
    """Elements `start` to `stop` of `cut`, in order, of a tensor of this shape at `offset`."""

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
        """Return the place of elements `start` to `stop` of this place."""
        return replace(self, start=self.start + start, stop=self.start + stop)

    def count_before(self, end: int) -> int:
        """Return the number of elements before `end`, the end of a tensor in the line."""
        return min(self.size, max(0, end - self.offset))

    def take(self, line: Line, first: int = 0) -> Line:
        """Return a copy [size] of the elements; `line` may omit the elements before `first`."""
        return self._cut(line, first).reshape(-1)[self.start : self.stop].copy()

    def put(self, line: Line, part: Line, first: int = 0) -> None:
        """Write the elements from an array of `size`; `line` as for `take`."""
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
    """Return start and stop of one of `parts` of `size` rows, as torch.chunk divides: the last may have fewer."""
    each = -(-size // parts)
    return min(size, part * each), min(size, (part + 1) * each)
