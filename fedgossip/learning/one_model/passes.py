"""How a batch goes through a module, and its gradient back: all of the module here, or stages in several processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import nn

from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.one_model.precision import autocast

Watch = Callable[[torch.Tensor], AbstractContextManager[None]]
"""(loss of a batch): the context of its backward pass."""


class Passes(Protocol):
    """The computations that `ModuleLoop` requests for its module."""

    def announce(self, rows: int) -> None:
        """Receive the number of examples of the next batch, over all processes."""
        ...

    def backward(self, x: torch.Tensor, y: torch.Tensor, weight: float, factor: float, watched: Watch) -> torch.Tensor:
        """Add the gradient of one piece of a batch, times `weight` and `factor`; return its loss, times `weight`.

        0 in a process that sees no loss.
        """
        ...

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """Return the module's outputs for examples; in a process without outputs, anything."""
        ...


class WholePasses:
    """The whole module in this process: `forward` is the callable of training, the module or its wrapper."""

    def __init__(
        self, module: nn.Module, forward: nn.Module, criterion: Criterion, precision: str, device: torch.device
    ) -> None:
        self._module, self._forward, self._criterion = module, forward, criterion
        self._precision, self._device = precision, device

    def announce(self, rows: int) -> None:
        pass

    def backward(self, x: torch.Tensor, y: torch.Tensor, weight: float, factor: float, watched: Watch) -> torch.Tensor:
        with autocast(self._precision, self._device):
            logits = self._forward(x)
        loss = self._criterion.mean(logits, y)
        if weight != 1:
            loss = loss * weight
        with watched(loss.detach()):
            (loss * factor if factor != 1 else loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._module(x)
        return found
