"""The gradient of each example alone, for a whole batch at once: by formulas where they cover all layers
(`layered`), else by opacus's hooks on every layer, or one after another.

An example's result must not depend on the others of its batch, or its gradient is not its own: BatchNorm is refused by
name, and any other mixing by comparing two examples together and alone.  The gradients themselves are checked too: they
add up to that of the batch, and equal those of each example alone.

Source: Yousefpour et al., Opacus: user-friendly differential privacy library in PyTorch, 2021.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from fedgossip.base.errors import ConfigError
from fedgossip.data.objectives import Objective
from fedgossip.learning.dp_sgd.layered import Layered, known_layers
from fedgossip.learning.one_model.losses import Criterion

TOLERANCE = 1e-3
"""Tolerance of the comparisons with two examples, relative to the largest element; float32 rounds to about 1e-6."""

ONE_BY_ONE = (nn.RNNBase, nn.MultiheadAttention, nn.EmbeddingBag)
"""Layers without batched per-example gradients in torch."""


class PerExample(Protocol):
    criterion: Criterion

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """Return [b, *shape] per trained parameter, in their order, of b >= 1 examples; the module is in training."""
        ...


def per_example(module: nn.Module, criterion: Criterion | None = None) -> PerExample:
    """Return the method that the module's layers allow, for a loss; cross-entropy by default.

    Raises ConfigError: BatchNorm, or opacus is not installed.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"{name or 'the model'} is {type(part).__name__}: it mixes the examples of a batch, so that none of "
                "them can be hidden",
                "Use torch.nn.GroupNorm, which normalises each example alone, or privacy for whole clients.",
            )
    if any(isinstance(part, ONE_BY_ONE) for part in module.modules()):
        return Alone(module, criterion)
    if layers := known_layers(module):
        return Layered(module, layers, criterion)
    return Hooked(module, criterion)


class Hooked:
    """By opacus: its formulas for known layers, functorch for others."""

    def __init__(self, module: nn.Module, criterion: Criterion | None = None) -> None:
        self._trained, self.criterion = trained(module), criterion or Criterion(Objective())
        try:
            self._wrapped = _grad_sample_module()(module, loss_reduction="sum", strict=False)
        except NotImplementedError as error:
            raise ConfigError(
                f"the model has a layer without gradients per example: {error}", "Put it together from torch's layers."
            ) from error

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        for parameter in self._trained:
            parameter.grad_sample = None  # type: ignore[attr-defined]
        loss = self.criterion.summed(self._wrapped(x), y)
        with warnings.catch_warnings():  # of hooks on a layer whose input has no gradient: it needs none
            warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
            loss.backward()  # type: ignore[no-untyped-call]
        return [self._take(parameter, len(x)) for parameter in self._trained]

    @contextmanager
    def unhooked(self) -> Iterator[None]:
        """Disable the hooks for passes outside `gradients`."""
        self._wrapped.disable_hooks()
        try:
            with warnings.catch_warnings():  # as above
                warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
                yield
        finally:
            self._wrapped.enable_hooks()

    def _take(self, parameter: nn.Parameter, examples: int) -> torch.Tensor:
        found: torch.Tensor | None = parameter.grad_sample  # type: ignore[attr-defined]
        parameter.grad_sample = None  # type: ignore[attr-defined]
        return parameter.new_zeros((examples, *parameter.shape)) if found is None else found


class Alone:
    """A forward and a backward pass for every example."""

    def __init__(self, module: nn.Module, criterion: Criterion | None = None) -> None:
        self._module, self._trained = module, trained(module)
        self.criterion = criterion or Criterion(Objective())

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        each = [self.of_batch(x[k : k + 1], y[k : k + 1]) for k in range(len(x))]
        return [torch.stack(column) for column in zip(*each, strict=True)]

    def of_batch(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the sum of the examples' gradients."""
        loss = self.criterion.summed(self._module(x), y)
        found = torch.autograd.grad(loss, self._trained, allow_unused=True)
        return tuple(torch.zeros_like(p) if g is None else g for p, g in zip(self._trained, found, strict=True))


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def check_apart(module: nn.Module, way: PerExample, x: torch.Tensor, y: torch.Tensor) -> None:
    """Raise ConfigError where the model mixes examples, or their gradients do not add up; restores its buffers.

    `x`, `y`: two examples, or one.
    """
    kept = [buffer.clone() for buffer in module.buffers()]
    with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        if _mixes(module.eval(), x) or _mixes(module.train(), x):
            raise ConfigError(
                "what the model says of an example depends on the other examples of its batch: none can be hidden",
                "Normalise each example alone (GroupNorm, LayerNorm), or use privacy for whole clients.",
            )
        if wrong := _not_their_own(module, way, x, y):
            raise ConfigError(
                f"the gradients of single examples {wrong}: how a layer is used is not known",
                "Use a parameter in the layer that owns it, one input per layer with the batch first; or torch's own "
                "layers.",
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
        return False  # dropout: results are not comparable
    return not _near(module(x[:1])[0], together[0])


def _not_their_own(module: nn.Module, way: PerExample, x: torch.Tensor, y: torch.Tensor) -> str:
    """Return the fault of the gradients, compared under the same random numbers; "" without one."""
    if isinstance(way, Alone):
        return ""
    with torch.random.fork_rng():
        apart = way.gradients(x, y)
    if any(len(one) != len(x) for one in apart):
        return "are not as many as the examples"
    alone = Alone(module, way.criterion)
    with way.unhooked() if isinstance(way, Hooked) else nullcontext():
        with torch.random.fork_rng():
            together = alone.of_batch(x, y)
        if not _near(*(_line(parts) for parts in ([one.sum(0) for one in apart], together))):
            return "do not add up to that of the batch"
        with torch.no_grad():
            repeats = torch.equal(module(x), module(x))  # without dropout
        if repeats and not _near(_line(apart), _line(alone.gradients(x, y))):
            return "are not those of each of them alone"
    return ""


def _line(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([one.reshape(-1) for one in parts])


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
