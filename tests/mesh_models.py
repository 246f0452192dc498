"""Models of a user's own for tests/net/test_mesh.py: layers that processes divide, and stages."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel


def narrow(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(shape[0], 12), nn.Tanh(), nn.Linear(12, classes), nn.LayerNorm(classes)
    )


class Halves(nn.Module):
    """Two parts that no list has in order, so that only `stages` can tell them apart."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(9, classes)
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(features, 9), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.first(x))
        return found


def halves(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Halves(shape[0], classes)


def stages(module: nn.Module, n: int) -> list[nn.Module]:
    if isinstance(module, Halves):
        return [module.first, module.last]
    return [module]


def parallel_plan(module: nn.Module) -> dict[str, ParallelStyle]:
    return {"1": ColwiseParallel(), "3": RowwiseParallel()}
