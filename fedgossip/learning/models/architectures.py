"""The named models, as sizes: their tensors and shapes.  No torch here; `models` builds them.

softmax                     one linear layer
mlp:64-32-10                linear layers with ReLU; the first and last size are the data's
cnn:small                   two convolutions with pooling, a linear layer; cnn:small-bn with BatchNorm
cnn:16-32-64                the same of 16 and 32 channels, then linear layers with ReLU: 64, ...
resnet:20                   residual layers for small images, 20 = 6 n + 2; resnet:20-gn with GroupNorm, 2 groups
chars:64                    next-character model: embedding, GRU of 64, linear
gpt:2-64-4                  next-character transformer: 2 layers, width 64, 4 heads
gpt:2-64-4?experts=4&top=2  the same, 4 experts per block, 2 of them for each position
mlp:64-32-10?exit=1         mlp or cnn with an early exit, a linear layer after this many layers
module:function             yours: called with (shape, classes), returns a torch.nn.Module
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.limits import MOST
from fedgossip.data.custom import NamesCode

KINDS = ("softmax", "mlp", "cnn:small", "cnn:small-bn", "resnet", "chars", "gpt")
FITTED = ("glm", "trees", "kaplan-meier", "cox")
"""Kinds of models fitted by sums, without gradients."""
CODE = NamesCode((*(one.partition(":")[0] for one in KINDS), *FITTED, "words").__contains__)
"""Code names in model.source: every name except the built-in models."""

Shapes = list[tuple[str, tuple[int, ...]]]
"""Names and shapes, in the order of torch's named_parameters and named_buffers."""

RESIDUAL = (16, 32, 64)
"""Channels of the stages of a residual network."""
DEPTH_MOST = 200

EMBEDDED = 16
"""Width of a character's embedding before a GRU."""


@dataclass(frozen=True)
class DenseSizes:
    """Linear layers from sizes[0] inputs to sizes[-1] outputs, ReLU between them."""

    sizes: tuple[int, ...]

    @property
    def parameters(self) -> Shapes:
        return [one for number, pair in enumerate(pairwise(self.sizes), 1) for one in _linear(f"layer{number}", *pair)]

    @property
    def buffers(self) -> Shapes:
        return []


@dataclass(frozen=True)
class ConvolutionalSizes:
    """Two 3x3 convolutions of `image` (channels, height, width), each halved by pooling, then linear layers."""

    image: tuple[int, int, int]
    folded: bool
    """Whether an example is flat, and reshaped to an image first."""
    channels: tuple[int, int]
    sizes: tuple[int, ...]
    """Sizes of the linear layers, from the poolings' output to the classes."""
    norm: bool
    """Whether BatchNorm follows each convolution."""

    @property
    def parameters(self) -> Shapes:
        found: Shapes = []
        for number, (inputs, outputs) in enumerate(pairwise((self.image[0], *self.channels)), 1):
            found += _pair(f"convolution{number}", (outputs, inputs, 3, 3))
            found += _pair(f"norm{number}", (outputs,)) if self.norm else []
        layers = [f"layer{number}" for number in range(1, len(self.sizes) - 1)]
        for name, pair in zip([*layers, "layer"], pairwise(self.sizes), strict=True):
            found += _linear(name, *pair)
        return found

    @property
    def buffers(self) -> Shapes:
        numbers = enumerate(self.channels, 1) if self.norm else ()
        return [(f"norm{k}.{name}", (size,)) for k, size in numbers for name in ("running_mean", "running_var")]


