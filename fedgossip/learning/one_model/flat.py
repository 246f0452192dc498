"""The layout of a model in a vector: the elements of each tensor, and the schema that two peers compare.

Files and loops share one rule.  A vector contains the parameters with requires_grad, and the running statistics
(floating, persistent, finite buffers).  Constant tables such as masks with -inf, integers, buffers with
persistent=False, and buffers computed from the parameters (`spectral_norms`) stay with their module.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.task import PARAMETER, STATISTIC, Segment
from fedgossip.learning.one_model import spectral_norms

if TYPE_CHECKING:
    import torch
    from torch import nn


Shapes = Sequence[tuple[str, tuple[int, ...]]]
"""Names and shapes."""


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets of the tensors of a module in one float32 vector.

    Trained parameters first, in named_parameters order; then with buffers="average" the floating buffers, which stay at
    their node with "local".  Never sent: frozen parameters, constant tables, and personal ones (`personal_of`).
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    parameters: int
    """Number of elements that are parameters; the rest of the vector is buffers."""
    kind: str = "float32"
    """The type of the vector, or "float64"."""
    types: tuple[str, ...] = ()
    """The type of each tensor, if one differs from the vector's and therefore rounds written values."""

    @classmethod
    def from_module(cls, module: nn.Module, buffers: str = "average", personal: Sequence[str] = ()) -> Layout:
        """Return the layout of everything exchanged: trained parameters except `personal` ones, and buffers if
        averaged.

        Raises ConfigError if no parameter is both trained and shared.
        """
        floating = _shapes(averaged_buffers(module)) if buffers == "average" else []
        return cls.from_shapes(_shapes(trained_parameters(module)), floating, buffers, personal)

    @classmethod
    def from_shapes(
        cls, trained: Shapes, floating: Shapes, buffers: str = "average", personal: Sequence[str] = ()
    ) -> Layout:
        """Return the result of `from_module` for a module with these parameters and buffers.  Raises ConfigError
        without any.
        """
        for pattern in personal:
            if not any(_matches(name, [pattern]) for name, _ in trained):
                known = ", ".join(name for name, _ in trained)
                raise ConfigError(f"train.personal: no parameter matches {pattern!r}", f"There are: {known}.")
        shared = [one for one in trained if not _matches(one[0], personal)]
        if not shared:
            advice = "Is requires_grad off everywhere, or every layer personal?"
            raise ConfigError("the model has no parameter to train and to share", advice)
        both = [*shared, *(floating if buffers == "average" else [])]
        parameters = sum(math.prod(shape) for _, shape in shared)
        return cls(tuple(name for name, _ in both), tuple(shape for _, shape in both), parameters)

    @classmethod
    def personal_of(cls, module: nn.Module, personal: Sequence[str]) -> Layout:
        """Return the layout of the parameters that stay at their node, whose values `from_module` has checked."""
        trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        own = [one for one in _shapes(trained) if _matches(one[0], personal)]
        elements = sum(math.prod(shape) for _, shape in own)
        return cls(tuple(name for name, _ in own), tuple(shape for _, shape in own), elements)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        return np.dtype(self.kind)

    @property
    def length(self) -> int:
        return sum(map(math.prod, self.shapes))

    @property
    def offsets(self) -> tuple[int, ...]:
        """Start of each tensor."""
        return tuple(accumulate(map(math.prod, self.shapes), initial=0))[:-1]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The tensors in the order of the vector, buffers as statistics."""
        kinds = (PARAMETER if offset < self.parameters else STATISTIC for offset in self.offsets)
        return tuple(map(Segment, self.names, self.offsets, self.shapes, kinds))

    @property
    def schema(self) -> str:
        """16 hex digits of the sha256 over names, shapes and types: models with equal schemas can be averaged."""
        parts = [
            list(self.names),
            list(self.shapes),
            self.parameters,
            self.dtype.str,
            *([self.types] * bool(self.types)),
        ]
        described = json.dumps(parts)
        return hashlib.sha256(described.encode()).hexdigest()[:16]

    def places(self) -> Iterator[tuple[str, slice, tuple[int, ...]]]:
        """Yield (name, slice of the vector, shape) of every tensor."""
        for name, offset, shape in zip(self.names, self.offsets, self.shapes, strict=True):
            yield name, slice(offset, offset + math.prod(shape)), shape

    def read(self, module: nn.Module) -> Vector:
        """Return the module's tensors as a new frozen vector [length]."""
        tensors = self._tensors(module)
        vector = empty(self.length, self.dtype)
        for name, where, _ in self.places():
            vector[where] = tensors[name].detach().cpu().numpy().reshape(-1)
        return frozen(vector)

    def write(self, module: nn.Module, vector: Vector) -> None:
        """Copy the vector [length] into the module's tensors, without a graph.

        Raises ConfigError for another length; the module is then unchanged.
        """
        if vector.shape != (self.length,):
            raise ConfigError(
                f"a vector of {vector.size} elements for a model of {self.length}", "Is it another model's?"
            )
        import torch  # only here: a dry run makes layouts without torch

        tensors = self._tensors(module)
        with torch.no_grad():
            for name, where, shape in self.places():
                # a copy: torch warns about read-only arrays
                tensors[name].copy_(torch.from_numpy(vector[where].reshape(shape).copy()))
        spectral_norms.settle(module)

    def adopt(self, module: nn.Module, flat: torch.Tensor) -> None:
        """Make the module's tensors views of `flat` [length], so that one copy loads or reads the whole model."""
        tensors = self._tensors(module)
        for name, where, shape in self.places():
            flat[where].view(shape).copy_(tensors[name].detach())
        self.place(module, flat)

    def place(self, module: nn.Module, flat: torch.Tensor) -> None:
        """Make the module's tensors views of `flat` [length], with the present content of `flat`."""
        tensors = self._tensors(module)
        for name, where, shape in self.places():
            tensors[name].data = flat[where].view(shape)

    def _tensors(self, module: nn.Module) -> dict[str, torch.Tensor]:
        return dict(module.named_parameters()) | dict(module.named_buffers())


