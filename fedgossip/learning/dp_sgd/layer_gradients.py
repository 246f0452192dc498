"""Per-example gradients of known layers, by formulas: from a layer's input a, and the loss gradient e at its output.

    Linear, an example once    gradient of W = e_i a_i'              two factors, and no gradient is stored
                               squared length |e_i|^2 (|a_i|^2 + 1)  with a bias, whose gradient is e_i
                               sum of c_i e_i a_i' = (c e)' a        one product
    Linear, an example often   sum_t e_it a_it'
    Conv2d                     the same, t a position in the image, a_it its input window, channels innermost
    GroupNorm, LayerNorm       sum_t e_it times the normalised a_it
    Embedding                  e_it added to the row of character t

Sources: Goodfellow, Efficient per-example gradient computations, 2015 (the lengths); Li, Tramer, Liang and Hashimoto,
Large language models can be strong differentially private learners, ICLR 2022 (sums without the gradients); Rochette,
Manoel and Tramel, Efficient per-example gradient computations in convolutional neural networks, 2019.

One pass over a batch suffices: it stores each layer's input, and propagates gradients to the layers' outputs only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from fedgossip.base.errors import ConfigError
from fedgossip.data.objectives import Objective
from fedgossip.learning.one_model.losses import Criterion

Tensor = torch.Tensor

BLOCK = 4096
"""Number of squares per float32 sum: its error is below BLOCK * 2^-24 of the sum, in any order."""

WINDOWS = 1 << 21
"""Number of elements of unfolded image windows processed at a time: 8 MiB."""

ROWS = 16
"""Number of gradients computed in float64 at a time."""

LONGEST = 2.0**50
"""Maximum length of a factor: with a clip of 1e-6 to 1e6 the weighted factor stays below 2^90, and no float32
overflows."""

PART = 1 << 16
"""Number of elements of a sum processed at a time: 512 KiB, which stay in a second-level cache until they are used."""


class LayerGradients(Protocol):
    """The gradients of b examples in one layer."""

    @property
    def elements(self) -> int:
        """Return the number of stored elements per example's gradient."""

    def squares(self) -> Tensor:
        """Return the squared lengths [b], float64: at most 2^-12 too small, inf on float32 overflow."""

    def without(self, bad: Tensor) -> LayerGradients:
        """Return these gradients with zeros for the marked examples [b]."""

    def sums(self, weights: Tensor) -> Iterator[Tensor]:
        """Yield the sum of the gradients, each times its weight [b], parameter after parameter, float64, flat.  A large
        sum is yielded in the parts of `parts`; use each part before requesting the next.
        """

    def single_sums(self, weights: Tensor, into: Sequence[Tensor]) -> Iterator[Tensor]:
        """Write the result of `sums` into a float32 tensor of each parameter, and yield their parts, flat, in the same
        order.

        An element's error is at most b / (2^24 - b) of its terms' sum of magnitudes, and 2^-70 outside float32's range.
        """

    def each(self) -> list[Tensor]:
        """Return the gradients, float32 [b, *shape] per parameter."""


class Factors(NamedTuple):
    """Factors of a linear layer that processes each example once: e [b, outputs] and a [b, inputs], float32; whether it
    has a bias.
    """

    errors: Tensor
    inputs: Tensor
    bias: bool

    @property
    def elements(self) -> int:
        return 0

    def squares(self) -> Tensor:
        """As `LayerGradients.squares`; without a bias also inf if a factor is longer than LONGEST, as it may exceed the
        gradient.
        """
        e, a = (torch.linalg.vector_norm(one, dim=1, dtype=torch.float64) for one in (self.errors, self.inputs))
        if self.bias:
            found: Tensor = e.square_().mul_(a.square_().add_(1))
            return found
        product: Tensor = (e * a).square_()
        return product.masked_fill_(torch.maximum(e, a) > LONGEST, math.inf)

    def without(self, bad: Tensor) -> Factors:
        return Factors(self.errors.masked_fill(bad[:, None], 0), self.inputs.masked_fill(bad[:, None], 0), self.bias)

    def sums(self, weights: Tensor) -> Iterator[Tensor]:
        errors, inputs = self.errors.double() * weights[:, None], self.inputs.double()
        lines = lines_of_part((errors.shape[1], inputs.shape[1]))
        room = errors.new_empty(min(lines, errors.shape[1]), inputs.shape[1])
        for some in errors.T.split(lines):  # type: ignore[no-untyped-call]
            yield torch.mm(some, inputs, out=room[: some.shape[0]]).view(-1)
        if self.bias:
            yield from parts(errors.sum(0))

    def single_sums(self, weights: Tensor, into: Sequence[Tensor]) -> Iterator[Tensor]:
        errors = self.errors * weights.float()[:, None]
        turned, lines = errors.T, lines_of_part(into[0].shape)
        for start in range(0, turned.shape[0], lines):
            stop = start + lines
            yield torch.mm(turned[start:stop], self.inputs, out=into[0][start:stop]).view(-1)
        if self.bias:
            yield torch.sum(errors, 0, out=into[1])

    def each(self) -> list[Tensor]:
        found = torch.einsum("bo,bi->boi", self.errors, self.inputs).float()
        return [found, self.errors.float()] if self.bias else [found]