@dataclass(frozen=True)
class ResidualSizes:
    """A convolution of 16 channels, then three stages of blocks of two convolutions, of 16, 32 and 64, each stage at
    half the resolution; shortcuts without parameters (He, Zhang, Ren and Sun, CVPR 2016, section 4.2, option A).
    """

    image: tuple[int, int, int]
    blocks: int
    """Number of blocks per stage, n of depth 6 n + 2."""
    classes: int
    grouped: bool
    """Whether GroupNorm replaces BatchNorm."""

    @property
    def places(self) -> list[tuple[str, int, int]]:
        """Name, input channels and channels of each block."""
        first = [(f"stage{k}.0", inputs, outputs) for k, (inputs, outputs) in enumerate(pairwise((16, *RESIDUAL)), 1)]
        return [
            (name.replace(".0", f".{block}"), outputs if block else inputs, outputs)
            for name, inputs, outputs in first
            for block in range(self.blocks)
        ]

    @property
    def parameters(self) -> Shapes:
        found: Shapes = [("convolution.weight", (16, self.image[0], 3, 3)), *_pair("norm", (16,))]
        for name, inputs, outputs in self.places:
            for number, channels in enumerate((inputs, outputs), 1):
                found.append((f"{name}.convolution{number}.weight", (outputs, channels, 3, 3)))
                found += _pair(f"{name}.norm{number}", (outputs,))
        return [*found, *_linear("layer", RESIDUAL[-1], self.classes)]

    @property
    def buffers(self) -> Shapes:
        norms = [("norm", 16), *((f"{name}.norm{k}", size) for name, _, size in self.places for k in (1, 2))]
        statistics = ("running_mean", "running_var")
        return [] if self.grouped else [(f"{name}.{one}", (size,)) for name, size in norms for one in statistics]


@dataclass(frozen=True)
class GruSizes:
    """A GRU over characters."""

    vocabulary: int
    hidden: int

    @property
    def parameters(self) -> Shapes:
        gates = 3 * self.hidden
        return [
            ("embedding.weight", (self.vocabulary, EMBEDDED)),
            ("recurrent.weight_ih_l0", (gates, EMBEDDED)),
            ("recurrent.weight_hh_l0", (gates, self.hidden)),
            ("recurrent.bias_ih_l0", (gates,)),
            ("recurrent.bias_hh_l0", (gates,)),
            *_linear("layer", self.hidden, self.vocabulary),
        ]

    @property
    def buffers(self) -> Shapes:
        return []


@dataclass(frozen=True)
class TransformerSizes:
    """A transformer over characters; `width` is a multiple of 2 `heads`."""

    vocabulary: int
    layers: int
    width: int
    heads: int
    experts: int = 0
    """Number of experts per block; 0: two wide layers without experts."""
    top: int = 2
    capacity: float = 1.25
    balance: float = 0.01

    @property
    def parameters(self) -> Shapes:
        found: Shapes = [("embedding.weight", (self.vocabulary, self.width))]
        for number in range(self.layers):
            found += self._block(f"blocks.{number}")
        return [*found, *_pair("behind", (self.width,)), ("layer.weight", (self.vocabulary, self.width))]

    def _block(self, name: str) -> Shapes:
        w = self.width
        return [
            *_pair(f"{name}.before", (w,)),
            *_pair(f"{name}.between", (w,)),
            (f"{name}.asked.weight", (3 * w, w)),
            (f"{name}.out.weight", (w, w)),
            *self._wide(name),
        ]

    def _wide(self, name: str) -> Shapes:
        w, n = self.width, self.experts
        if not n:
            return [(f"{name}.wide.weight", (4 * w, w)), (f"{name}.narrow.weight", (w, 4 * w))]
        shapes = {"wide": (n, 4 * w, w), "narrow": (n, w, 4 * w), "router": (n, w)}
        return [(f"{name}.experts.{part}", shape) for part, shape in shapes.items()]

    @property
    def buffers(self) -> Shapes:
        return []