def _shapes(named: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(tensor.shape)) for name, tensor in named]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


FFA: Final = "lora:ffa"
BOTH: Final = "lora:both"
PRODUCT: Final = "lora:product"
STACK: Final = "lora:stack"
LORA: Final = {"lora": FFA, FFA: FFA, BOTH: BOTH, PRODUCT: PRODUCT, STACK: STACK}
"""Transfer of low-rank adapters: see `own_loop/adapters`."""


def trained_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters with requires_grad, by name, in named_parameters order.

    Raises ConfigError, naming the first, for values that are not real numbers.
    """
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    for name, parameter in trained:
        if (refused := _refusal(parameter)) is not None:
            raise ConfigError(f"the parameter {name!r} {refused[0]}", refused[1])
    return trained


def averaged_buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the averaged floating buffers, by name.  Raises ConfigError for a buffer that cannot be written."""
    kept = set(module.state_dict(keep_vars=True)) - spectral_norms.directions(module)
    found = []
    for name, buffer in module.named_buffers():
        if name not in kept:
            continue
        if (refused := _unwritable(buffer)) is not None:
            raise ConfigError(f"the buffer {name!r} {refused[0]}", refused[1])
        if buffer.is_floating_point() and bool(buffer.isfinite().all()):
            found.append((name, buffer))
    return found


def _refusal(tensor: torch.Tensor) -> tuple[str, str] | None:
    import torch

    if (refused := _unwritable(tensor)) is not None:
        return refused
    if tensor.is_complex():
        advice = "Keep torch.view_as_real(it) as the parameter, and torch.view_as_complex of that in forward()."
        return f"is {tensor.dtype}, and a vector holds real numbers", advice
    if tensor.layout is not torch.strided:
        return f"is {tensor.layout}, and a vector holds dense tensors", "Make it dense; its gradients may be sparse."
    return None


def _unwritable(tensor: torch.Tensor) -> tuple[str, str] | None:
    from torch.nn.parameter import is_lazy

    if is_lazy(tensor):
        return "has no shape yet (of a lazy layer)", "Pass one batch through the model first, or name its sizes."
    if tensor.is_meta:
        return "has no values (device meta)", "Call model.to_empty(device=...) and initialise it first."
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        return "is expanded: its elements are one", "Give each a value of its own: tensor.expand(...).clone()."
    return None
