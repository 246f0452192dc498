"""Per-example gradients of models with known layers only, see `layer_gradients`: one pass of a batch gives all.

The forward pass keeps each layer's input; the backward pass goes down to each layer's output, and no further: the
unused gradients of the batch are not computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fedgossip.base.errors import ConfigError
from fedgossip.data.objectives import Objective
from fedgossip.learning.dp_sgd.layer_gradients import Apart, LayerGradients, gradients_of, is_known
from fedgossip.learning.one_model.losses import Criterion


class Call(NamedTuple):
    """A call of a layer: its place among the layers, its input, and the edge that gives the gradient by its output."""

    place: int
    taken: torch.Tensor
    given: GradientEdge


class Layered:
    """A module and its layers as found by `known_layers`; one `PerExample`."""

    def __init__(self, module: nn.Module, layers: Sequence[nn.Module], criterion: Criterion | None = None) -> None:
        self._module, self._layers = module, layers
        self.criterion = criterion or Criterion(Objective())
        self._places = {layer: place for place, layer in enumerate(layers)}
        self.parameters = [list(layer.parameters(recurse=False)) for layer in layers]
        """The parameters of each layer."""
        self.elements = 0
        """Stored gradient numbers per example in the last call; layers with factors count as 0."""

    def by_layer(self, x: torch.Tensor, y: torch.Tensor) -> list[LayerGradients]:
        """Return the gradients of b >= 1 examples layer by layer; .grad stays unchanged.

        Raises ConfigError for a layer whose input is not one tensor with an example in each row.
        """
        calls: list[Call] = []
        if self._is_chain():
            outputs = self._chained(x, calls)
        else:
            with self._noting(calls, len(x)):
                outputs = self._module(x)
        loss = self.criterion.summed(outputs, y)
        given = [call.given for call in calls]
        errors = torch.autograd.grad(loss, given, allow_unused=True) if given else ()
        found: list[LayerGradients | None] = [None] * len(self._layers)
        with torch.no_grad():
            for call, error in zip(calls, errors, strict=True):
                if error is not None:
                    before, one = found[call.place], gradients_of(self._layers[call.place], call.taken, error)
                    found[call.place] = one if before is None else _together(before, one)
            both = zip(self._layers, found, strict=True)
            whole = [_nothing(layer, len(x)) if one is None else one for layer, one in both]
        self.elements = sum(one.elements for one in whole)
        return whole

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """See `PerExample`."""
        return [one for layer in self.by_layer(x, y) for one in layer.each()]

    def _is_chain(self) -> bool:
        """Return whether the layers form a chain: then no hooks are needed, which cost as much time."""
        module = self._module
        hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        return type(module) is nn.Sequential and not hooked and self._places.keys() <= set(module)

    def _chained(self, x: torch.Tensor, calls: list[Call]) -> torch.Tensor:
        h = x
        for part in self._module.children():
            if (place := self._places.get(part)) is None:
                h = part(h)
            else:
                taken = _innermost(h) if isinstance(part, nn.Conv2d) else h
                h = part(taken)
                calls.append(self._noted(place, (taken,), h, len(x)))
        return h

    @contextmanager
    def _noting(self, calls: list[Call], rows: int) -> Iterator[None]:
        """Record each call of a layer, and lay out pictures of convolutions on a CPU with the channels innermost."""

        def note(layer: nn.Module, taken: tuple[Any, ...], given: Any) -> None:
            calls.append(self._noted(self._places[layer], taken, given, rows))

        def lay(_: nn.Module, taken: tuple[Any, ...]) -> Any:
            return (_innermost(taken[0]), *taken[1:]) if taken else None

        hooks = [layer.register_forward_hook(note) for layer in self._layers]
        hooks += [layer.register_forward_pre_hook(lay) for layer in self._layers if isinstance(layer, nn.Conv2d)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _noted(self, place: int, taken: tuple[Any, ...], given: torch.Tensor, rows: int) -> Call:
        """Return a call.  Raises ConfigError for a layer whose input is not a tensor with an example in each row."""
        if len(taken) != 1 or len(taken[0]) != rows or given.dim() < 2:
            told = f"a tensor of shape {tuple(taken[0].shape)}" if len(taken) == 1 else f"{len(taken)} arguments"
            raise ConfigError(
                f"a {type(self._layers[place]).__name__} takes {told} for {rows} examples: whose gradient is whose "
                "cannot be known",
                "Give each layer one tensor whose first axis is that of the batch, by its place.",
            )
        # the edge, not the tensor: an activation may work in place
        return Call(place, taken[0].detach(), get_gradient_edge(given))


def known_layers(module: nn.Module) -> list[nn.Module] | None:
    """Return the trained layers of a module, in the order of its parameters; None where one is unknown.

    Every trained parameter belongs to one layer with a formula, and of such a layer all are trained.
    """
    layers = [part for part in module.modules() if any(p.requires_grad for p in part.parameters(recurse=False))]
    theirs = [parameter for layer in layers for parameter in layer.parameters(recurse=False)]
    once = len(theirs) == len({id(parameter) for parameter in theirs})
    all_trained = all(parameter.requires_grad for parameter in theirs)
    return layers if layers and once and all_trained and all(map(is_known, layers)) else None


def _innermost(images: torch.Tensor) -> torch.Tensor:
    """Lay pictures on a CPU out as [b, h, w, c], as `channels` does; with one channel torch needs explicit strides."""
    if images.device.type != "cpu" or images.dim() != 4:
        return images
    if images.shape[1] == 1 and not images.requires_grad and images.is_contiguous():
        height, width = images.shape[2:]
        return images.as_strided(images.shape, (height * width, 1, width, 1))
    return images.contiguous(memory_format=torch.channels_last)


def _together(one: LayerGradients, other: LayerGradients) -> LayerGradients:
    """Return the gradients of a layer with two calls."""
    made = [a + b for a, b in zip(one.each(), other.each(), strict=True)]
    return Apart(made, [None] * len(made))


def _nothing(layer: nn.Module, rows: int) -> LayerGradients:
    """Return the zero gradients of a layer without effect on the loss."""
    made = [parameter.new_zeros(rows, *parameter.shape) for parameter in layer.parameters(recurse=False)]
    return Apart(made, [None] * len(made))
