"""Which modules train many nodes at once (`stacked_engine`), and the shape of such a stack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from fedgossip.learning.one_model.flat import Layout


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution with ReLU and 2x2 pooling behind it, and the shape of one example.

    It reads [channels, height, width] and gives [outputs, half_height, half_width]; an odd last row or column of its
    result is dropped by the pooling, so it is not computed.
    """

    channels: int
    height: int
    width: int
    outputs: int
    kernel: int
    padding: int

    @property
    def half_height(self) -> int:
        return (self.height + 2 * self.padding - self.kernel + 1) // 2

    @property
    def half_width(self) -> int:
        return (self.width + 2 * self.padding - self.kernel + 1) // 2

    @property
    def inputs(self) -> int:
        """Number of weights of one output."""
        return self.channels * self.kernel**2

    @property
    def gives(self) -> tuple[int, int, int]:
        return self.outputs, self.half_height, self.half_width


@dataclass(frozen=True, slots=True)
class Shape:
    """A stack: convolutions, then linear layers from sizes[0] inputs to sizes[-1] outputs, ReLU between them."""

    convolutions: tuple[Convolution, ...]
    sizes: tuple[int, ...]

    @property
    def convolved(self) -> int:
        """Number of elements of a vector that belong to convolutions; they are first."""
        return sum(layer.outputs * (layer.inputs + 1) for layer in self.convolutions)

    @property
    def length(self) -> int:
        return self.convolved + sum(outputs * (inputs + 1) for inputs, outputs in pairwise(self.sizes))


def shape_of(module: nn.Module, layout: Layout, example: Sequence[int]) -> Shape | None:
    """Return the shape of a module [Conv2d, ReLU, MaxPool2d(2)]* [Flatten] Linear (ReLU Linear)* that reads `example`s.

    Convolutions are square with odd sides, of stride 1, padded with zeros if at all; Unflatten may fold a flat example
    into an image first.  None for all else, and where a hidden layer has one unit or channel, a layer has no bias, or
    parameters are frozen or personal.
    """
    if type(module) is not nn.Sequential:
        return None
    layers, given = list(module), tuple(example)
    fold = layers[0] if layers else None
    if isinstance(fold, nn.Unflatten) and len(given) == 1 and fold.dim == 1:
        given, layers = tuple(fold.unflattened_size), layers[1:]
    if math.prod(given) != math.prod(example):
        return None
    convolutions: list[Convolution] = []
    while layers and type(layers[0]) is nn.Conv2d:
        found = _convolution(layers[:3], given)
        if found is None:
            return None
        convolutions.append(found)
        layers, given = layers[3:], found.gives
    sizes = _sizes(layers, flat=not convolutions)
    if sizes is None or sizes[0] != math.prod(given):
        return None
    shape = Shape(tuple(convolutions), sizes)
    return shape if shape.length == layout.length and min(sizes[1:-1], default=2) >= 2 else None


def _convolution(layers: Sequence[nn.Module], given: tuple[int, ...]) -> Convolution | None:
    """Return the effect of [Conv2d, ReLU, MaxPool2d] on an example of shape `given`, if supported by `shape_of`."""
    if [type(layer) for layer in layers] != [nn.Conv2d, nn.ReLU, nn.MaxPool2d] or len(given) != 3:
        return None
    conv, _, pool = layers
    assert isinstance(conv, nn.Conv2d) and isinstance(pool, nn.MaxPool2d)
    kernel, padding = conv.kernel_size[0], conv.padding[0]
    if not isinstance(padding, int) or padding >= kernel or kernel % 2 == 0:  # "same" is a string
        return None
    usual = (
        (conv.kernel_size, (kernel, kernel)),
        (conv.padding, (padding, padding)),
        (conv.stride, (1, 1)),
        (conv.dilation, (1, 1)),
        (conv.groups, 1),
        (conv.padding_mode, "zeros"),
        (conv.in_channels, given[0]),
        *((_pair(value), (wanted, wanted)) for value, wanted in _pooling(pool)),
        (pool.ceil_mode or pool.return_indices, False),
    )
    found = Convolution(*given, conv.out_channels, kernel, padding)
    fits = all(is_ == wanted for is_, wanted in usual) and conv.bias is not None
    return found if fits and found.outputs >= 2 and min(found.gives) >= 1 else None


def _pooling(pool: nn.MaxPool2d) -> tuple[tuple[int | tuple[int, ...], int], ...]:
    return (pool.kernel_size, 2), (pool.stride, 2), (pool.padding, 0), (pool.dilation, 1)


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else value


def _sizes(layers: Sequence[nn.Module], *, flat: bool) -> tuple[int, ...] | None:
    """Return the layer sizes where the layers are [Flatten,] Linear, ReLU, Linear, ...; images need the Flatten."""
    if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
        layers = layers[1:]
    elif not flat:
        return None
    wanted = [nn.ReLU if number % 2 else nn.Linear for number in range(len(layers))]
    if len(layers) % 2 == 0 or [type(layer) for layer in layers] != wanted:
        return None
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    sizes = (linear[0].in_features, *(layer.out_features for layer in linear))
    chained = all(layer.in_features == inputs for layer, inputs in zip(linear, sizes, strict=False))
    return sizes if chained and all(layer.bias is not None for layer in linear) else None
