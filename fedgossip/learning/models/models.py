"""The models that have a name, as modules of torch: the same first weights for the same seed.

Their names, sizes and tensors stand in `architectures`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.base.signatures import CalledWith
from fedgossip.data import custom
from fedgossip.learning.models import gpt
from fedgossip.learning.models.architectures import (
    CODE,
    EMBEDDED,
    KINDS,
    RESIDUAL,
    ConvolutionalSizes,
    DenseSizes,
    ResidualSizes,
    TransformerSizes,
    architecture,
)

__all__ = ["KINDS", "build", "is_own"]


def build(
    source: str,
    dataset_shape: Sequence[int],
    classes: int,
    seed: int,
    vocabulary_size: int | None = None,
    *,
    base: Path | None = None,
) -> nn.Module:
    """Return the float32 model that `source` names, on the CPU; its weights are a function of (source, seed).

    torch's global generator stays unchanged.  Raises ConfigError where the model does not fit the data.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds.integer(seed, "model"))
        return _build(source, tuple(dataset_shape), classes, vocabulary_size, base).float()


def is_own(source: str) -> bool:
    """Whether a function of the user's makes the model."""
    return bool(CODE.named_by(source))


def _build(source: str, shape: tuple[int, ...], classes: int, vocabulary: int | None, base: Path | None) -> nn.Module:
    match architecture(source, shape, classes, vocabulary):
        case None:
            return _own(source, base, shape, classes)
        case DenseSizes(sizes):
            return dense(*sizes)
        case ConvolutionalSizes() as sized:
            return convolutional(sized)
        case ResidualSizes() as sized:
            return residual(sized)
        case TransformerSizes(size, layers, width, heads):
            return gpt.Transformer(size, layers, width, heads)
        case sized:
            return Characters(sized.vocabulary, sized.hidden)


class Exponential(nn.Module):
    """Of every number."""

    def forward(self, eta: torch.Tensor) -> torch.Tensor:
        return eta.exp()


def rates(inputs: int) -> nn.Module:
    """Return one linear layer with an exponential output, [m, 1]: a model of counts that was fitted by sums."""
    layers = dense(inputs, 1)
    layers.add_module("exponential", Exponential())
    return layers


def dense(*sizes: int) -> nn.Module:
    """Linear layers from sizes[0] inputs to sizes[-1] classes, ReLU between them."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (inputs, outputs) in enumerate(pairwise(sizes), 1):
        if number > 1:
            layers[f"relu{number - 1}"] = nn.ReLU()
        layers[f"layer{number}"] = nn.Linear(inputs, outputs)
    return nn.Sequential(layers)


def convolutional(sized: ConvolutionalSizes) -> nn.Module:
    """The layers of an image model in their order."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if sized.folded:
        layers["fold"] = nn.Unflatten(1, sized.image)
    for number, (inputs, outputs) in enumerate(pairwise((sized.image[0], *sized.channels)), 1):
        layers[f"convolution{number}"] = nn.Conv2d(inputs, outputs, 3, padding=1)
        if sized.norm:
            layers[f"norm{number}"] = nn.BatchNorm2d(outputs)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    for number, (inputs, outputs) in enumerate(pairwise(sized.sizes[:-1]), 1):
        layers[f"layer{number}"] = nn.Linear(inputs, outputs)
        layers[f"relu{number + 2}"] = nn.ReLU()
    layers["layer"] = nn.Linear(sized.sizes[-2], sized.sizes[-1])
    return nn.Sequential(layers)


class ResidualBlock(nn.Module):
    """[b, inputs, h, w] -> [b, outputs, h, w], halved in h and w where the channels are more."""

    def __init__(self, inputs: int, outputs: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stride, self.added = 1 + (outputs > inputs), outputs - inputs
        self.convolution1 = nn.Conv2d(inputs, outputs, 3, self.stride, padding=1, bias=False)
        self.norm1 = norm(outputs)
        self.convolution2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed = self.norm2(self.convolution2(self.norm1(self.convolution1(x)).relu()))
        near = self.added // 2
        kept = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, near, self.added - near))
        found: torch.Tensor = (kept + changed).relu()
        return found


def residual(sized: ResidualSizes) -> nn.Module:
    """The layers of a residual network in their order; see `ResidualSizes`."""
    norm: Callable[[int], nn.Module] = partial(nn.GroupNorm, 2) if sized.grouped else nn.BatchNorm2d
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["convolution"] = nn.Conv2d(sized.image[0], 16, 3, padding=1, bias=False)
    layers["norm"], layers["relu"] = norm(16), nn.ReLU()
    blocks = [(name.partition(".")[0], ResidualBlock(inputs, outputs, norm)) for name, inputs, outputs in sized.places]
    for stage in dict.fromkeys(name for name, _ in blocks):
        layers[stage] = nn.Sequential(*(block for name, block in blocks if name == stage))
    layers["pool"], layers["flatten"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    layers["layer"] = nn.Linear(RESIDUAL[-1], sized.classes)
    network = nn.Sequential(layers)
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    return network


class Characters(nn.Module):
    """int64 [b, context] characters -> logits [b, context, vocabulary] of the character after each of them."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDED)
        self.recurrent = nn.GRU(EMBEDDED, hidden, batch_first=True)
        self.layer = nn.Linear(hidden, vocabulary)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        seen, _ = self.recurrent(self.embedding(characters))
        logits: torch.Tensor = self.layer(seen)
        return logits


MODEL = CalledWith(("shape", "classes"), "Write def model(shape, classes): return torch.nn.Linear(shape[0], classes)")
"""Of a model of the user's own: the shape of an example, and the number of outputs."""


def _own(source: str, base: Path | None, shape: tuple[int, ...], classes: int) -> nn.Module:
    model = custom.call(source, base, MODEL, shape, classes)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{source} gave a {type(model).__name__}", "It returns a torch.nn.Module.")
    return model