class Apart(NamedTuple):
    """The gradients themselves, float32 [b, ...] per parameter, in memory order."""

    laid: Sequence[Tensor]
    orders: Sequence[Sequence[int] | None]
    """Order of the axes after the first, for parameters with another memory order."""

    @property
    def elements(self) -> int:
        return sum(one[0].numel() for one in self.laid)

    def squares(self) -> Tensor:
        return torch.stack([squares(one.flatten(1)) for one in self.laid]).sum(0)

    def without(self, bad: Tensor) -> Apart:
        return Apart([one.masked_fill(bad.view(-1, *[1] * (one.dim() - 1)), 0) for one in self.laid], self.orders)

    def sums(self, weights: Tensor) -> Iterator[Tensor]:
        for laid, order in zip(self.laid, self.orders, strict=True):
            flat = torch.zeros(laid[0].numel(), dtype=torch.float64, device=laid.device)
            for part, some in zip(laid.flatten(1).split(ROWS), weights.split(ROWS), strict=True):  # type: ignore[no-untyped-call]
                flat.addmv_(part.double().T, some)
            shaped = flat.view(laid.shape[1:])
            yield from parts(shaped if order is None else shaped.permute(*order).contiguous())

    def single_sums(self, weights: Tensor, into: Sequence[Tensor]) -> Iterator[Tensor]:
        places = (part for whole in into for part in parts(whole))
        for part, place in zip(self.sums(weights), places, strict=True):
            yield place.copy_(part)

    def each(self) -> list[Tensor]:
        both = zip(self.laid, self.orders, strict=True)
        return [one if order is None else one.permute(0, *(1 + axis for axis in order)) for one, order in both]


def parts(whole: Tensor) -> Iterator[Tensor]:
    """Yield a contiguous tensor, flat, in parts of whole lines: about PART elements, or one line."""
    whole = whole if whole.dim() else whole.view(1)
    lines = lines_of_part(whole.shape)
    yield from (part.view(-1) for part in whole.split(lines))  # type: ignore[no-untyped-call]


