"""Local training that hides each example: DP-SGD, in the loop of `module_engine`, with other batches and gradients.

    step    B  <-  each of the node's m examples with probability q = min(1, batch_size / m), on its own
            g_i  <-  gradient of example i of B        cut to `clip` where it is longer
            gradient  <-  (sum g_i + noise) / (q m)    noise: Gaussian, deviation `noise` * clip, on every element

The optimiser then does with it what it likes: momentum, weight decay, FedProx's pull and SCAFFOLD's c - c_i use nothing
of the examples but what earlier gradients, just as noisy, have given away.  SCAFFOLD's c_i is made of the node's own
released updates; it costs nothing.  A batch may be empty: that step is noise.  It is divided by q m, not by the size of
B, which would tell.  Buffers (running statistics) keep what they were: they would be seen without noise.  The loss is
not private and is not reported.

Sums and noise are whole numbers (`secure.noise`) of units of clip / UNITS, so that the last bits of the result say
nothing.  Where all layers are known (`layered`) sums are rounded, not gradients, and most layers have no gradient of an
example: `cut_sums` says what that takes off the clip.  Else each g_i is rounded towards zero and the sum is exact.
Neither way an example counts more than `clip`.  Floating point sums and noise have been broken by last bits: Mironov,
CCS 2012; Casacuberta et al., CCS 2022.

The account of one job: `steps` releases of noise multiplier `noise` at rate q; see `privacy.accounting`.  It takes m,
and what follows from it, as known.  A job that is trained again, from a checkpoint say, is another release.

Source: Abadi et al., Deep learning with differential privacy, CCS 2016, algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from fedgossip.learning.batches import Indices
from fedgossip.learning.layer_gradients import LayerGradients, parts, squares
from fedgossip.learning.layered import Layered
from fedgossip.learning.losses import Criterion
from fedgossip.learning.optimizers import square_root
from fedgossip.learning.per_example import check_apart, per_example, restore, trained
from fedgossip.learning.record_privacy import RecordPrivacy, private_rate
from fedgossip.learning.settings import TrainSettings
from fedgossip.secure.noise import fill_discrete_gaussian
from fedgossip.secure.primitives import Entropy

UNITS = 1 << 20
"""In a clip."""

EXACT = 16
"""Gradients of at most UNITS each, that float32 adds up without rounding: 2^24 in all."""

MARGIN = 2.0**-12
"""Gradients are cut so much shorter than the clip, for a length may be 2^-13 too short and a product 2^-24 too long."""

LAYERED_MOST = 1 << 16
"""Examples whose gradients are added up before they are rounded; of more, each is."""

LAYERED_ROWS = 1 << 12
"""Of them in one pass, at most."""

CHUNK_ELEMENTS = 1 << 22
"""Of gradients per example at a time: 16 MiB."""


Buffers = Sequence[torch.Tensor]


class PrivateGradients:
    """Fills the gradients of a module's parameters as above; one job at a time, after `begin`."""

    def __init__(
        self,
        module: nn.Module,
        privacy: RecordPrivacy,
        settings: TrainSettings,
        shares: Sequence[Indices] | Mapping[int, Indices],
        seed: int,
        criterion: Criterion | None = None,
    ) -> None:
        self._module, self._privacy, self._settings = module, privacy, settings
        self._shares, self._seed = shares, seed
        self._way = per_example(module, criterion)
        self._trained = trained(module)
        self._elements = sum(parameter.numel() for parameter in self._trained)
        self._unit = privacy.clip / UNITS
        self._noise: torch.Tensor | None = None
        self._total: torch.Tensor | None = None
        self._expected = 1.0
        self._entropy: Entropy | None = None

    def check(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Raise ConfigError where the model cannot be trained like this; `x`, `y`: some of its examples."""
        check_apart(self._module, self._way, x[:2], y[:2])

    def begin(self, node: int, round: int) -> None:
        """Open a job: its noise, and the size that its batches have on average."""
        examples = len(self._shares[node])
        self._expected = private_rate(self._settings, examples) * examples
        self._entropy = self._privacy.entropy_of(self._seed, "noise", node, round)

    @torch.no_grad()
    def fill(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Put the noisy gradient of these examples, none to all, into the .grad of each trained parameter.

        Where a part of the sum is made it is rounded, gets its noise and becomes a gradient, all in the cache.
        """
        noise, scale, start = self._noise_drawn(), self._unit / self._expected, 0
        for part, gradient in zip(self._clipped_sum(x, y), self._gradients(), strict=True):
            size = part.numel()
            part.round_()
            if noise is not None:
                part.add_(noise[start : start + size])
            gradient.copy_(part.mul_(scale))
            start += size

    def _gradients(self) -> Iterator[torch.Tensor]:
        """Yield the parameters' .grad in the parts in which the sum comes."""
        for parameter in self._trained:
            assert parameter.grad is not None
            yield from parts(parameter.grad)

    def _noise_drawn(self) -> torch.Tensor | None:
        """Return the noise of a step, whole numbers of units in float64, until the next call."""
        if not self._privacy.noise:
            return None
        assert self._entropy is not None, "a job begins with begin()"
        if self._noise is None:
            self._noise = torch.empty(self._elements, dtype=torch.float64)
        fill_discrete_gaussian(self._noise.numpy(), self._privacy.noise * UNITS, self._entropy)
        return self._noise.to(self._trained[0].device)

    def _clipped_sum(self, x: torch.Tensor, y: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the sum of the cut gradients in units, float64, flat, in parts as `LayerGradients.sums` does.

        To be rounded: it is of whole numbers already where gradients are taken one by one.
        """
        kept = [buffer.clone() for buffer in self._module.buffers()]
        way = self._way if isinstance(self._way, Layered) and len(x) <= LAYERED_MOST else None
        rows = LAYERED_ROWS if way is not None else self._rows(self._elements)
        if way is not None and 0 < len(x) <= min(rows, self._rows(way.elements)):
            yield from self._by_layers(way, x, y, kept)
            return
        if self._total is None:
            self._total = torch.empty(self._elements, dtype=torch.float64, device=self._trained[0].device)
        total, start = self._total.zero_(), 0
        while start < len(x):
            if way is not None:
                rows = min(LAYERED_ROWS, self._rows(way.elements))
            part = slice(start, start + rows)
            if way is None:
                self._one_by_one(x[part], y[part], kept)
            else:
                place = 0
                for found in self._by_layers(way, x[part], y[part], kept):
                    total[place : place + found.numel()].add_(found)
                    place += found.numel()
            start += rows
        for one in self._shaped(total):
            yield from parts(one)

    def _rows(self, elements: int) -> int:
        """Return how many examples to take at a time, where that many numbers are made of each."""
        return max(1, CHUNK_ELEMENTS // max(1, elements))

    def _by_layers(self, way: Layered, x: torch.Tensor, y: torch.Tensor, kept: Buffers) -> Iterator[torch.Tensor]:
        with torch.enable_grad():
            layers = way.by_layer(x, y)
        restore(self._module, kept)
        yield from cut_sums(layers, self._privacy.clip, self._elements)

    def _one_by_one(self, x: torch.Tensor, y: torch.Tensor, kept: Buffers) -> None:
        assert self._total is not None
        with torch.enable_grad():
            apart = self._way.gradients(x, y)
        restore(self._module, kept)
        add_clipped(self._shaped(self._total), apart, self._privacy.clip)

    def _shaped(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return a flat tensor of all parameters as one of the shape of each."""
        each = flat.split([parameter.numel() for parameter in self._trained])  # type: ignore[no-untyped-call]
        return [one.view(parameter.shape) for one, parameter in zip(each, self._trained, strict=True)]


def cut_sums(layers: Sequence[LayerGradients], clip: float, elements: int) -> Iterator[torch.Tensor]:
    """Yield the sum of gradients that are cut to less than `clip`, in units of it, not rounded, as `_clipped_sum`.

    When such sums of LAYERED_MOST examples are added up and rounded, one example more, or less, moves the sum by what
    is left of its gradient, by 2^-53 LAYERED_MOST^2 clips where float64 rounds, and each of the `elements` by at most
    one unit more: gradients are cut shorter by that much.
    """
    norms = square_root(torch.stack([one.squares() for one in layers]).sum(0))
    bad = ~norms.isfinite()  # no example may do more than the clip, whatever it holds: such a one counts as zero
    if bool(bad.any()):
        layers = [one.without(bad) for one in layers]
        norms = norms.masked_fill(bad, 0)
    weights = (UNITS * (1 - MARGIN) - math.sqrt(elements) - 1) / norms.clamp(min=clip)
    for one in layers:
        yield from one.sums(weights)


@torch.no_grad()
def add_clipped(sums: Sequence[torch.Tensor], apart: Sequence[torch.Tensor], clip: float) -> None:
    """Add gradients [b, *shape] to the sums, each cut to `clip`, in whole units of it; `apart` is used up."""
    norms = lengths(apart)
    if not bool(norms.isfinite().all()):
        # no example may do more than the clip, whatever it holds: what is not finite counts as zero
        apart = [torch.nan_to_num(one, nan=0.0, posinf=0.0, neginf=0.0) for one in apart]
        norms = lengths(apart)
    factor = (UNITS * (1 - MARGIN) / norms.clamp(min=clip)).float()
    for total, one in zip(sums, apart, strict=True):
        one.mul_(factor.view(-1, *[1] * (one.dim() - 1))).trunc_()
        for part in one.split(EXACT):  # type: ignore[no-untyped-call]
            total.add_(part.sum(0))


def lengths(apart: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norms [b] of gradients [b, *shape] in all parameters; inf where a square is too large."""
    return square_root(torch.stack([squares(one.reshape(len(one), -1)) for one in apart]).sum(0))
