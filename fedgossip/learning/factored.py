"""Gradients of examples as two factors: of linear layers one behind the other, each sees an example once.

    layer l of example i:   gradient of W_l = e_i a_i'      e_i: of the loss by what the layer gives, a_i: what it takes
                            gradient of b_l = e_i
    squared length          sum over the layers of |e_i|^2 (|a_i|^2 + 1)
    sum of cut gradients    sum_i c_i e_i a_i' = (c e)' a   one product, and no gradient of an example is ever made

Source: Goodfellow, Efficient per-example gradient computations, 2015 (the lengths); Li, Tramer, Liang and Hashimoto,
Large language models can be strong differentially private learners, ICLR 2022 (sums without the gradients).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from fedgossip.learning.losses import Criterion
from fedgossip.learning.objectives import Objective

WITHOUT_PARAMETERS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Identity)
"""What may stand between the layers: it works number by number."""


class Factors(NamedTuple):
    """Of one layer and b examples: e [b, outputs] and a [b, inputs], float64; whether it has a bias."""

    errors: torch.Tensor
    inputs: torch.Tensor
    bias: bool

    def squares(self) -> torch.Tensor:
        """Return the squared lengths [b] of the layer's gradients."""
        return self.errors.square().sum(1) * (self.inputs.square().sum(1) + int(self.bias))

    def summed(self, weights: torch.Tensor) -> list[torch.Tensor]:
        """Return per parameter the sum of the gradients, each times its weight [b]."""
        errors = self.errors * weights[:, None]
        return [errors.T @ self.inputs, *([errors.sum(0)] if self.bias else [])]


class Factored:
    """A module that `linear_layers` has found, as `PerExample`; and the factors of its gradients."""

    def __init__(self, module: nn.Module, layers: Sequence[nn.Linear], criterion: Criterion | None = None) -> None:
        self._module, self._layers = module, layers
        self._criterion = criterion or Criterion(Objective())

    def factors(self, x: torch.Tensor, y: torch.Tensor) -> list[Factors]:
        """Return those of b >= 1 examples, layer by layer; .grad stays as it is."""
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []

        def note(_layer: nn.Module, taken: tuple[Any, ...], given: torch.Tensor) -> None:
            seen.append((taken[0].detach(), given))

        hooks = [layer.register_forward_hook(note) for layer in self._layers]
        try:
            loss = self._criterion.summed(self._module(x), y)
        finally:
            for hook in hooks:
                hook.remove()
        errors = torch.autograd.grad(loss, [given for _, given in seen])
        both = zip(self._layers, errors, seen, strict=True)
        return [Factors(e.double(), taken.double(), layer.bias is not None) for layer, e, (taken, _) in both]

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """See `PerExample`; .grad is filled, as by a pass of the batch."""
        self._criterion.summed(self._module(x), y).backward()  # type: ignore[no-untyped-call]
        found: list[torch.Tensor] = []
        for errors, inputs, bias in self.factors(x, y):
            found += [torch.einsum("bo,bi->boi", errors, inputs).float(), *([errors.float()] if bias else [])]
        return found


def linear_layers(module: nn.Module) -> list[nn.Linear] | None:
    """Return the layers of a module of which each example's gradient is a product of two vectors; None of any other.

    A Sequential that flattens its examples and then has Linear layers, all of it trained, with nothing between them
    that has parameters or mixes numbers.
    """
    if type(module) is not nn.Sequential or type(next(iter(module), None)) is not nn.Flatten:
        return None
    parts = list(module)[1:]
    layers = [part for part in parts if type(part) is nn.Linear]
    known = all(type(part) in (nn.Linear, *WITHOUT_PARAMETERS) for part in parts)
    parameters = list(module.parameters())  # one that two layers share stands here once
    apart = len(parameters) == sum(1 + (layer.bias is not None) for layer in layers)
    hooked = any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in (module, *parts))
    trained = all(parameter.requires_grad for parameter in parameters)
    return layers if layers and known and apart and trained and not hooked else None
