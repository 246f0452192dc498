"""The convolutions of many nodes' stacks together: hand-written, with every large operation as one batched product.

A position in an image is a row of its channels; rows are ordered by height, example, width: [h, b, w, channels].  One
position down is therefore b * w rows further, and a kernel row i reads a slice of one matrix:

    lines       line[h, b, w] = the `kernel` positions from w on, concatenated: an image `kernel` times, not kernel^2
    forward     z = sum_i lines[i:] W_i                   W_i [kernel * channels, outputs]: row i of the kernels
    pooling     left or right, then top or bottom; the first if equal, as in torch; then the bias, then ReLU
    backward    lines' error = sum_i e[-i:] W_i'          summed over the positions in each line
    update      W_i += lines[i:]' e

The convolution that reads the data has few channels, too narrow for such products.  There one row is a whole window of
the pooling: the (kernel + 1)^2 positions of its four results, times a matrix that contains the kernel four times,
shifted.  For 3x3 this takes 16/9 of the operations, in products four times as wide, from a quarter of the memory.

A node's bits do not depend on its block (`stacked_engine`).  Sums over examples and positions are products too; a row
of zeros follows the row of ones, as a product with a side of length 1 would round differently.  Measured on one core
with AVX-512: 110 to 130 GFLOP/s for all these products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedgossip.learning.one_model.flat import Layout

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
Zeros = Callable[..., Tensor]

_through_relu = torch.ops.aten.threshold_backward.grad_input  # error where the second is positive, else 0


def lined(length: int) -> int:
    """Return a length rounded up to a multiple of 16 floats: 64 bytes."""
    return math.ceil(length / 16) * 16


def weight_rows(layers: Sequence[Convolution]) -> list[list[int]]:
    """Return per convolution the rows of its weights, separate tensors [k, rows, outputs], which products write
    fastest.

    The first convolution's kernels are whole, others a row each, channels innermost; then the bias and a row of zeros.
    """
    return [
        [layer.inputs, 2] if number == 0 else [layer.kernel * layer.channels] * layer.kernel + [2]
        for number, layer in enumerate(layers)
    ]


def picture(layer: Convolution) -> tuple[int, int]:
    """Return the height and width of the part of the padded image that the convolution reads."""
    return 2 * layer.half_height + layer.kernel - 1, 2 * layer.half_width + layer.kernel - 1


def signal_floats(layers: Sequence[Convolution], rows: int) -> int:
    """Return the number of elements of a node's `rows` examples in the forward and backward pass of the
    convolutions.
    """
    found = 0
    for number, layer in enumerate(layers):
        best = layer.half_height * layer.half_width
        if number == 0:
            found += best * (layer.kernel + 1) ** 2 * layer.channels
        else:
            height, width = picture(layer)
            line = layer.kernel * layer.channels
            found += height * (width * layer.channels + 2 * layer.half_width * (2 * line + layer.outputs))
        found += (4 + 2 + 2) * best * layer.outputs  # results, the better halves, the best, and its error
    return rows * found


class Pool:
    """Pooling, bias and ReLU between two layers; tensors [k, h, rows, w, channels], views into those of the layers."""

    def __init__(self, results: Pair, errors: Pair, halves: Tensor, down: Pair, best: Tensor, error: Tensor) -> None:
        """`results`, `errors`: left and right of each pair, errors may share the results' memory; `down`: above and
        below in `halves`.
        """
        (self.left, self.right), (self.top, self.bottom), self.halves = results, down, halves
        self.left_error, self.right_error = errors
        self.best, self.error = best, error
        self.best_rows, self.error_rows = best.flatten(1, 3), error.flatten(1, 3)

    def join(self, bias: Tensor, seen: tuple[int, int], signal: Tensor, risen: Tensor) -> None:
        """Set the buffer of the bias [k, channels], the height and width that the next layer reads, its buffer, and the
        source of the error.
        """
        height, width = seen
        self._bias, self._seen = bias[:, None], self.best[:, :height, :, :width]
        self._signal, self._risen = signal, risen

    def forward(self) -> None:
        torch.maximum(self.left, self.right, out=self.halves)
        torch.maximum(self.top, self.bottom, out=self.best)
        self.best_rows.add_(self._bias)  # keeps the order, so it may follow the maximum, for a quarter of the work
        torch.clamp(self._seen, min=0, out=self._signal)

    def backward(self) -> None:
        """Fill `error` and the errors of the pooled results; all results are overwritten."""
        _through_relu(self._risen, self.best, 0, grad_input=self.error)
        self.top.ge_(self.bottom).mul_(self.error)
        torch.sub(self.error, self.top, out=self.bottom)
        torch.ge(self.left, self.right, out=self.left_error).mul_(self.halves)
        torch.sub(self.halves, self.left_error, out=self.right_error)


class Windows:
    """The convolution that reads the data, for k nodes; all `tensors` are [k, ...].

    Images are stored as four, of even and odd rows and columns: a window's positions in each are adjacent.
    """

    def __init__(self, layer: Convolution, rows: int, tensors: Sequence[Tensor]) -> None:
        self.layer, self.rows, self.tensors = layer, rows, tensors
        self.images, places, self._spread, self._gathered, z, halves, best, error, self._marks = tensors
        (height, width), (k, h, _, w, c) = picture(layer), best.shape
        reach, one = (layer.kernel + 1) // 2, height * width // 4
        size = (k, reach, 2, reach, 2, layer.channels, h, rows, w)
        image, example = self.images.stride()[:2]
        strides = (image, width // 2, 2 * one, 1, one, 4 * one, width // 2, example, 1)
        self._filled = places.view(size), self.images.as_strided(size, strides)
        self._places, self._turned_places, self._z = places, places.transpose(1, 2), z
        four = z.view(*best.shape[:4], 4 * c)
        pair, down = (four[..., : 2 * c], four[..., 2 * c :]), (halves[..., :c], halves[..., c:])
        self.pool = Pool(pair, pair, halves, down, best, error)

    @staticmethod
    def buffers(layer: Convolution, k: int, rows: int, zeros: Zeros) -> list[Tensor]:
        (height, width), c = picture(layer), layer.outputs
        grid = (k, layer.half_height, rows, layer.half_width)
        windows, places = math.prod(grid[1:]), (layer.kernel + 1) ** 2 * layer.channels
        marks = zeros(k, 2, windows)
        marks[:, 0] = 1
        return [
            zeros(k, rows, layer.channels * height * width),
            zeros(k, places, windows),
            zeros(k, places, 4 * c),
            zeros(k, places, 4 * c),
            zeros(k, windows, 4 * c),
            zeros(*grid, 2 * c),
            zeros(*grid, c),
            zeros(*grid, c),
            marks,
        ]

    def take(self, weights: Sequence[Tensor]) -> None:
        """Use these weights from now on."""
        shifted = self._shifted(self._spread)
        self._kernels = shifted, weights[0].view(len(shifted), 1, 1, *shifted.shape[3:]).expand_as(shifted)
        shifted = self._shifted(self._gathered)
        self._quarters = [shifted[:, across, down] for across in (0, 1) for down in (0, 1)]

    def _shifted(self, spread: Tensor) -> Tensor:
        """Return the four kernels in [places, 4 * outputs] as [k, across, down, kernel, kernel * channels, outputs]."""
        layer, c = self.layer, self.layer.outputs
        below = (layer.kernel + 1) * layer.channels * 4 * c  # from a place to the one below it
        size = (len(spread), 2, 2, layer.kernel, layer.kernel * layer.channels, c)
        return spread.as_strided(size, (spread.stride(0), layer.channels * 4 * c + 2 * c, below + c, below, 4 * c, 1))

    def forward(self) -> None:
        for wanted, seen in (self._filled, self._kernels):
            wanted.copy_(seen)
        torch.bmm(self._turned_places, self._spread, out=self._z)
        self.pool.forward()

    def backward(self, update: Sequence[Tensor], keep: int) -> None:
        """Set `update`, like the weights, to keep * update + gradient; `keep` is 0 or 1."""
        self.pool.backward()
        kernels, bias = update
        bias.baddbmm_(self._marks, self.pool.error_rows, beta=keep)
        torch.bmm(self._places, self._z, out=self._gathered)
        kernels = kernels.view(self._quarters[0].shape)
        if not keep:
            kernels.zero_()
        for quarter in self._quarters:
            kernels.add_(quarter)


class Lines:
    """A convolution that reads another one's result, for k nodes; `tensors` are all [k, ...]."""

    def __init__(self, layer: Convolution, rows: int, tensors: Sequence[Tensor]) -> None:
        self.layer, self.rows, self.tensors = layer, rows, tensors
        wide, lines, self._z, errors, self._fallen, halves, best, error, self._marks = tensors
        k, kernel, padding, channels = len(wide), layer.kernel, layer.padding, layer.channels
        (seen_height, seen_width), line = _measure_visible(layer), kernel * channels
        height, width = 2 * layer.half_height, 2 * layer.half_width
        across = rows * width  # rows between a place and the one below it
        size = (k, seen_height, rows, width, line)
        self._filled = (
            lines[:, padding : padding + seen_height, :, :, :line],
            wide.as_strided(size, (*wide.stride()[:3], channels, 1)),
        )
        self.signal = wide[:, :, :, padding : padding + seen_width]
        flat = lines.view(k, -1, lines.shape[-1])[:, :, :line]
        self._parts = [flat[:, i * across : (i + height) * across] for i in range(kernel)]
        self._turned_parts = [part.transpose(1, 2) for part in self._parts]
        above = kernel - 1 - padding  # rows of zeros
        inside = errors[:, above : above + height]
        self._errors = inside.flatten(1, 3)
        flat = errors.flatten(1, 3)
        self._rising = [flat[:, i * across : (i + seen_height) * across] for i in reversed(range(kernel))]
        self._fallen_rows = self._fallen.flatten(1, 3)
        results, risen = (_pair(one, 3) for one in (self._z.view_as(inside), inside))
        self.pool = Pool(results, risen, halves, _pair(halves, 1), best, error)

    @staticmethod
    def buffers(layer: Convolution, k: int, rows: int, zeros: Zeros) -> list[Tensor]:
        (seen_height, _), (height, width) = _measure_visible(layer), picture(layer)
        half, across, c = layer.half_height, 2 * layer.half_width, layer.outputs
        line = layer.kernel * layer.channels
        marks = zeros(k, 2, half * rows * layer.half_width)
        marks[:, 0] = 1
        return [
            zeros(k, seen_height, rows, width, layer.channels),
            zeros(k, height, rows, across, lined(line)),
            zeros(k, 2 * half * rows * across, c),
            zeros(k, seen_height + layer.kernel - 1, rows, across, c),
            zeros(k, seen_height, rows, across, line),
            zeros(k, 2 * half, rows, layer.half_width, c),
            zeros(k, half, rows, layer.half_width, c),
            zeros(k, half, rows, layer.half_width, c),
            marks,
        ]

    def take(self, weights: Sequence[Tensor]) -> None:
        """Use these weights from now on."""
        self._kernels = weights[:-1]
        self._turned_kernels = [kernel.transpose(1, 2) for kernel in self._kernels]

    def feeds_back(self, error: Tensor) -> None:
        """Set the buffer of the error below: [k, height, rows, width, channels], zero outside this layer's view."""
        layer, (seen_height, seen_width), width = self.layer, _measure_visible(self.layer), 2 * self.layer.half_width
        error = error[:, :seen_height]
        self._below: list[tuple[Tensor, Tensor]] = []
        order = sorted(range(layer.kernel), key=lambda j: j != layer.padding)  # the one that meets every place first
        for j in order:
            shift = j - layer.padding  # from a line's place to its j-th
            first, last = max(0, -shift), min(width, seen_width - shift)
            part = self._fallen[:, :, :, first:last, j * layer.channels : (j + 1) * layer.channels]
            self._below.append((error[:, :, :, first + shift : last + shift], part))
        self._bare = error[:, :, :, width:seen_width]

    def forward(self) -> None:
        wanted, seen = self._filled
        wanted.copy_(seen)
        torch.bmm(self._parts[0], self._kernels[0], out=self._z)
        for part, kernel in zip(self._parts[1:], self._kernels[1:], strict=True):
            self._z.baddbmm_(part, kernel)
        self.pool.forward()

    def backward(self, update: Sequence[Tensor], keep: int) -> None:
        """Set `update`, like the weights, to keep * update + gradient, `keep` 0 or 1; fill the error below first."""
        self.pool.backward()
        torch.bmm(self._rising[0], self._turned_kernels[0], out=self._fallen_rows)
        for error, kernel in zip(self._rising[1:], self._turned_kernels[1:], strict=True):
            self._fallen_rows.baddbmm_(error, kernel)
        (below, part), *others = self._below
        below.copy_(part)
        if self._bare.shape[3]:
            self._bare.zero_()
        for below, part in others:
            below.add_(part)
        *kernels, bias = update
        bias.baddbmm_(self._marks, self.pool.error_rows, beta=keep)
        for kernel, part in zip(kernels, self._turned_parts, strict=True):
            kernel.baddbmm_(part, self._errors, beta=keep)


