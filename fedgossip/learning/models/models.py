"""The models named in `architectures`, as torch modules: the same first weights for the same seed.

`gpt` is a small transformer that predicts the next character:

    h  =  embedding(characters)
    in every layer:   h  <-  h + attention(norm(h))           causal, with rotary positions of queries and keys
                      h  <-  h + linear(gelu(linear(norm(h))))    four times as wide inside
    logits  =  linear(norm(h))

Norms first (Xiong and others, On layer normalization in the transformer architecture, ICML 2020); rotary positions (Su
and others, RoFormer, 2021), so a text may be longer than in training; no biases.  First weights as in GPT-2 (Radford
and others, 2019): normal, deviation .02, divided by the root of their number for the layers that add to h.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.base.limits import CalledWith
from fedgossip.data import custom
from fedgossip.learning.models.architectures import (
    CODE,
    EMBEDDED,
    KINDS,
    RESIDUAL,
    ConvolutionalSizes,
    DenseSizes,
    ExitSizes,
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
    """Return the float32 model named `source`, on the CPU; its weights are a function of (source, seed).

    torch's global generator stays unchanged.  Raises ConfigError.
    """
    if is_own(source):
        custom.function(source, base)  # a module may draw while it is imported: not between the seed and the model
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds.integer(seed, "model"))
        return _build(source, tuple(dataset_shape), classes, vocabulary_size, base).float()


def check_whole(module: nn.Module, source: str, what: str) -> None:
    """Raise ConfigError for a model with a loss term over whole batches, which parts of a batch cannot compute."""
    if isinstance(module, Transformer) and module.experts:
        text = f"{source} {what}: experts' capacity and balance are those of a whole batch in one process"
        raise ConfigError(text, "Divide the experts (train.mesh.expert), or leave one of the two out.")


def has_terms(module: nn.Module) -> bool:
    """Return whether a model returns `TrainingOutputs` in training mode."""
    return isinstance(module, EarlyExit) or (isinstance(module, Transformer) and module.experts > 0)


def is_own(source: str) -> bool:
    """Whether a user's function builds the model."""
    return bool(CODE.find_name(source))


def _build(source: str, shape: tuple[int, ...], classes: int, vocabulary: int | None, base: Path | None) -> nn.Module:
    match architecture(source, shape, classes, vocabulary):
        case None:
            return _call_own(source, base, shape, classes)
        case DenseSizes(sizes):
            return dense(*sizes)
        case ConvolutionalSizes() as sized:
            return convolutional(sized)
        case ResidualSizes() as sized:
            return residual(sized)
        case TransformerSizes() as sized:
            return Transformer(sized)
        case ExitSizes(whole) as sized:
            return EarlyExit(dense(*whole.sizes) if isinstance(whole, DenseSizes) else convolutional(whole), sized)
        case sized:
            return Characters(sized.vocabulary, sized.hidden)


class Exponential(nn.Module):
    """The exponential of every element."""

    def forward(self, eta: torch.Tensor) -> torch.Tensor:
        return eta.exp()


def rates(inputs: int) -> nn.Module:
    """Return one linear layer with an exponential output, [m, 1]: a model of counts fitted by sums."""
    layers = dense(inputs, 1)
    layers.add_module("exponential", Exponential())
    return layers


def dense(*sizes: int) -> nn.Sequential:
    """Linear layers from sizes[0] inputs to sizes[-1] classes, ReLU between them."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (inputs, outputs) in enumerate(pairwise(sizes), 1):
        if number > 1:
            layers[f"relu{number - 1}"] = nn.ReLU()
        layers[f"layer{number}"] = nn.Linear(inputs, outputs)
    return nn.Sequential(layers)


def convolutional(sized: ConvolutionalSizes) -> nn.Sequential:
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


class TrainingOutputs(NamedTuple):
    """The outputs, in training mode, of a model with additional loss terms; in eval mode it returns `last`."""

    last: torch.Tensor
    exits: tuple[torch.Tensor, ...] = ()
    weight: float = 1.0
    added: torch.Tensor | None = None

    def loss(self, mean: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of the last outputs, plus the exits' losses by their weight, and the added term."""
        found = mean(self.last, labels)
        for exit in self.exits:
            found = found + self.weight * mean(exit, labels)
        return found if self.added is None else found + self.added


