"""The processes that train one client together, seen from one of them: its part of a batch, and sums over all.

Each of P processes takes about 1/P of a batch's rows and weighs its mean by (its rows / all rows), for lines by
characters: the sum is the gradient of one process, to rounding.  Every process computes a batch with fewer rows than
processes as a whole, with weight 1/P.

BatchNorm is replaced by a layer with statistics over all parts (`joined`).  Dropout masks differ between processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedgossip.data.dataset import Indices


@dataclass(frozen=True)
class Team:
    """`rank` of `size` processes; several need torch.distributed's default group and the same calls in the same
    order.
    """

    rank: int = 0
    size: int = 1
    progressed: Callable[[], None] = field(default=lambda: None)
    """Called after every step: the process is alive and not stuck."""
    group: torch.distributed.ProcessGroup | None = None
    """The processes of a sum; None: all."""
    speaks: bool = True
    """Whether it reports its part of a batch: of several processes with the same part, or successive stages, one does.
    """
    stage: int = 0
    """Stage of a model with divided layers."""
    begins: Callable[[tuple[int, int]], None] = field(default=lambda _: None)
    """Called with the name of a job, (node, round), when it begins."""

    @property
    def draws(self) -> int:
        """A number that differs between processes with separate dropout draws."""
        return self.stage * self.size + self.rank

    def splits(self, rows: int) -> bool:
        """Return whether a batch of `rows` rows is divided."""
        return self.size > 1 and rows >= self.size

    def pieces_of(
        self, rows: Indices, pieces: int, predictions: Callable[[Indices], int] = len
    ) -> list[tuple[Indices, float]]:
        """Return this process's part of a batch in about `pieces` pieces, each with its share of the batch's mean.

        The mean is over rows, or `predictions`.  Every process has the same number of pieces, of at least one row.
        """
        if self.size == pieces == 1:
            return [(rows, 1.0)]
        mine, smallest, copies = rows, len(rows), self.size
        if self.splits(len(rows)):
            mine, smallest, copies = np.array_split(rows, self.size)[self.rank], len(rows) // self.size, 1
        parts = np.array_split(mine, min(pieces, smallest))
        return [(part, predictions(part) / (predictions(rows) * copies)) for part in parts]

    def part_of(self, rows: int) -> tuple[slice, bool]:
        """Return the slice of `rows` that this process evaluates, and whether it counts them."""
        if not self.splits(rows):
            return slice(None), self.rank == 0 and self.speaks
        ends = np.cumsum([0, *(len(part) for part in np.array_split(np.arange(rows), self.size))])
        return slice(int(ends[self.rank]), int(ends[self.rank + 1])), self.speaks

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tensors of all processes; changes the given tensor."""
        if self.size > 1 or self.group is not None:
            torch.distributed.all_reduce(tensor, group=self.group)
        return tensor


class _Total(torch.autograd.Function):
    """A differentiable sum over the processes: each part affects the sum that all of them use."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, team: Team) -> torch.Tensor:
        ctx.team = team
        return team.total(tensor.clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.team.total(gradient.clone()), None


class TeamNorm(_BatchNorm):
    """BatchNorm over the batch of all processes; running statistics as in torch."""

    team: Team
    copies: bool
    """Whether every process has the whole batch, so no sum is needed."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        pass  # the only difference between BatchNorm1d, 2d and 3d

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not (self.training or self.running_mean is None) or self.copies:
            return super().forward(input)
        x = input.float()  # under autocast too: the mean of many 16-bit numbers is poor
        axes = [axis for axis in range(x.dim()) if axis != 1]
        sums = self._summed(torch.cat([x.sum(axes), x.new_tensor([x.numel() // x.shape[1]])]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = x - _along(mean, x)
        variance = self._summed(centred.square().sum(axes)) / count
        self._keep(mean, variance * (count / (count - 1).clamp(min=1)))
        found = centred * _along(torch.rsqrt(variance + self.eps), x)
        if self.affine:
            found = found * _along(self.weight, x) + _along(self.bias, x)
        return found.to(input.dtype)

    def _summed(self, tensor: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = _Total.apply(tensor, self.team)  # type: ignore[no-untyped-call]
        return total

    def _keep(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        with torch.no_grad():
            self.num_batches_tracked += 1
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.mul_(1 - share).add_(mean * share)
            self.running_var.mul_(1 - share).add_(variance * share)


def joined(module: nn.Module, team: Team) -> nn.Module:
    """Return the module with every BatchNorm replaced by one over the whole team; names and tensors stay."""
    return _joined(module, team, {})


def _joined(module: nn.Module, team: Team, known: dict[nn.Module, nn.Module]) -> nn.Module:
    if module not in known:
        known[module] = _team_norm(module, team) if isinstance(module, _BatchNorm) else module
        for name, child in list(module._modules.items()):  # not named_children: it leaves out a layer's second name
            if child is not None:
                setattr(module, name, _joined(child, team, known))
    return known[module]


def _team_norm(norm: _BatchNorm, team: Team) -> TeamNorm:
    track = norm.running_mean is not None
    fresh = TeamNorm(norm.num_features, norm.eps, norm.momentum, norm.affine, track)
    fresh.team, fresh.copies = team, False
    for name, tensor in (*norm.named_parameters(), *norm.named_buffers()):
        setattr(fresh, name, tensor)
    return fresh.train(norm.training)


def _along(channels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return [channels] reshaped to broadcast over x [b, channels, ...]."""
    return channels.view(1, -1, *(1,) * (x.dim() - 2))
