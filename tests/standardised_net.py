"""A small convolutional network for MNIST whose inputs have mean 0 and deviation 1, as those of published programs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

MEAN, DEVIATION = 0.1307, 0.3081
"""Of MNIST's training images, of which every pixel is from 0 to 1."""


class Standardised(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - MEAN) / DEVIATION


def small(shape: Sequence[int], classes: int) -> nn.Module:
    convolutions = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(
        Standardised(), *convolutions, nn.Flatten(), nn.Linear(16 * 49, 64), nn.ReLU(), nn.Linear(64, classes)
    )