class EarlyExit(nn.Module):
    """A network with an exit after its first layers: these on a device, the others on a server.

    Both outputs are trained by the weighted sum of their losses (Teerapittayanon, McDanel and Kung, Distributed deep
    neural networks over the cloud, the edge and end devices, ICDCS 2017, section III).
    """

    def __init__(self, body: nn.Sequential, sized: ExitSizes) -> None:
        super().__init__()
        heavy = [place for place, layer in enumerate(body) if next(layer.parameters(), None) is not None]
        self.weight = sized.weight
        layers = OrderedDict(flatten=nn.Flatten(), layer=nn.Linear(sized.features, sized.classes))
        self.device, self.exit = body[: heavy[sized.layers]], nn.Sequential(layers)
        self.server = body[heavy[sized.layers] :]

    def forward(self, x: torch.Tensor) -> torch.Tensor | TrainingOutputs:
        h = self.device(x)
        last = self.server(h)
        return TrainingOutputs(last, (self.exit(h),), self.weight) if self.training else last


class ResidualBlock(nn.Module):
    """[b, inputs, h, w] -> [b, outputs, h, w], halved in h and w if the channels increase."""

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
    """int64 [b, context] characters -> logits [b, context, vocabulary] of each next character."""

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
"""Arguments of a user's model: the shape of an example, and the number of outputs."""


def _call_own(source: str, base: Path | None, shape: tuple[int, ...], classes: int) -> nn.Module:
    model = custom.call(source, base, MODEL, shape, classes)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{source} gave a {type(model).__name__}", "It returns a torch.nn.Module.")
    return model


BASE = 10_000.0  # the slowest pair of numbers turns by 1 / BASE a place
DEVIATION = 0.02