def lines_of_part(shape: Sequence[int]) -> int:
    """Return the number of lines, along the first axis, of a part."""
    return max(1, PART * shape[0] // max(1, math.prod(shape)))


def squares(flat: Tensor) -> Tensor:
    """Return the squared lengths [b] of rows [b, n], as `LayerGradients.squares`."""
    many = flat.shape[1] // BLOCK
    blocks = torch.linalg.vector_norm(flat[:, : many * BLOCK].reshape(len(flat), many, BLOCK), dim=2).double()
    rest = torch.linalg.vector_norm(flat[:, many * BLOCK :], dim=1).double()
    found: Tensor = blocks.square().sum(1) + rest.square()
    return found


# --- layer by layer ---------------------------------------------------------------------------------------------------


def is_known(layer: nn.Module) -> bool:
    """Return whether `gradients_of` has a formula for the layer in its configuration."""
    match layer:
        case nn.Conv2d():
            plain = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
            return type(layer) is nn.Conv2d and plain
        case nn.Embedding():
            usual = layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
            return type(layer) is nn.Embedding and usual
    return type(layer) in FORMULAS


def gradients_of(layer: nn.Module, taken: Tensor, errors: Tensor) -> LayerGradients:
    """Return the gradients of a known layer's parameters, weight before bias; axis 0 is the b examples."""
    return FORMULAS[type(layer)](layer, taken, errors)


def _linear(layer: nn.Linear, a: Tensor, e: Tensor) -> LayerGradients:
    bias = layer.bias is not None
    if a.dim() == 2:
        return Factors(e.float(), a.float(), bias)
    a, e = a.flatten(1, -2), e.flatten(1, -2)
    return _separate(bias, torch.bmm(e.transpose(1, 2), a), e.sum(1))


def _convolution(layer: nn.Conv2d, a: Tensor, e: Tensor) -> LayerGradients:
    assert not isinstance(layer.padding, str)
    (down, across), (height, width) = layer.padding, layer.kernel_size
    e = e.permute(0, 2, 3, 1)
    rows, high, wide, outputs = e.shape
    places, window = high * wide, height * width * layer.in_channels
    e = e.reshape(rows, places, outputs)
    images = functional.pad(a.permute(0, 2, 3, 1), (0, 0, across, across, down, down)).contiguous()
    example, line, place, channel = images.stride()
    size = (rows, high, wide, height, width, layer.in_channels)
    steps = (layer.stride[0] * line, layer.stride[1] * place, layer.dilation[0] * line, layer.dilation[1] * place)
    windows = images.as_strided(size, (example, *steps, channel))
    found = e.new_empty(rows, outputs, window)
    many = max(1, WINDOWS // max(1, places * window))
    for start in range(0, rows, many):
        part = slice(start, start + many)
        seen = windows[part].reshape(-1, places, window)
        torch.bmm(e[part].transpose(1, 2), seen, out=found[part])
    laid = found.view(rows, outputs, height, width, layer.in_channels)
    return _separate(layer.bias is not None, laid, e.sum(1), (0, 3, 1, 2))


def _group_norm(layer: nn.GroupNorm, a: Tensor, e: Tensor) -> LayerGradients:
    normalised = functional.group_norm(a, layer.num_groups, eps=layer.eps)
    return _separate(True, (e * normalised).flatten(2).sum(2), e.flatten(2).sum(2))


def _layer_norm(layer: nn.LayerNorm, a: Tensor, e: Tensor) -> LayerGradients:
    normalised = functional.layer_norm(a, layer.normalized_shape, eps=layer.eps)
    shape = (len(a), -1, *layer.normalized_shape)
    return _separate(layer.bias is not None, (e * normalised).reshape(shape).sum(1), e.reshape(shape).sum(1))


def _embedding(layer: nn.Embedding, a: Tensor, e: Tensor) -> LayerGradients:
    rows, vocabulary, width = len(a), layer.num_embeddings, layer.embedding_dim
    found = e.new_zeros(rows * vocabulary, width)
    first = torch.arange(rows, device=a.device).mul_(vocabulary)
    found.index_add_(0, (a.reshape(rows, -1) + first[:, None]).flatten(), e.reshape(-1, width))
    found = found.view(rows, vocabulary, width)
    if layer.padding_idx is not None:
        found[:, layer.padding_idx] = 0
    return _separate(False, found, found)


def _separate(has_bias: bool, weight: Tensor, bias: Tensor, order: Sequence[int] | None = None) -> Apart:
    return Apart([weight, bias], [order, None]) if has_bias else Apart([weight], [order])


FORMULAS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], LayerGradients]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
}


class Call(NamedTuple):
    """A call of a layer: the layer's index, its input, and the graph edge of the gradient at its output."""

    place: int
    taken: torch.Tensor
    given: GradientEdge


