"""Local training that hides each example: DP-SGD, in the loop of `module_engine`, with other batches and gradients.

    step    B  <-  each of the node's m examples with probability q = min(1, batch_size / m), on its own
            g_i  <-  gradient of example i of B        cut to `clip` where it is longer
            gradient  <-  (sum g_i + noise) / (q m)    noise: Gaussian, deviation `noise` * clip, on every element

The optimiser then does with it what it likes: momentum, weight decay, FedProx's pull and SCAFFOLD's c - c_i use nothing
of the examples but what earlier gradients, just as noisy, have given away.  SCAFFOLD's c_i is made of the node's own
released updates; it costs nothing.  A batch may be empty: that step is noise.  It is divided by q m, not by the size of
B, which would tell.  Buffers (running statistics) keep what they were: they would be seen without noise.  The loss is
not private and is not reported.

Gradients and noise are whole numbers (`secure.noise`) of units of clip / UNITS: each g_i is rounded towards zero and
the sum is exact, so no rounding makes one longer than `clip`, and the last bits of the result say nothing.  Of linear
layers the sum is one product, and is rounded as a whole: `cut_sums` says what that takes off the clip.  Floating point
sums and noise have been broken by last bits: Mironov, CCS 2012; Casacuberta et al., CCS 2022.

The account of one job: `steps` releases of noise multiplier `noise` at rate q; see `privacy.accounting`.  It takes m,
and what follows from it, as known.  A job that is trained again, from a checkpoint say, is another release.

Source: Abadi et al., Deep learning with differential privacy, CCS 2016, algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from fedgossip.learning.batches import Indices
from fedgossip.learning.factored import Factored, Factors
from fedgossip.learning.losses import Criterion
from fedgossip.learning.optimizers import square_root
from fedgossip.learning.per_example import check_apart, per_example, restore, trained
from fedgossip.learning.record_privacy import RecordPrivacy, private_rate
from fedgossip.learning.settings import TrainSettings
from fedgossip.secure.noise import discrete_gaussian
from fedgossip.secure.primitives import Entropy

UNITS = 1 << 20
"""In a clip."""

EXACT = 16
"""Gradients of at most UNITS each, that float32 adds up without rounding: 2^24 in all."""

BLOCK = 4096
"""Squares that float32 adds up: off by less than BLOCK * 2^-24 of their sum, in whatever order."""

MARGIN = 2.0**-12
"""Gradients are cut so much shorter than the clip, for a length may be 2^-13 too short and a product 2^-24 too long."""

FACTORED_MOST = 1 << 16
"""Examples whose gradients are added up as products of factors; of more, one by one."""

FACTORED_ROWS = 1 << 12
"""Of them in one pass."""

CHUNK_ELEMENTS = 1 << 22
"""Of gradients per example at a time: 16 MiB."""


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

    def fill(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Put the noisy gradient of these examples, none to all, into the .grad of each trained parameter."""
        sums = self._clipped_sums(x, y)
        if self._privacy.noise:
            self._add_noise(sums)
        for parameter, total in zip(self._trained, sums, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(total.mul_(self._unit / self._expected))

    def _add_noise(self, sums: Sequence[torch.Tensor]) -> None:
        assert self._entropy is not None, "a job begins with begin()"
        noise = torch.from_numpy(discrete_gaussian(self._privacy.noise * UNITS, self._elements, self._entropy))
        drawn = 0
        for total in sums:
            part = noise[drawn : drawn + total.numel()].view_as(total)
            total.add_(part.to(total.device))
            drawn += total.numel()

    def _clipped_sums(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """Return per parameter the sum of the cut gradients, whole numbers of units in float64."""
        if isinstance(self._way, Factored) and 0 < len(x) <= FACTORED_MOST:
            return self._factored_sums(self._way, x, y)
        sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in self._trained]
        kept = [buffer.clone() for buffer in self._module.buffers()]
        rows = max(1, CHUNK_ELEMENTS // self._elements)
        for start in range(0, len(x), rows):
            part = slice(start, start + rows)
            add_clipped(sums, self._way.gradients(x[part], y[part]), self._privacy.clip)
            restore(self._module, kept)
        return sums

    def _factored_sums(self, way: Factored, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """As `_clipped_sums`, of one example or more; no gradient is made, and the sums are rounded, not gradients."""
        total: list[torch.Tensor] = []
        for start in range(0, len(x), FACTORED_ROWS):
            part = slice(start, start + FACTORED_ROWS)
            found = cut_sums(way.factors(x[part], y[part]), self._privacy.clip, self._elements)
            total = [one.add_(more) for one, more in zip(total, found, strict=True)] if total else found
        return [one.round_() for one in total]


@torch.no_grad()
def cut_sums(layers: Sequence[Factors], clip: float, elements: int) -> list[torch.Tensor]:
    """Return per parameter the sum of gradients that are cut to less than `clip`, in units of it, not rounded.

    When such sums of FACTORED_MOST examples are added up and rounded, one example more, or less, moves the sum by what
    is left of its gradient, by 2^-53 FACTORED_MOST^2 clips where float64 rounds, and each of the elements by at most
    one unit more: gradients are cut shorter by that much.
    """
    norms = square_root(torch.stack([one.squares() for one in layers]).sum(0))
    bad = ~norms.isfinite()  # no example may do more than the clip, whatever it holds: such a one counts as zero
    if bool(bad.any()):
        layers = [
            Factors(one.errors.masked_fill(bad[:, None], 0), one.inputs.masked_fill(bad[:, None], 0), one.bias)
            for one in layers
        ]
        norms = norms.masked_fill(bad, 0)
    factor = (UNITS * (1 - MARGIN) - math.sqrt(elements) - 1) / norms.clamp(min=clip)
    return [total for one in layers for total in one.summed(factor)]


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
    squares = [_squares(one.flatten(1)) for one in apart]
    return square_root(torch.stack(squares).sum(0))


def _squares(flat: torch.Tensor) -> torch.Tensor:
    many = flat.shape[1] // BLOCK
    blocks = torch.linalg.vector_norm(flat[:, : many * BLOCK].reshape(len(flat), many, BLOCK), dim=2).double()
    rest = torch.linalg.vector_norm(flat[:, many * BLOCK :], dim=1).double()
    squares: torch.Tensor = blocks.square().sum(1) + rest.square()
    return squares
