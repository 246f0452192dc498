"""Buffers for many copies of one stack of layers, laid out so that every product reads along its rows.

Measured on the CPU, 64 nodes of 32 x 80 by 80 x 10: a product with a transposed second factor takes 200 to 320 us,
along the rows 80; softmax over the last axis of 10 takes 420 us, over the middle one 34.

    first of several layers   only transposed weights [inputs, outputs]: no error is propagated below it
    first after convolutions  only weights [outputs, inputs]: transposing takes longer than a transposed read
    every other layer         weights [outputs, inputs], and a transposed copy for the forward product
    last layer                logits and errors also as [classes, rows], where softmax is fast

Signals end in a column of ones, so a bias is a row of the transposed weights.  Rows are padded to a multiple of 16
floats, a cache line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import torch

from fedgossip.learning.many_nodes.convolutions import Convolutions, Shape, signal_floats, weight_rows

Tensors = list[torch.Tensor]


def padded(inputs: int) -> int:
    """Return the length of a row with its one, rounded up to a multiple of 16 floats: 64 bytes."""
    return math.ceil((inputs + 1) / 16) * 16


def wide(outputs: int) -> int:
    """Return the number of outputs of a workspace for a model with `outputs`; see `stacked_steps`."""
    return max(2, outputs)


def node_bytes(shape: Shape, rows: int, copies: int) -> int:
    """Return the memory of one node: `copies` stacks of weights and the signals of `rows` examples."""
    weights = sum(outputs * padded(inputs) for inputs, outputs in pairwise(shape.sizes))
    signals = sum(rows * (padded(inputs) + 2 * outputs) for inputs, outputs in pairwise(shape.sizes))
    signals += shape.sizes[0] * rows if shape.convolutions else 0  # the error below the linear layers
    return 4 * ((copies + 1) * weights + copies * shape.convolved + signals + signal_floats(shape.convolutions, rows))


def order_of(shape: Shape) -> torch.Tensor:
    """Return int64 [d]: the index in a stack of each element of a vector, the first linear layer's inputs by position.

    Vectors have these inputs by channel, as Flatten.  Reordering a vector twice per job is faster than reordering
    examples twice per step.
    """
    parts, begin = [], 0
    for layer in shape.convolutions:
        end = begin + layer.outputs * layer.inputs
        kernels = torch.arange(begin, end).view(layer.outputs, layer.channels, layer.kernel, layer.kernel)
        parts += [kernels.permute(2, 3, 1, 0).flatten(), torch.arange(end, end + layer.outputs)]
        begin = end + layer.outputs
    end = begin + shape.sizes[1] * shape.sizes[0]
    first = torch.arange(begin, end).view(shape.sizes[1], *shape.convolutions[-1].gives)
    return torch.cat([*parts, first.permute(0, 2, 3, 1).flatten(), torch.arange(end, shape.length)])


def only_turned(shape: Shape, layer: int) -> bool:
    """Return whether a linear layer stores only its transposed weights."""
    return layer == 0 and len(shape.sizes) > 2 and not shape.convolutions


def stack_of(shape: Shape, k: int, device: torch.device) -> Tensors:
    """Return a stack of k nodes, filled with zeros: a tensor [k, ...] per layer."""
    heights = zip(shape.convolutions, weight_rows(shape.convolutions), strict=True)
    kernels = [torch.zeros((k, height, layer.outputs), device=device) for layer, part in heights for height in part]
    sizes = (*shape.sizes[:-1], wide(shape.sizes[-1]))
    linear = [
        (padded(inputs), outputs) if only_turned(shape, layer) else (outputs, padded(inputs))
        for layer, (inputs, outputs) in enumerate(pairwise(sizes))
    ]
    return kernels + [torch.zeros((k, *size), device=device) for size in linear]


def numbers_of(shape: Shape) -> list[int]:
    """Return the number of elements of each tensor in a stack of linear layers up to the model's last, without rows of
    zeros after transposed weights.
    """
    sizes = (*shape.sizes[:-1], wide(shape.sizes[-1]))
    return [
        (inputs + 1 if only_turned(shape, layer) else padded(inputs)) * outputs
        for layer, (inputs, outputs) in enumerate(pairwise(sizes))
    ]


class Workspace:
    """k nodes with `rows` examples each; lists have one tensor per layer, all tensors [k, ...].

    stacks[0]: the weights; except for plain SGD stacks[1]: the gradients, stacks[2:]: the optimiser's slots.  In a
    stack the `kernels` of the convolutions come first.  `weights`: an existing stack for the first of the `copies`.
    """

    def __init__(
        self, shape: Shape, k: int, rows: int, copies: int, device: torch.device, weights: Tensors | None = None
    ) -> None:
        sizes = (*shape.sizes[:-1], wide(shape.sizes[-1]))
        shapes = list(pairwise(sizes))
        self.shape, self.sizes, self.last = shape, sizes, len(shapes) - 1

        def zeros(*size: int) -> torch.Tensor:
            return torch.zeros(size, device=device)

        given = [] if weights is None else [weights]
        self.stacks = given + [stack_of(shape, k, device) for _ in range(copies - len(given))]
        self.kernels = len(self.stacks[0]) - len(shapes)
        linear = self.stacks[0][self.kernels :]
        self.turned = [
            linear[layer] if self.only_turned(layer) or self.only_straight(layer) else zeros(k, padded(inputs), outputs)
            for layer, (inputs, outputs) in enumerate(shapes)
        ]
        self.inputs = [zeros(k, rows, padded(inputs)) for inputs, _ in shapes]
        for buffer, (inputs, _) in zip(self.inputs, shapes, strict=True):
            buffer[:, :, inputs] = 1
        self.z = [zeros(k, rows, outputs) for _, outputs in shapes]
        self.errors = [zeros(k, rows, outputs) for _, outputs in shapes[:-1]]
        self.logits, self.log_probabilities, self.top = (zeros(k, sizes[-1], rows) for _ in range(3))
        self.order = order_of(shape).to(device) if shape.convolutions else None
        self.back = None if self.order is None else torch.argsort(self.order)
        self.convolutions = Convolutions.from_layers(shape.convolutions, k, rows, zeros) if shape.convolutions else None
        self.risen = zeros(k, rows, sizes[0]) if shape.convolutions else None
        self._derive()
        self._narrow: dict[int, Workspace] = {k: self}

    def only_turned(self, layer: int) -> bool:
        return only_turned(self.shape, layer)

    def only_straight(self, layer: int) -> bool:
        """Return whether a layer's products read only its untransposed weights."""
        return layer == 0 and bool(self.shape.convolutions)

    def narrow(self, k: int) -> Workspace:
        """Return the first k nodes as views, created once."""
        found = self._narrow.get(k)
        if found is None:
            found = self._narrow[k] = object.__new__(Workspace)
            found.shape, found.sizes, found.last, found.kernels = self.shape, self.sizes, self.last, self.kernels
            found._narrow, found.order, found.back = self._narrow, self.order, self.back
            found.stacks = [[tensor[:k] for tensor in stack] for stack in self.stacks]
            found.turned, found.inputs, found.z, found.errors = (
                [tensor[:k] for tensor in tensors] for tensors in (self.turned, self.inputs, self.z, self.errors)
            )
            found.logits, found.log_probabilities, found.top = (
                tensor[:k] for tensor in (self.logits, self.log_probabilities, self.top)
            )
            found.convolutions = None if self.convolutions is None else self.convolutions.narrow(k)
            found.risen = None if self.risen is None else self.risen[:k]
            found._derive()
        return found

    def on(self, weights: Tensors) -> Workspace:
        """Return the same buffers for another stack of weights with the same number of nodes; for linear
        layers only.
        """
        assert self.convolutions is None, "kernels are joined to one stack"
        found = object.__new__(Workspace)
        vars(found).update(vars(self))
        found.stacks = [weights, *self.stacks[1:]]
        found.turned = [weights[n] if self.only_turned(n) else turned for n, turned in enumerate(self.turned)]
        found._narrow = {len(self.logits): found}
        found._derive()
        return found

    def _derive(self) -> None:
        """Create the views of a step once, as they cost more than small products."""
        self.weights = self.stacks[0][self.kernels :]
        self.refreshed = [
            (self.turned[layer], self.weights[layer].transpose(1, 2))
            for layer in range(self.last + 1)
            if not self.only_turned(layer) and not self.only_straight(layer)
        ]
        if self.only_straight(0):
            self.turned = [self.weights[0].transpose(1, 2), *self.turned[1:]]
        self.inner = [
            weights[:, :, :inputs] for weights, inputs in zip(self.weights, self.sizes, strict=False)
        ]  # used with untransposed weights
        self.hidden = [signal[:, :, :inputs] for signal, inputs in zip(self.inputs, self.sizes, strict=False)]
        # the two factors of a layer's gradient, and those of the error below it
        self.factors: list[tuple[torch.Tensor, torch.Tensor]] = []
        for layer in range(self.last + 1):
            if layer == self.last:
                self.factors.append((self.top, self.inputs[layer]))
            elif self.only_turned(layer):
                self.factors.append((self.inputs[0].transpose(1, 2), self.errors[0]))
            else:
                self.factors.append((self.errors[layer].transpose(1, 2), self.inputs[layer]))
        self.rising = [*self.errors, self.top.transpose(1, 2)]
        self.turned_logits = self.z[self.last].transpose(1, 2)
        first = self.inputs[0] if self.convolutions is None else self.convolutions.images
        self.first_rows = first.view(-1, first.shape[2])
        if self.convolutions is not None and self.risen is not None:
            self.convolutions.join(self.stacks[0][: self.kernels], self.hidden[0], self.risen)
        self.flat_log_probabilities, self.flat_top = self.log_probabilities.view(-1), self.top.view(-1)

    def load(self, stack: int, flat: torch.Tensor) -> None:
        """Copy vectors [k, d] into a stack."""
        if self.order is not None:
            flat = flat.index_select(1, self.order)
        for inside, outside in self._places(stack, flat):
            inside.copy_(outside)

    def store(self, stack: int, flat: torch.Tensor) -> None:
        """Copy a stack into vectors [k, d]."""
        ordered = flat if self.back is None else torch.empty_like(flat)
        for inside, outside in self._places(stack, ordered):
            outside.copy_(inside)
        if self.back is not None:
            torch.index_select(ordered, 1, self.back, out=flat)

    def store_layer(self, stack: int, layer: int, flat: torch.Tensor) -> int:
        """Copy one linear layer of a stack to vectors [k, d] and return its start; the first layer after convolutions
        is left to `store`, and its end is returned.
        """
        starts = list(accumulate((o * (i + 1) for i, o in pairwise(self.shape.sizes)), initial=self.shape.convolved))
        if self.order is not None and not layer:
            return starts[1]
        places = list(self._places(stack, flat))
        for inside, outside in places[len(places) - 2 * (self.last + 1 - layer) :][:2]:
            outside.copy_(inside)
        return starts[layer]

    def layers(self, stack: Sequence[torch.Tensor]) -> list[tuple[Tensors, bool]]:
        """Return the model's tensors in the vector's order, as views of a stack, and whether each has several axes."""
        found: list[tuple[Tensors, bool]] = []
        tensors = iter(stack)
        for heights in weight_rows(self.shape.convolutions):
            found.append(([next(tensors)[:, :height] for height in heights[:-1]], True))
            found.append(([next(tensors)[:, :1]], False))
        for layer, (inputs, outputs) in enumerate(pairwise(self.shape.sizes)):
            tensor = next(tensors)
            straight = tensor.transpose(1, 2) if self.only_turned(layer) else tensor
            found.append(([straight[:, :outputs, :inputs]], True))
            found.append(([straight[:, :outputs, inputs : inputs + 1]], False))
        return found

    def _places(self, stack: int, flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        begin, nodes, stride, tensors = 0, len(flat), flat.stride(0), iter(self.stacks[stack])
        for conv, heights in zip(self.shape.convolutions, weight_rows(self.shape.convolutions), strict=True):
            for height in [*heights[:-1], 1]:  # behind the bias is a row of zeros
                end = begin + height * conv.outputs
                yield next(tensors)[:, :height], flat[:, begin:end].view(nodes, height, conv.outputs)
                begin = end
        for layer, (inputs, outputs) in enumerate(pairwise(self.shape.sizes)):
            tensor = next(tensors)
            straight = tensor.transpose(1, 2) if self.only_turned(layer) else tensor
            bias = begin + inputs * outputs
            # as_strided counts from the start of the storage, and `flat` may be some rows of it
            inside = flat.as_strided((nodes, outputs, inputs), (stride, inputs, 1), flat.storage_offset() + begin)
            yield straight[:, :outputs, :inputs], inside
            yield straight[:, :outputs, inputs], flat[:, bias : bias + outputs]
            begin = bias + outputs