@dataclass(frozen=True)
class ExitSizes:
    """A network in two parts with an exit after the first part, which has `layers` layers with weights."""

    whole: DenseSizes | ConvolutionalSizes
    layers: int
    weight: float
    """Weight of the exit's loss; the last outputs' weight is 1."""

    @property
    def features(self) -> int:
        """Number of inputs of the exit's layer and of the second part."""
        if isinstance(self.whole, DenseSizes):
            return self.whole.sizes[self.layers]
        _, height, width = self.whole.image
        if self.layers == 1:
            return self.whole.channels[0] * (height // 2) * (width // 2)
        return self.whole.sizes[self.layers - 2]

    @property
    def classes(self) -> int:
        return self.whole.sizes[-1]

    @property
    def parameters(self) -> Shapes:
        own, cut = self.whole.parameters, 2 * self.layers
        first = [(f"device.{name}", shape) for name, shape in own[:cut]]
        exit = _linear("exit.layer", self.features, self.classes)
        return [*first, *exit, *((f"server.{name}", shape) for name, shape in own[cut:])]

    @property
    def buffers(self) -> Shapes:
        return []


Architecture = DenseSizes | ConvolutionalSizes | ResidualSizes | GruSizes | TransformerSizes | ExitSizes


def architecture(source: str, shape: Sequence[int], classes: int, vocabulary: int | None = None) -> Architecture | None:
    """Return the model named `source` for examples of this shape; None for a user's function.

    Raises ConfigError for an unknown model, or data that do not fit.
    """
    kind, _, rest = source.partition(":")
    if kind in OPTIONS and "?" in rest:
        return _apply_options(source, shape, classes, vocabulary)
    if kind.partition("?")[0] in FITTED:
        raise ConfigError(f"{source!r} is fitted by sums, without gradients", "Fit it by  fedgossip fit EXPERIMENT.")
    name, _, options = source.partition("?")
    if options and (name in KINDS or name.partition(":")[0] in KINDS):
        _check_option(source, options.partition("=")[0])
    if kind == "chars":
        return GruSizes(_text_size(source, vocabulary), _hidden(source, rest))
    if kind == "gpt":
        return TransformerSizes(_text_size(source, vocabulary), *_transformer(source, rest))
    known = kind == "mlp" or (source in KINDS and kind != "resnet")
    if (known or kind in ("cnn", "resnet")) and vocabulary is not None:
        raise ConfigError(f"{source!r} cannot read text", "Use chars:64 or gpt:2-64-4, models of characters.")
    if source == "softmax":
        return DenseSizes((math.prod(shape), classes))
    if kind == "mlp":
        return DenseSizes(_sizes(source, rest, math.prod(shape), classes))
    if kind == "resnet":
        return _residual(source, rest, tuple(shape), classes)
    if known:
        return _convolutional(source, tuple(shape), classes, (16, 32), (), norm=source.endswith("-bn"))
    if kind == "cnn" and rest[:1].isdecimal():
        first, second, *hidden = _channels(source, rest)
        return _convolutional(source, tuple(shape), classes, (first, second), hidden)
    if CODE.find_name(source) == source:
        return None
    raise ConfigError(f"unknown model {source!r}", nearest(source, [*KINDS, "module:function"]))


EXPERTS_MOST = 256
OPTIONS = {
    "gpt": {"experts": int, "top": int, "capacity": float, "balance": float},
    "mlp": {"exit": int, "weight": float},
    "cnn": {"exit": int, "weight": float},
}
"""Options of a named model, after "?"."""
USUAL = {"top": 2, "capacity": 1.25, "balance": 0.01}


def _apply_options(source: str, shape: Sequence[int], classes: int, vocabulary: int | None) -> Architecture:
    name, _, words = source.partition("?")
    kinds = OPTIONS[name.partition(":")[0]]
    found: dict[str, float] = {}
    for word in words.split("&"):
        key, _, text = word.partition("=")
        _check_option(source, key)
        try:
            found[key] = kinds[key](text)
        except ValueError:
            found[key] = math.nan
        if not 0 <= found[key] < MOST:
            raise ConfigError(
                f"{source!r}: {key} = {text!r} is no number of 0 or more", f"Write {key}={USUAL.get(key, 1)}."
            )
    whole = architecture(name, shape, classes, vocabulary)
    if isinstance(whole, TransformerSizes):
        return _expert(source, replace(whole, **{"experts": 1, "top": 1, **found}))  # type: ignore[arg-type]
    assert isinstance(whole, DenseSizes | ConvolutionalSizes), "by OPTIONS"
    at, weight = int(found.get("exit", 0)), float(found.get("weight", 1.0))
    layers = len(whole.parameters) // 2
    if isinstance(whole, ConvolutionalSizes) and whole.norm:
        raise ConfigError(f"{source!r}: an exit of a model with BatchNorm", "Take cnn:small, or cnn:16-32-64.")
    if not 1 <= at < layers:
        text = f"{source!r}: exit = {at}, and {layers - 1} of its layers have another after them"
        advice = f"Write exit=1{f', up to {layers - 1}' if layers > 2 else ''}."
        raise ConfigError(text, advice if layers > 1 else "Take one with a layer more, such as mlp:64-32-10?exit=1.")
    if not weight:
        raise ConfigError(f"{source!r}: weight = 0: the exit would learn nothing", "Write weight=1, or leave it out.")
    return ExitSizes(whole, at, weight)


def _check_option(source: str, key: str) -> None:
    """Raise ConfigError, naming the models with this option, for an option of other models."""
    kind = source.partition("?")[0].partition(":")[0]
    takers = [name for name, options in OPTIONS.items() if key in options]
    if takers and kind not in takers:
        raise ConfigError(f"{source!r}: {kind} takes no {key}=", f"{key}= goes with {' or '.join(takers)} alone.")
    if not takers:
        known = OPTIONS.get(kind)
        advice = nearest(key, known) if known else f"Leave it out: {kind} takes no options."
        raise ConfigError(f"{source!r}: option {key!r} is not known", advice)


def _expert(source: str, sized: TransformerSizes) -> TransformerSizes:
    if not 1 <= sized.experts <= EXPERTS_MOST:
        raise ConfigError(f"{source!r}: experts = {sized.experts}", f"Write 1 to {EXPERTS_MOST}.")
    if not 1 <= sized.top <= sized.experts:
        text = f"{source!r}: a place goes to top = {sized.top} of {sized.experts} experts"
        raise ConfigError(text, f"Write top=1{f', up to {sized.experts}' if sized.experts > 1 else ''}.")
    if not sized.capacity:
        text = f"{source!r}: capacity = 0: no expert takes a place"
        raise ConfigError(text, "Write capacity=1.25, a quarter more than an equal share.")
    return sized


def _convolutional(
    source: str,
    shape: tuple[int, ...],
    classes: int,
    channels: tuple[int, int],
    hidden: Sequence[int],
    *,
    norm: bool = False,
) -> ConvolutionalSizes:
    """Raises ConfigError for no image, or one too small for two poolings."""
    folded = len(shape) == 1 and math.isqrt(shape[0]) ** 2 == shape[0]
    if folded:
        shape = (1, math.isqrt(shape[0]), math.isqrt(shape[0]))
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ConfigError(
            f"{source!r} needs images of at least 4x4; an example is {shape}", "Use softmax or an mlp for a table."
        )
    depth, height, width = shape
    sizes = (channels[1] * (height // 4) * (width // 4), *hidden, classes)
    return ConvolutionalSizes((depth, height, width), folded, channels, sizes, norm)


def _residual(source: str, rest: str, shape: tuple[int, ...], classes: int) -> ResidualSizes:
    """Raises ConfigError for another depth, and for no image."""
    word, _, norm = rest.partition("-")
    depth = int(word) if word.isdecimal() and len(word) < 4 else 0
    if norm not in ("", "gn") or not 8 <= depth <= DEPTH_MOST or depth % 6 != 2:
        text = (
            f"{source!r}: a residual network has a depth of 6 n + 2, from 8 to {DEPTH_MOST}, and -gn or nothing behind"
        )
        raise ConfigError(text, "Write resnet:20 or resnet:20-gn.")
    if len(shape) != 3 or min(shape[1:]) < 4:
        text = f"{source!r} needs images of at least 4x4; an example is {shape}"
        raise ConfigError(text, "Use softmax or an mlp for a table.")
    depth_in, height, width = shape
    return ResidualSizes((depth_in, height, width), depth // 6, classes, norm == "gn")


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return _pair(name, (outputs, inputs))


def _pair(name: str, shape: tuple[int, ...]) -> Shapes:
    return [(f"{name}.weight", shape), (f"{name}.bias", shape[:1])]


def _sizes(source: str, rest: str, inputs: int, classes: int) -> tuple[int, ...]:
    words = rest.split("-")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(f"{source!r}: sizes are whole numbers joined by -", f"Write mlp:{inputs}-32-{classes}.")
    sizes = [int(word) for word in words]
    if len(sizes) < 2 or sizes[0] != inputs or sizes[-1] != classes:
        middle = sizes if len(sizes) == 1 else sizes[1:-1]
        wanted = "-".join(map(str, [inputs, *middle, classes]))
        raise ConfigError(f"{source!r}: the data have {inputs} inputs and {classes} classes", f"Write mlp:{wanted}.")
    return tuple(sizes)


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
