"""The exchanged part of a user's module, as one flat vector: read from it and written to it in place."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import Vector, all_finite, empty, frozen
from fedgossip.core.task import STATISTIC, Segment
from fedgossip.learning.one_model import spectral_norms
from fedgossip.learning.one_model.flat import Layout, averaged_buffers, trained_parameters
from fedgossip.learning.one_model.probing import projected

_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Name parts that torch.compile and torch's wrappers insert between a module and its parameters."""

_AROUND = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
"""Modules of torch that hold the model as their attribute `module`."""

_ROUNDED = (torch.float32, torch.float16, torch.bfloat16)
"""Types that are sent as float32; float64 is sent as float64."""


class Exchanged:
    """The exchanged tensors of `module`: parameters with requires_grad, and floating buffers if averaged.

    `only`: patterns of names; other tensors stay local.  A vector is [d], float32, or float64 if all tensors are.
    """

    def __init__(self, module: nn.Module, only: Sequence[str] = (), buffers: str = "average") -> None:
        self.module = module
        named = list(_parameters(module, only)) + (list(_buffers(module, only)) if buffers == "average" else [])
        self._paths = [path for path, _, _ in named]
        self._only = tuple(only)
        self._frozen = {path for path, p in module.named_parameters() if not p.requires_grad}
        self._types = [tensor.dtype for _, _, tensor in named]
        trained = sum(tensor.numel() for _, _, tensor in named if isinstance(tensor, nn.Parameter))
        names, shapes = tuple(name for _, name, _ in named), tuple(tuple(tensor.shape) for _, _, tensor in named)
        kind, types = _kind(named), tuple(str(one).removeprefix("torch.") for one in self._types)
        self.exact = set(types) == {kind}
        """Whether the tensors represent written numbers exactly; a tensor of bfloat16 rounds them."""
        self.layout = Layout(names, shapes, trained, kind, () if self.exact else types)
        self._buffer = self._new_buffer()

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.layout.segments

    def check_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Raise ConfigError, naming the first, for an exchanged parameter that no optimizer changes."""
        held = {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}
        for name, tensor in zip(self.layout.names, self.tensors(), strict=True):
            if isinstance(tensor, nn.Parameter) and id(tensor) not in held:
                advice = "Give the optimizer of this model (several in a list); freeze parameters that are not trained."
                raise ConfigError(f"join: no optimizer holds the parameter {name!r} of the model", advice)

    def check_complete(self) -> None:
        """Raise ConfigError, naming the first, for a parameter that trains now and was frozen or absent at the join."""
        plain, exchanged = _plainly(self.module), set(self._paths)
        for path, parameter in self.module.named_parameters():
            name = plain(path)
            if not parameter.requires_grad or path in exchanged or (self._only and not _matches(name, self._only)):
                continue
            before = "was frozen at join()" if path in self._frozen else "was added after join()"
            text = f"the parameter {name!r} trains now, {before}, and is not exchanged"
            advice = "Join while it trains and the optimizer holds it, then freeze it until it is to train."
            raise ConfigError(text, advice)

    def read(self) -> Vector:
        """Return the tensors as a new frozen vector.  Raises ConfigError if the shape or type of one has changed."""
        tensors = [_gather(tensor) for tensor in self.tensors()]
        vector = empty(self.layout.length, self.layout.dtype)
        if all(tensor.device.type == "cpu" for tensor in tensors):
            torch._foreach_copy_(list(self._views(torch.from_numpy(vector))), tensors)
            return frozen(vector)
        flat = torch.cat([tensor.reshape(-1).to(self._buffer.dtype) for tensor in tensors])
        self._buffer.copy_(flat, non_blocking=True)
        _wait_for(flat.device)
        np.copyto(vector, self._buffer.numpy())
        return frozen(vector)

    def write(self, vector: Vector) -> None:
        """Copy the vector into the tensors; builds no graph and keeps no reference."""
        with torch.no_grad():
            torch._foreach_copy_(*self._paired(vector))
        spectral_norms.settle(self.module)

    def add(self, difference: Vector) -> None:
        """Add the vector to the tensors, each element rounded once."""
        with torch.no_grad():
            torch._foreach_add_(*self._paired(difference))
        spectral_norms.settle(self.module)

    def check_finite(self, vector: Vector, where: str) -> None:
        """Raise TrainingError, naming `where` and the first tensor, for an element that is infinite or NaN."""
        if all_finite(vector):
            return
        for name, place, _ in self.layout.places():
            wrong = int(np.count_nonzero(~np.isfinite(vector[place])))
            if wrong:
                what = f"{where}: the parameter {name!r} holds {wrong} elements that are not finite"
                advice = "Nothing of this round was sent.  Use a smaller learning rate, or clip the gradients."
                raise TrainingError(f"{what}, of {vector[place].size}", advice)

    def frozen_projections(self) -> tuple[float, ...]:
        """Return projections of the untrained parameters, which all participants must share, such as the base of
        adapters.
        """
        plain = _plainly(self.module)
        kept = [(plain(n), _gather(p).cpu()) for n, p in self.module.named_parameters() if not p.requires_grad]
        return projected((f"{name}/{tuple(one.shape)}/{one.dtype}", one) for name, one in kept if one.numel())

    def first_projections(self, vector: Vector) -> tuple[float, ...]:
        """Return projections of a loop's initial weights."""
        return projected([("first", torch.from_numpy(vector.copy()))])

    def snapshot(self) -> Vector:
        """Return a copy that `restore` restores bit for bit."""
        return self.read()

    def restore(self, kept: Vector) -> None:
        self.write(kept)

    def facts(self) -> Mapping[str, float]:
        """Return numbers of the last exchange for the record."""
        return {}

    def path(self, place: int) -> str:
        """Return the path in the module of the tensor with this index in the layout."""
        return self._paths[place]

    def parts_of(self, vector: Vector) -> list[torch.Tensor]:
        """Return the parts of a vector, each a separate tensor like the model's."""
        tensors = self.tensors()
        views = self._views(torch.from_numpy(vector.copy()))
        return [_like(t, view) for t, view in zip(tensors, views, strict=True)]

    def tensors(self) -> list[torch.Tensor]:
        """Return the exchanged tensors, in the vector's order.  Raises ConfigError for a changed shape or type."""
        there: dict[str, torch.Tensor] = dict(self.module.named_parameters())
        there.update(self.module.named_buffers())
        found = [there.get(path) for path in self._paths]
        layout = zip(found, self.layout.names, self.layout.shapes, self._types, strict=True)
        for place, (tensor, name, shape, kind) in enumerate(layout):
            if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != kind:
                now = "is gone" if tensor is None else f"is {_described(tensor.shape, tensor.dtype)} now"
                what, advice = "parameter", "Join when the model has its final form; then only values may change."
                if self.segments[place].kind == STATISTIC:
                    what, advice = "buffer", "A table that changes its size stays here with persistent=False."
                raise ConfigError(f"the {what} {name!r} was {_described(shape, kind)} and {now}", advice)
        return [tensor for tensor in found if tensor is not None]

    def _paired(self, vector: Vector) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        tensors = self.tensors()
        np.copyto(self._buffer.numpy(), vector)
        views = self._views(self._buffer)
        moved = [_like(t, view) for t, view in zip(tensors, views, strict=True)]
        for device in {t.device for t in tensors}:
            _wait_for(device)  # the buffer is written again at the next exchange
        return [_get_local(t) for t in tensors], [_get_local(t) for t in moved]

    def _views(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        for _, place, shape in self.layout.places():
            yield flat[place].view(shape)

    def _new_buffer(self) -> torch.Tensor:
        pinned = torch.cuda.is_available()
        return torch.empty(self.layout.length, dtype=getattr(torch, self.layout.kind), pin_memory=pinned)


def optimizers_of(model: Any, optimizer: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers of torch in `optimizer`.  Raises ConfigError for anything else, and for no module."""
    if not isinstance(model, nn.Module):
        several = isinstance(model, list | tuple) and all(isinstance(one, nn.Module) for one in model)
        what = "several models" if several else f"a {type(model).__name__}"
        advice = "Give join() torch.nn.ModuleList([a, b])" if several else "Give join() the torch.nn.Module that trains"
        raise ConfigError(f"join: the model is {what}, not one torch.nn.Module", f"{advice}, and its optimizer.")
    given = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    found = [getattr(one, "optimizer", one) for one in given]  # accelerate wraps torch's optimizers
    for one in found:
        if not isinstance(one, torch.optim.Optimizer):
            kind = one.__name__ if isinstance(one, type) else type(one).__name__
            text = f"join: the optimizer is {'the class' if isinstance(one, type) else 'a'} {kind}, not one of torch"
            if one is None:
                text = "join: the optimizer is None"
            raise ConfigError(text, "Give join() the torch.optim.Optimizer that trains the model; several in a list.")
    return found


Named = tuple[str, str, torch.Tensor]
"""The path in the module, the name that participants compare, and the tensor."""


def _parameters(module: nn.Module, only: Sequence[str]) -> Iterator[Named]:
    plain = _plainly(module)
    trained = [(path, plain(path), p) for path, p in trained_parameters(module)]
    for pattern in only:
        if not any(_matches(name, [pattern]) for _, name, _ in trained):
            known = ", ".join(name for _, name, _ in trained[:20])
            raise ConfigError(f"exchange: no parameter that trains matches {pattern!r}", f"There are: {known}.")
    found = [one for one in trained if not only or _matches(one[1], only)]
    if not found:
        raise ConfigError("the model has no parameter to train and to share", "Is requires_grad off everywhere?")
    yield from found


def _buffers(module: nn.Module, only: Sequence[str]) -> Iterator[Named]:
    plain = _plainly(module)
    for path, buffer in averaged_buffers(module):
        if not only or _matches(plain(path), only):
            yield path, plain(path), buffer


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}") for pattern in patterns)


def _kind(named: Sequence[Named]) -> str:
    types = {tensor.dtype for _, _, tensor in named}
    if types == {torch.float64}:
        return "float64"
    for _, name, tensor in named:
        if tensor.dtype not in _ROUNDED:
            advice = "Exchanged are float32, float16 and bfloat16, or float64 alone."
            what = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
            raise ConfigError(f"the {what} {name!r} is {tensor.dtype}", advice)
    return "float32"


def _plainly(module: nn.Module) -> Callable[[str], str]:
    """Return the function from a path in `module` to the model's own name, without torch's wrappers."""
    wrapped, inner = "", cast(Any, module)
    while True:
        if hasattr(inner, "_orig_mod"):  # of torch.compile; inner modules have this prefix too
            inner = inner._orig_mod
        elif isinstance(inner, _AROUND):
            wrapped, inner = f"{wrapped}module.", inner.module
        else:
            return lambda path: _WRAPPERS.sub("", path).removeprefix(wrapped)


def _gather(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor without its graph; for a DTensor divided over ranks the whole tensor, and all ranks
    must call.
    """
    found: Any = tensor.detach()
    whole: torch.Tensor = found.full_tensor() if _is_divided(tensor) else found
    return whole


def _get_local(tensor: torch.Tensor) -> torch.Tensor:
    found: Any = tensor
    here: torch.Tensor = found.to_local() if _is_divided(tensor) else found
    return here


def _like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    values = values.to(tensor.device, tensor.dtype, non_blocking=True)
    if not _is_divided(tensor):
        return values
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(values, tensor.device_mesh, tensor.placements)  # type: ignore[attr-defined]


def _is_divided(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def _described(shape: Sequence[int], kind: torch.dtype) -> str:
    return f"{list(shape)} of {str(kind).removeprefix('torch.')}"


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def elements(segments: Sequence[Segment]) -> int:
    """Return the total number of elements in the segments."""
    return sum(math.prod(one.shape) for one in segments)
