"""Convolutions with the channels innermost: memory order [b, h, w, c], logical order [b, c, h, w].

Only images change their memory order.  Weights keep theirs, for they are views of the exchanged vector; torch lays them
out anew for each convolution, at a small cost beside the images.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedgossip.base.errors import ConfigError

FLAT = (nn.Conv2d, nn.ConvTranspose2d)
SOLID = (nn.Conv3d, nn.ConvTranspose3d)


def check(module: nn.Module) -> None:
    """Raise ConfigError for a module without a suitable convolution."""
    if not any(isinstance(part, (*FLAT, *SOLID)) for part in module.modules()):
        advice = "It is for models with Conv2d or Conv3d; leave channels_last out."
        raise ConfigError("channels_last = true, but the model has no convolution of images", advice)


def innermost(module: nn.Module) -> None:
    """Lay out the images of every convolution of the module with the channels innermost; the results follow."""
    for part in module.modules():
        if isinstance(part, FLAT):
            part.register_forward_pre_hook(_flat)
        elif isinstance(part, SOLID):
            part.register_forward_pre_hook(_solid)


def _flat(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return inputs[0].contiguous(memory_format=torch.channels_last), *inputs[1:]


def _solid(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return inputs[0].contiguous(memory_format=torch.channels_last_3d), *inputs[1:]