class Transformer(nn.Module):
    """int64 [b, context] characters -> logits [b, context, vocabulary] of each next character.

    `width` is a multiple of 2 `heads`.
    """

    def __init__(self, sized: TransformerSizes) -> None:
        super().__init__()
        vocabulary, layers, width, self.heads = sized.vocabulary, sized.layers, sized.width, sized.heads
        self.experts, self.balance = sized.experts, sized.balance
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(sized) for _ in range(layers))
        self.behind = nn.LayerNorm(width)
        self.layer = nn.Linear(width, vocabulary, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                added = name.endswith(("out.weight", "narrow.weight", "experts.narrow"))
                nn.init.normal_(weight, std=DEVIATION / math.sqrt(2 * layers) if added else DEVIATION)

    def forward(self, characters: torch.Tensor) -> torch.Tensor | TrainingOutputs:
        h = self.embedding(characters)
        for block in self.blocks:
            h = block(h)
        logits: torch.Tensor = self.layer(self.behind(h))
        if not (self.experts and self.training):
            return logits
        uneven = torch.stack([block.experts.take_uneven() for block in self.blocks]).sum()  # type: ignore[operator, union-attr]
        return TrainingOutputs(logits, added=self.balance * uneven)


class TransformerStage(nn.Module):
    """Consecutive blocks of a transformer, with the embedding before the first, the logits after the last.

    [b, context] or [b, context, width] -> [b, context, width] or [b, context, vocabulary].
    """

    def __init__(self, whole: Transformer, blocks: range) -> None:
        super().__init__()
        self.embedding = whole.embedding if blocks[0] == 0 else None
        self.blocks = nn.ModuleList(whole.blocks[number] for number in blocks)
        last = blocks[-1] == len(whole.blocks) - 1
        self.behind = whole.behind if last else None
        self.layer = whole.layer if last else None

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            h = self.embedding(h)
        for block in self.blocks:
            h = block(h)
        return h if self.behind is None or self.layer is None else self.layer(self.behind(h))


class Block(nn.Module):
    """[b, context, width] -> the same shape."""

    def __init__(self, sized: TransformerSizes) -> None:
        super().__init__()
        width = sized.width
        self.size = width // sized.heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.experts = Experts(sized) if sized.experts else None
        if self.experts is None:
            self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = h + self.out(self.attention(self.before(h)))
        between = self.between(h)
        added: torch.Tensor = (
            self.narrow(functional.gelu(self.wide(between))) if self.experts is None else self.experts(between)
        )
        return h + added

    def attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Return the causal attention of queries to the positions up to their own, all [b, heads, context, size];
        `processes.context` replaces this method.
        """
        return functional.scaled_dot_product_attention(turned(queries), turned(keys), values, is_causal=True)

    def attention(self, h: torch.Tensor) -> torch.Tensor:
        asked = self.asked(h)  # if divided between processes: only some heads, or more positions than h
        rows, context, width = asked.shape
        parts = asked.view(rows, context, 3, width // (3 * self.size), self.size).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        return self.attend(queries, keys, values).transpose(1, 2).reshape(rows, context, width // 3)


class Experts(nn.Module):
    """[b, context, width] -> the same shape: of n pairs of wide layers each position uses the `top` preferred by a
    router.

        p  =  softmax(router h),  the shares of the chosen divided by their sum (top = 1: p itself)
        y  =  sum over the chosen of  share  narrow_e gelu(wide_e h)

    In training an expert accepts `capacity` times an equal share of the batch's positions; the others use only the
    residual.  `uneven` is n sum_e f_e P_e - 1 of the last pass, f the shares of positions and P the mean of p.

    `processes.experts` replaces `forward` if several processes have the experts.

    Sources: Shazeer and others, Outrageously large neural networks, ICLR 2017; Lepikhin and others, GShard, ICLR 2021,
    for top = 2 and the capacity; Fedus, Zoph and Shazeer, Switch transformers, JMLR 23 (2022), for top = 1 and `uneven`
    """

    def __init__(self, sized: TransformerSizes) -> None:
        super().__init__()
        n, width = sized.experts, sized.width
        self.top, self.capacity = sized.top, sized.capacity
        self.wide, self.narrow = (
            nn.Parameter(torch.empty(n, 4 * width, width)),
            nn.Parameter(torch.empty(n, width, 4 * width)),
        )
        self.router = nn.Parameter(torch.empty(n, width))
        self.uneven = torch.zeros(())

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        places, n = h.reshape(-1, h.shape[-1]), len(self.router)
        p, shares, chosen = self.route(places)
        taken = functional.one_hot(chosen, n)  # [places, top, n]
        if not self.training:
            weights = (taken * shares.unsqueeze(-1)).sum(1)
            found = sum(weights[:, e : e + 1] * self._one(places, e) for e in range(n))
            return torch.as_tensor(found).view_as(h)
        self.uneven = n * (taken.float().mean((0, 1)) * p.mean(0)).sum() - 1
        most = math.ceil(self.capacity * len(places) * self.top / n)
        before = taken.view(-1, n).cumsum(0).view_as(taken)  # with itself, of an expert's places so far
        kept = taken.bool() & (before <= most)
        whole = torch.zeros_like(places)
        for e in range(n):
            rows, choice = kept[:, :, e].nonzero(as_tuple=True)
            added = self._one(places[rows], e) * shares[rows, choice].unsqueeze(-1)
            whole = whole.index_add(0, rows, added)
        return whole.view_as(h)

    def route(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return p [places, n], and the shares and numbers of the chosen experts, [places, top]."""
        p = functional.linear(places, self.router).softmax(-1)
        shares, chosen = p.topk(self.top, dim=-1)
        return p, shares / shares.sum(-1, keepdim=True) if self.top > 1 else shares, chosen

    def take_uneven(self) -> torch.Tensor:
        """Return `uneven` and delete it: a copy of the module would have to copy its graph."""
        found, self.uneven = self.uneven, torch.zeros(())
        return found

    def _one(self, places: torch.Tensor, e: int) -> torch.Tensor:
        return pass_expert(places, self.wide[e], self.narrow[e])


def pass_expert(places: torch.Tensor, wide: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
    """Return the outputs of one expert, [places, width]."""
    return functional.linear(functional.gelu(functional.linear(places, wide)), narrow)


def turned(vectors: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
    """Rotate the pairs (i, i + d/2) of vectors [..., context, d], d even, by angles proportional to their position.

    A dot product then depends on the distance of the positions.  `places` [context]: by default from 0 on.
    """
    context, half = vectors.shape[-2], vectors.shape[-1] // 2
    if places is None:
        places = torch.arange(context, device=vectors.device, dtype=torch.float32)
    speeds = BASE ** (-torch.arange(half, device=vectors.device, dtype=torch.float32) / half)
    angles = torch.outer(places.to(torch.float32), speeds)
    cos, sin = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
    first, second = vectors[..., :half], vectors[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
