"""A small transformer that predicts the next character: the body of today's language models.

    h  =  embedding(characters)
    in every layer:   h  <-  h + attention(norm(h))           causal, its queries and keys turned by their place
                      h  <-  h + linear(gelu(linear(norm(h))))    four times as wide inside
    logits  =  linear(norm(h))

Norms before each part (Xiong and others, On layer normalization in the transformer architecture, ICML 2020); rotary
positions (Su and others, RoFormer, 2021), so that no weight belongs to a place and a text may be longer than those
that were trained on; linear layers without biases.  First weights are as in GPT-2 (Radford and others, 2019): normal,
of deviation .02, and those that add to h over the root of their number.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

BASE = 10_000.0  # the slowest pair of numbers turns by 1 / BASE a place
DEVIATION = 0.02


class Transformer(nn.Module):
    """int64 [b, context] characters -> logits [b, context, vocabulary] of the character after each of them.

    `width` is a multiple of 2 `heads`.
    """

    def __init__(self, vocabulary: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.behind = nn.LayerNorm(width)
        self.layer = nn.Linear(width, vocabulary, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                added = name.endswith(("out.weight", "narrow.weight"))
                nn.init.normal_(weight, std=DEVIATION / math.sqrt(2 * layers) if added else DEVIATION)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        h = self.embedding(characters)
        for block in self.blocks:
            h = block(h)
        logits: torch.Tensor = self.layer(self.behind(h))
        return logits


class TransformerStage(nn.Module):
    """Some consecutive blocks of a transformer, with the embedding in front of the first, the logits behind the last.

    [b, context] or [b, context, width] -> [b, context, width] or [b, context, vocabulary]; the layers are shared.
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

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = h + self.out(self.attention(self.before(h)))
        added: torch.Tensor = self.narrow(functional.gelu(self.wide(self.between(h))))
        return h + added

    def seen(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Return what queries see of the places up to their own, all [b, heads, context, size]; `processes.context`
        puts another in its place."""
        return functional.scaled_dot_product_attention(turned(queries), turned(keys), values, is_causal=True)

    def attention(self, h: torch.Tensor) -> torch.Tensor:
        asked = self.asked(h)  # of some heads alone, and of more places than h, where processes divide them
        rows, context, _ = asked.shape
        parts = asked.view(rows, context, 3, -1, self.size).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        return self.seen(queries, keys, values).transpose(1, 2).reshape(rows, context, -1)


def turned(vectors: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
    """Turn the pairs (i, i + d/2) of vectors [..., context, d], d even, by angles in proportion to their place.

    A product of two of them then depends on how far apart their places are, and not on where.  `places` [context]: by
    default from 0 on.
    """
    context, half = vectors.shape[-2], vectors.shape[-1] // 2
    if places is None:
        places = torch.arange(context, device=vectors.device, dtype=torch.float32)
    speeds = BASE ** (-torch.arange(half, device=vectors.device, dtype=torch.float32) / half)
    angles = torch.outer(places.to(torch.float32), speeds)
    cos, sin = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
    first, second = vectors[..., :half], vectors[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