class Layered:
    """A module and its layers as found by `find_layers`; one `PerExample`."""

    def __init__(self, module: nn.Module, layers: Sequence[nn.Module], criterion: Criterion | None = None) -> None:
        self._module, self._layers = module, layers
        self.criterion = criterion or Criterion(Objective())
        self._places = {layer: place for place, layer in enumerate(layers)}
        self.parameters = [list(layer.parameters(recurse=False)) for layer in layers]
        """The parameters of each layer."""
        self.elements = 0
        """Stored gradient numbers per example in the last call; layers with factors count as 0."""

    def compute_by_layer(self, x: torch.Tensor, y: torch.Tensor) -> list[LayerGradients]:
        """Return the gradients of b >= 1 examples layer by layer; .grad stays unchanged.

        Raises ConfigError for a layer whose input is not one tensor with an example per row.
        """
        calls: list[Call] = []
        if self._is_chain():
            outputs = self._chained(x, calls)
        else:
            with self._noting(calls, len(x)):
                outputs = self._module(x)
        loss = self.criterion.summed(outputs, y)
        given = [call.given for call in calls]
        errors = torch.autograd.grad(loss, given, allow_unused=True) if given else ()
        found: list[LayerGradients | None] = [None] * len(self._layers)
        with torch.no_grad():
            for call, error in zip(calls, errors, strict=True):
                if error is not None:
                    before, one = found[call.place], gradients_of(self._layers[call.place], call.taken, error)
                    found[call.place] = one if before is None else _together(before, one)
            both = zip(self._layers, found, strict=True)
            whole = [_nothing(layer, len(x)) if one is None else one for layer, one in both]
        self.elements = sum(one.elements for one in whole)
        return whole

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """See `PerExample`."""
        return [one for layer in self.compute_by_layer(x, y) for one in layer.each()]

    def _is_chain(self) -> bool:
        """Return whether the layers form a chain, which needs no (slow) hooks."""
        module = self._module
        hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        return type(module) is nn.Sequential and not hooked and self._places.keys() <= set(module)

    def _chained(self, x: torch.Tensor, calls: list[Call]) -> torch.Tensor:
        h = x
        for part in self._module.children():
            if (place := self._places.get(part)) is None:
                h = part(h)
            else:
                taken = _innermost(h) if isinstance(part, nn.Conv2d) else h
                h = part(taken)
                calls.append(self._noted(place, (taken,), h, len(x)))
        return h

    @contextmanager
    def _noting(self, calls: list[Call], rows: int) -> Iterator[None]:
        def note(layer: nn.Module, taken: tuple[Any, ...], given: Any) -> None:
            calls.append(self._noted(self._places[layer], taken, given, rows))

        def lay(_: nn.Module, taken: tuple[Any, ...]) -> Any:
            return (_innermost(taken[0]), *taken[1:]) if taken else None

        hooks = [layer.register_forward_hook(note) for layer in self._layers]
        hooks += [layer.register_forward_pre_hook(lay) for layer in self._layers if isinstance(layer, nn.Conv2d)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _noted(self, place: int, taken: tuple[Any, ...], given: torch.Tensor, rows: int) -> Call:
        """Return a call.  Raises ConfigError for an input without an example per row."""
        if len(taken) != 1 or len(taken[0]) != rows or given.dim() < 2:
            arguments = f"a tensor of shape {tuple(taken[0].shape)}" if len(taken) == 1 else f"{len(taken)} arguments"
            raise ConfigError(
                f"a {type(self._layers[place]).__name__} takes {arguments} for {rows} examples: whose gradient is "
                "whose cannot be known",
                "Give each layer one tensor whose first axis is that of the batch, by its place.",
            )
        # the edge, not the tensor: an activation may work in place
        return Call(place, taken[0].detach(), get_gradient_edge(given))


def find_layers(module: nn.Module) -> list[nn.Module] | None:
    """Return the trained layers of a module, in its parameters' order; None unless each trained parameter belongs to a
    fully trained layer with a formula.
    """
    layers = [part for part in module.modules() if any(p.requires_grad for p in part.parameters(recurse=False))]
    theirs = [parameter for layer in layers for parameter in layer.parameters(recurse=False)]
    once = len(theirs) == len({id(parameter) for parameter in theirs})
    all_trained = all(parameter.requires_grad for parameter in theirs)
    return layers if layers and once and all_trained and all(map(is_known, layers)) else None


def _innermost(images: torch.Tensor) -> torch.Tensor:
    """Store images on a CPU as [b, h, w, c]; with one channel torch needs explicit strides."""
    if images.device.type != "cpu" or images.dim() != 4:
        return images
    if images.shape[1] == 1 and not images.requires_grad and images.is_contiguous():
        height, width = images.shape[2:]
        return images.as_strided(images.shape, (height * width, 1, width, 1))
    return images.contiguous(memory_format=torch.channels_last)


def _together(one: LayerGradients, other: LayerGradients) -> LayerGradients:
    made = [a + b for a, b in zip(one.each(), other.each(), strict=True)]
    return Apart(made, [None] * len(made))


def _nothing(layer: nn.Module, rows: int) -> LayerGradients:
    made = [parameter.new_zeros(rows, *parameter.shape) for parameter in layer.parameters(recurse=False)]
    return Apart(made, [None] * len(made))
