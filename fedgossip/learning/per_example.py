"""The gradient of each example alone, of a whole batch at once: factors of linear layers (`factored`), opacus's hooks
on every layer, or one after another.

What a model does with one example must not depend on the others of its batch, or the gradient of an example is not its
own: BatchNorm is refused by name, and any other mixing by looking at two examples together and alone.  That opacus
knows every layer is looked at too: the gradients of the examples add up to that of the batch.

Source: Yousefpour et al., Opacus: user-friendly differential privacy library in PyTorch, 2021.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from fedgossip.errors import ConfigError
from fedgossip.learning.factored import Factored, linear_layers
from fedgossip.learning.losses import Criterion
from fedgossip.learning.objectives import Objective

TOLERANCE = 1e-3
"""Of the comparisons with two examples, relative to the largest element; float32 rounds to about 1e-6."""

ONE_BY_ONE = (nn.RNNBase, nn.MultiheadAttention, nn.EmbeddingBag)
"""Layers of which torch gives no gradients per example at once."""


class PerExample(Protocol):
    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """Return [b, *shape] per trained parameter, in their order, of b >= 1 examples; the module is in training."""
        ...


def per_example(module: nn.Module, criterion: Criterion | None = None) -> PerExample:
    """Return the way that the module's layers allow, for a loss; without one cross-entropy.

    Raises ConfigError: BatchNorm, or opacus is not installed.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"{name or 'the model'} is {type(part).__name__}: it mixes the examples of a batch, so that none of "
                "them can be hidden",
                "Use torch.nn.GroupNorm, which normalises each example alone, or privacy for whole clients.",
            )
    if layers := linear_layers(module):
        return Factored(module, layers, criterion)
    if any(isinstance(part, ONE_BY_ONE) for part in module.modules()):
        return Alone(module, criterion)
    return Hooked(module, criterion)


class Hooked:
    """By opacus: its formula for the layers that it knows, functorch for others."""

    def __init__(self, module: nn.Module, criterion: Criterion | None = None) -> None:
        self._trained, self._criterion = trained(module), criterion or Criterion(Objective())
        try:
            self._wrapped = _grad_sample_module()(module, loss_reduction="sum", strict=False)
        except NotImplementedError as error:
            raise ConfigError(
                f"the model has a layer without gradients per example: {error}", "Put it together from torch's layers."
            ) from error

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        for parameter in self._trained:
            parameter.grad_sample = None  # type: ignore[attr-defined]
        loss = self._criterion.summed(self._wrapped(x), y)
        with warnings.catch_warnings():  # of hooks on a layer whose input has no gradient: it needs none
            warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
            loss.backward()  # type: ignore[no-untyped-call]
        return [self._take(parameter, len(x)) for parameter in self._trained]

    def _take(self, parameter: nn.Parameter, examples: int) -> torch.Tensor:
        found: torch.Tensor | None = parameter.grad_sample  # type: ignore[attr-defined]
        parameter.grad_sample = None  # type: ignore[attr-defined]
        return parameter.new_zeros((examples, *parameter.shape)) if found is None else found


class Alone:
    """A forward and a backward pass for every example."""

    def __init__(self, module: nn.Module, criterion: Criterion | None = None) -> None:
        self._module, self._trained = module, trained(module)
        self._criterion = criterion or Criterion(Objective())

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        each = [self._one(x[k : k + 1], y[k : k + 1]) for k in range(len(x))]
        return [torch.stack(column) for column in zip(*each, strict=True)]

    def _one(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = self._criterion.summed(self._module(x), y)
        found = torch.autograd.grad(loss, self._trained, allow_unused=True)
        return tuple(torch.zeros_like(p) if g is None else g for p, g in zip(self._trained, found, strict=True))


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def check_apart(module: nn.Module, way: PerExample, x: torch.Tensor, y: torch.Tensor) -> None:
    """Raise ConfigError where the model mixes examples, or their gradients do not add up; leaves its buffers as found.

    `x`, `y`: two examples, or one.
    """
    kept = [buffer.clone() for buffer in module.buffers()]
    with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        if _mixes(module.eval(), x) or _mixes(module.train(), x):
            raise ConfigError(
                "what the model says of an example depends on the other examples of its batch: none can be hidden",
                "Normalise each example alone (GroupNorm, LayerNorm), or use privacy for whole clients.",
            )
        if not _adds_up(module, way, x, y):
            raise ConfigError(
                "the gradients of single examples do not add up to that of the batch: opacus does not know a layer",
                "Use a parameter in the layer that owns it, one input per layer; or torch's own layers.",
            )
    restore(module, kept)


def restore(module: nn.Module, kept: Sequence[torch.Tensor]) -> None:
    """Put the module's buffers back."""
    for buffer, before in zip(module.buffers(), kept, strict=True):
        buffer.copy_(before)


@torch.no_grad()
def _mixes(module: nn.Module, x: torch.Tensor) -> bool:
    together = module(x)
    if not torch.equal(together, module(x)):
        return False  # dropout: nothing can be compared
    return not _near(module(x[:1])[0], together[0])


def _adds_up(module: nn.Module, way: PerExample, x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the gradients add up, all from the same random numbers (dropout)."""
    if isinstance(way, Alone):
        return True
    parameters = trained(module)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()
    apart = way.gradients(x, y)  # the same backward pass has filled .grad
    summed = torch.cat([one.sum(0).reshape(-1) for one in apart])
    together = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters])
    return _near(summed, together)


def _near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    largest = max(float(expected.abs().max()), float(found.abs().max()), 1e-12)
    return float((found - expected).abs().max()) <= TOLERANCE * largest


def _grad_sample_module() -> Any:
    """Return opacus's GradSampleModule.  Raises ConfigError where opacus is not installed."""
    try:
        from opacus.grad_sample import GradSampleModule
    except ModuleNotFoundError as missing:
        advice = "pip install 'fedgossip[privacy]'"
        raise ConfigError(f"differential privacy in training needs {missing.name}", advice) from None
    return GradSampleModule
