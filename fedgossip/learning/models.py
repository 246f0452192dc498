"""Models by name, the same first weights for the same seed.

softmax            one linear layer
mlp:64-32-10       linear layers with ReLU between them; the first and last size are the data's
cnn:small          two convolutions with pooling and one linear layer; cnn:small-bn with BatchNorm
cnn:16-32-64       the same two convolutions, of 16 and 32 channels, then linear layers with ReLU between them: 64, ...
chars:64           next-character model: embedding, GRU of 64, linear
gpt:2-64-4         next-character transformer: 2 layers, width 64, 4 heads
module:function    yours: takes (shape, classes), gives a torch.nn.Module
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from fedgossip import seeds
from fedgossip.errors import ConfigError, nearest
from fedgossip.learning import custom, gpt

KINDS = ("softmax", "mlp", "cnn:small", "cnn:small-bn", "chars", "gpt")


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

    torch's global generator is left as it was.  Raises ConfigError where the model does not fit the data.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds.integer(seed, "model"))
        return _build(source, tuple(dataset_shape), classes, vocabulary_size, base).float()


def _build(source: str, shape: tuple[int, ...], classes: int, vocabulary: int | None, base: Path | None) -> nn.Module:
    kind, _, rest = source.partition(":")
    if kind in ("glm", "trees"):
        raise ConfigError(f"{source!r} is fitted by sums, without gradients", "Fit it by  fedgossip fit EXPERIMENT.")
    if kind == "chars":
        return Characters(_text_size(source, vocabulary), _hidden(source, rest))
    if kind == "gpt":
        return gpt.Transformer(_text_size(source, vocabulary), *_transformer(source, rest))
    known = kind == "mlp" or source in KINDS
    if (known or kind == "cnn") and vocabulary is not None:
        raise ConfigError(f"{source!r} cannot read text", "Use chars:64 or gpt:2-64-4, models of characters.")
    if source == "softmax":
        return dense(math.prod(shape), classes)
    if kind == "mlp":
        return dense(*_sizes(source, rest, math.prod(shape), classes))
    if known:
        return convolutional(source, shape, classes, norm=source.endswith("-bn"))
    if kind == "cnn" and rest[:1].isdecimal():
        first, second, *hidden = _channels(source, rest)
        return convolutional(source, shape, classes, channels=(first, second), hidden=hidden)
    if custom.is_function(source) and kind not in ("cnn", "softmax"):
        return _own(source, base, shape, classes)
    raise ConfigError(f"unknown model {source!r}", nearest(source, [*KINDS, "module:function"]))


class Exponential(nn.Module):
    """Of every number."""

    def forward(self, eta: torch.Tensor) -> torch.Tensor:
        return eta.exp()


def rates(inputs: int) -> nn.Module:
    """One linear layer, and the exponential of what it gives, [m, 1]: a model of counts that was fitted by sums."""
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


def convolutional(
    source: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    norm: bool = False,
    channels: tuple[int, int] = (16, 32),
    hidden: Sequence[int] = (),
) -> nn.Module:
    """Two 3x3 convolutions, each halved by pooling, then linear layers; flat square images are folded first.

    Raises ConfigError for a `shape` of examples that is no image, or too small for two poolings.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if len(shape) == 1 and math.isqrt(shape[0]) ** 2 == shape[0]:
        shape = (1, math.isqrt(shape[0]), math.isqrt(shape[0]))
        layers["fold"] = nn.Unflatten(1, shape)
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ConfigError(
            f"{source!r} needs images of at least 4x4; an example is {shape}", "Use softmax or an mlp for a table."
        )
    for number, (inputs, outputs) in enumerate(pairwise((shape[0], *channels)), 1):
        layers[f"convolution{number}"] = nn.Conv2d(inputs, outputs, 3, padding=1)
        if norm:
            layers[f"norm{number}"] = nn.BatchNorm2d(outputs)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    sizes = [channels[1] * (shape[1] // 4) * (shape[2] // 4), *hidden]
    for number, (inputs, outputs) in enumerate(pairwise(sizes), 1):
        layers[f"layer{number}"] = nn.Linear(inputs, outputs)
        layers[f"relu{number + 2}"] = nn.ReLU()
    layers["layer"] = nn.Linear(sizes[-1], classes)
    return nn.Sequential(layers)


class Characters(nn.Module):
    """int64 [b, context] characters -> logits [b, context, vocabulary] of the character after each of them."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 16)
        self.recurrent = nn.GRU(16, hidden, batch_first=True)
        self.layer = nn.Linear(hidden, vocabulary)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        seen, _ = self.recurrent(self.embedding(characters))
        logits: torch.Tensor = self.layer(seen)
        return logits


def _own(source: str, base: Path | None, shape: tuple[int, ...], classes: int) -> nn.Module:
    model = custom.call(source, base, shape, classes)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{source} gave a {type(model).__name__}", "It returns a torch.nn.Module.")
    return model


def _sizes(source: str, rest: str, inputs: int, classes: int) -> list[int]:
    words = rest.split("-")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(f"{source!r}: sizes are whole numbers joined by -", f"Write mlp:{inputs}-32-{classes}.")
    sizes = [int(word) for word in words]
    if len(sizes) < 2 or sizes[0] != inputs or sizes[-1] != classes:
        middle = sizes if len(sizes) == 1 else sizes[1:-1]
        wanted = "-".join(map(str, [inputs, *middle, classes]))
        raise ConfigError(f"{source!r}: the data have {inputs} inputs and {classes} classes", f"Write mlp:{wanted}.")
    return sizes


def _channels(source: str, rest: str) -> list[int]:
    words = rest.split("-")
    if len(words) < 2 or not all(word.isdecimal() and int(word) > 0 for word in words):
        advice = "Write cnn:16-32-64: the channels of two convolutions, then the sizes of hidden linear layers, if any."
        raise ConfigError(f"{source!r}: sizes are whole numbers joined by -, two at least", advice)
    return [int(word) for word in words]


def _text_size(source: str, vocabulary: int | None) -> int:
    if vocabulary is None:
        raise ConfigError(f"{source!r} needs text", "Use softmax, mlp or cnn:small for these data.")
    return vocabulary


def _hidden(source: str, rest: str) -> int:
    if not rest.isdecimal() or int(rest) < 1:
        raise ConfigError(f"{source!r}: the hidden size is a whole number", "Write chars:64.")
    return int(rest)


def _transformer(source: str, rest: str) -> tuple[int, int, int]:
    words = rest.split("-")
    if len(words) != 3 or not all(word.isdecimal() and int(word) > 0 for word in words):
        text = f"{source!r}: a transformer has layers, a width and heads, whole numbers joined by -"
        raise ConfigError(text, "Write gpt:2-64-4.")
    layers, width, heads = map(int, words)
    if width % (2 * heads):
        advice = f"Write gpt:{layers}-{max(1, round(width / (2 * heads))) * 2 * heads}-{heads}."
        raise ConfigError(f"{source!r}: the width is {width}, no multiple of twice the {heads} heads", advice)
    return layers, width, heads
