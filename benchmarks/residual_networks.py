"""Residual networks for benchmarks (He and others, arXiv:1512.03385), for small images."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Two convolutions, each with a norm behind it, and what came in added to them."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(norm(outputs, groups) for _ in range(2))
        past = [nn.Conv2d(inputs, outputs, 1, stride, bias=False)] if inputs != outputs else [nn.Identity()]
        self.past = nn.Sequential(*past, *([norm(outputs, groups)] if inputs != outputs and not groups else []))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(h)) + self.past(x))


def norm(channels: int, groups: int) -> nn.Module:
    """GroupNorm of so many groups, or BatchNorm where that is 0."""
    return nn.GroupNorm(groups, channels) if groups else nn.BatchNorm2d(channels)


def network(channels: int, classes: int, widths: list[int], groups: int) -> nn.Module:
    blocks = [Block(a, b, 1 if a == b else 2, groups) for a, b in pairwise(widths)]
    first = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False), norm(widths[0], groups), nn.ReLU()
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def resnet20(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Section 4.2, n = 3, with GroupNorm in place of BatchNorm: 0.27 million parameters."""
    return network(shape[0], classes, [16, *[16] * 3, *[32] * 3, *[64] * 3], groups=8)


def resnet18(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Table 1, 18 layers, with a first convolution of 3 x 3 and no pooling behind it: 11.2 million parameters."""
    return network(shape[0], classes, [64, *[64] * 2, *[128] * 2, *[256] * 2, *[512] * 2], groups=0)