def _pair(grid: Tensor, axis: int) -> Pair:
    even, odd = grid.view(*grid.shape[:axis], -1, 2, *grid.shape[axis + 1 :]).unbind(axis + 1)
    return even, odd


def _measure_visible(layer: Convolution) -> tuple[int, int]:
    height, width = picture(layer)
    return min(layer.height, height - layer.padding), min(layer.width, width - layer.padding)


class Convolutions:
    """All convolutions of k nodes' stacks, with `rows` examples each, in buffers allocated once."""

    def __init__(self, layers: Sequence[Convolution], parts: Sequence[Windows | Lines]) -> None:
        self.layers, self.parts = layers, parts
        assert isinstance(parts[0], Windows)
        self.images = parts[0].images

    @classmethod
    def from_layers(cls, layers: Sequence[Convolution], k: int, rows: int, zeros: Zeros) -> Convolutions:
        kinds = [Lines if number else Windows for number in range(len(layers))]
        return cls(
            layers,
            [kind(layer, rows, kind.buffers(layer, k, rows, zeros)) for kind, layer in zip(kinds, layers, strict=True)],
        )

    def narrow(self, k: int) -> Convolutions:
        """Return the first k nodes, as views."""
        return Convolutions(
            self.layers, [type(part)(part.layer, part.rows, [t[:k] for t in part.tensors]) for part in self.parts]
        )

    def join(self, weights: Sequence[Tensor], signal: Tensor, error: Tensor) -> None:
        """Use these weights; write the output to `signal` [k, rows, inputs] of the first linear layer; read its `error`
        of the same shape.
        """
        for number, (part, own) in enumerate(zip(self.parts, self._group_by_layer(weights), strict=True)):
            part.take(own)
            pool, bias = part.pool, own[-1][:, 0]
            if number + 1 == len(self.parts):
                pool.join(bias, part.layer.gives[1:], self._flattened(signal), self._flattened(error))
                return
            above = self.parts[number + 1]
            assert isinstance(above, Lines)
            above.feeds_back(pool.error)
            pool.join(bias, _measure_visible(above.layer), above.signal, pool.error)

    def forward(self) -> None:
        """Fill the signal of the first linear layer from the examples in `images`."""
        for part in self.parts:
            part.forward()

    def backward(self, updates: Sequence[Tensor], keep: int) -> None:
        """Set `updates`, like the weights, to keep * updates + gradient; `keep` is 0 or 1."""
        for part, update in zip(reversed(self.parts), reversed(self._group_by_layer(updates)), strict=True):
            part.backward(update, keep)

    def _group_by_layer(self, tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        found, begin = [], 0
        for rows in weight_rows(self.layers):
            found.append(tensors[begin : begin + len(rows)])
            begin += len(rows)
        return found

    def _flattened(self, signal: Tensor) -> Tensor:
        """Return flat examples [k, rows, height * width * outputs] as a view by height, row, width, output."""
        outputs, height, width = self.layers[-1].gives
        return signal.view(*signal.shape[:2], height, width, outputs).transpose(1, 2)


def pictures(examples: npt.NDArray[Any], layer: Convolution) -> Tensor:
    """Return float32 [m, channels, height, width] as padded rows for `Windows.images`."""
    height, width = picture(layer)
    padded = np.zeros((len(examples), layer.channels, height, width), np.float32)
    down, across = _measure_visible(layer)
    inside = padded[:, :, layer.padding : layer.padding + down, layer.padding : layer.padding + across]
    inside[:] = examples.reshape(-1, layer.channels, layer.height, layer.width)[:, :, :down, :across]
    fourfold = padded.reshape(-1, layer.channels, height // 2, 2, width // 2, 2).transpose(0, 1, 3, 5, 2, 4)
    return torch.from_numpy(np.ascontiguousarray(fourfold).reshape(len(examples), -1))


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution with ReLU and 2x2 pooling after it, and the shape of one example.

    It maps [channels, height, width] to [outputs, half_height, half_width]; an odd last row or column is not computed.
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
        """Number of elements of a vector that belong to convolutions; they come first."""
        return sum(layer.outputs * (layer.inputs + 1) for layer in self.convolutions)

    @property
    def length(self) -> int:
        return self.convolved + sum(outputs * (inputs + 1) for inputs, outputs in pairwise(self.sizes))


def shape_of(module: nn.Module, layout: Layout, example: Sequence[int]) -> Shape | None:
    """Return the shape of a module [Conv2d, ReLU, MaxPool2d(2)]* [Flatten] Linear (ReLU Linear)* that reads `example`s.

    Convolutions are square, odd, of stride 1, with zero padding or none; Unflatten may come first.  None for other
    modules, a hidden layer of one unit or channel, a layer without bias, and frozen or personal parameters.
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
    """Return [Conv2d, ReLU, MaxPool2d] as a `Convolution` for an example of shape `given`, if supported."""
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
        *((_pair_of(value), (wanted, wanted)) for value, wanted in _pooling(pool)),
        (pool.ceil_mode or pool.return_indices, False),
    )
    found = Convolution(*given, conv.out_channels, kernel, padding)
    fits = all(is_ == wanted for is_, wanted in usual) and conv.bias is not None
    return found if fits and found.outputs >= 2 and min(found.gives) >= 1 else None


def _pooling(pool: nn.MaxPool2d) -> tuple[tuple[int | tuple[int, ...], int], ...]:
    return (pool.kernel_size, 2), (pool.stride, 2), (pool.padding, 0), (pool.dilation, 1)


def _pair_of(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else value


def _sizes(layers: Sequence[nn.Module], *, flat: bool) -> tuple[int, ...] | None:
    """Return the layer sizes of [Flatten,] Linear, ReLU, Linear, ...; images need the Flatten."""
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
