"""Local training that hides each example: DP-SGD, in the loop of `module_engine`, with other batches and gradients.

    step    B  <-  each of the node's m examples with probability q = min(1, batch_size / m), independently
            g_i  <-  gradient of example i of B        clipped to length `clip`
            gradient  <-  (sum g_i + noise) / (q m)    noise: Gaussian, deviation `noise` * clip, on every element

Post-processing is free: momentum, weight decay, FedProx's pull and SCAFFOLD's c - c_i use the examples only through
noisy gradients.  A batch may be empty: that step is noise.  The divisor is q m, not the size of B, which would disclose
it.  Buffers (running statistics) stay unchanged: they would be released without noise.  The loss is not private and is
not reported.

Sums and noise are whole units of clip / UNITS (`secure.noise`), because the last bits of floating point have broken
such noise: Mironov, CCS 2012; Casacuberta et al., CCS 2022.  With known layers (`layer_gradients`) sums are rounded,
not gradients (`cut` states the deduction from the clip); else each g_i is rounded towards zero.  In both cases an
example counts at most `clip`.

The account of one job: `steps` releases of noise multiplier `noise` at rate q (`privacy.accounting`), with m public.  A
repeated job is another release.

Source: Abadi et al., Deep learning with differential privacy, CCS 2016, algorithm 1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, reduce
from typing import Any, Protocol

import torch
from torch import nn

from fedgossip.base.errors import ConfigError, needed
from fedgossip.data.objectives import Objective
from fedgossip.learning.dp_sgd.layer_gradients import Layered, LayerGradients, find_layers, parts, squares
from fedgossip.learning.dp_sgd.record_privacy import RecordPrivacy, private_rate
from fedgossip.learning.models import models
from fedgossip.learning.one_model.batches import Indices
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.one_model.optimizers import square_root
from fedgossip.learning.settings import TrainSettings
from fedgossip.secure.noise import SINGLE_MOST, DiscreteGaussian

# Whether float32 matrix products round as float32: settings may silently allow shorter numbers.
#
# If so, each element's error is at most n / (2^24 - n) of the sum of its n products' magnitudes, in any order (Higham,
# Accuracy and stability of numerical algorithms, 2002, section 3.1).  `private` relies on this.


ROWS, WIDTH = 128, 192
"""Size of the matrices in the test product."""

UNSET = ("none", "ieee")
"""Values of torch's backend settings that do not allow shorter numbers."""


def are_float32(device: torch.device) -> bool:
    """Return whether a device's products are known to round as float32: CPUs with a random product that close to
    float64's.
    """
    return device.type == "cpu" and _nothing_shorter() and _as_near()


def _nothing_shorter() -> bool:
    try:
        set_so = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch does not report it if the newer settings were used
        set_so = False
    backends = (torch.backends, torch.backends.mkldnn, getattr(torch.backends.mkldnn, "matmul", None))
    newer = all(getattr(one, "fp32_precision", "none") in UNSET for one in backends)
    return set_so and newer and bool(torch.tensor(1e-40) * 1 > 0)


@lru_cache(maxsize=1)
def _as_near() -> bool:
    """Return whether products are exact enough: bfloat16 errs by 2^-9, TF32 by 2^-12."""
    drawn = torch.Generator().manual_seed(0)
    a, b = (torch.randn(ROWS, WIDTH, generator=drawn) for _ in range(2))
    off = (torch.mm(a.T, b).double() - torch.mm(a.double().T, b.double())).abs()
    most = torch.mm(a.double().T.abs(), b.double().abs()) * (ROWS / (2**24 - ROWS))
    return bool((off <= most).all())


UNITS = 1 << 20
"""Units per clip."""

EXACT = 16
"""Number of gradients of at most UNITS each with an exact float32 sum: 2^24 in all."""

MARGIN = 2.0**-12
"""Share by which gradients are clipped below the clip: a length may be 2^-13 too short and a product 2^-24 too long."""

SINGLE_ROWS = 128
"""Maximum number of examples in a float32 sum."""

LAYERED_MARGIN = MARGIN + 2 * SINGLE_ROWS**2 * 2.0**-24
"""The same if sums are rounded, 0.22 %: see `cut`.  It does not depend on the number of examples."""

LAYERED_MOST = 1 << 16
"""Maximum number of gradients summed before rounding; with average batches above half of it, each gradient is rounded.
"""

LAYERED_ROWS = 1 << 12
"""Maximum number of examples in one pass."""

CHUNK_ELEMENTS = 1 << 22
"""Number of per-example gradient elements processed at a time: 16 MiB."""


class PrivateGradients:
    """Fills the gradients of a module's parameters as in the module's docstring; one job at a time, after `begin`."""

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
        self._buffered = any(True for _ in module.buffers())
        self._gaussian: DiscreteGaussian | None = None
        self._noise: torch.Tensor | None = None
        self._total: torch.Tensor | None = None
        self._expected = 1.0

    def check(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Raise ConfigError for a model that does not support this training; `x`, `y`: some of its examples."""
        if models.has_terms(self._module):
            text = "exits or experts in a model where single records are private: its loss has other terms than theirs"
            raise ConfigError(text, 'Leave exit= or experts= out of model.source, or set privacy.unit = "client".')
        check_apart(self._module, self._way, x[:2], y[:2])

    def begin(self, node: int, round: int) -> None:
        """Open a job: its noise, and the expected size of its batches."""
        examples = len(self._shares[node])
        self._expected = private_rate(self._settings, examples) * examples
        if self._privacy.noise:
            entropy = self._privacy.entropy_of(self._seed, "noise", node, round)
            self._gaussian = DiscreteGaussian(self._privacy.noise * UNITS, entropy)

    @torch.no_grad()
    def fill(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Write the noisy gradient of these examples, none to all, to the .grad of each trained parameter.

        Sums and noise are exact in their types.  The gradient depends only on their sum, and does not disclose the
        types, which depend on the batch's size.
        """
        noise, scale, start = self._noise_drawn(), self._unit / self._expected, 0
        for part, gradient in self._summed(x, y):
            found = part.round_()
            if noise is not None:
                some = noise[start : start + part.numel()]
                found = found.add_(some) if found.dtype == some.dtype else some.add(found)
                start += part.numel()
            torch.mul(found.float(), scale, out=gradient)  # rounded once, in either type

    def _summed(self, x: torch.Tensor, y: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the sum of the clipped gradients in parts, each with its gradient's part."""
        way = self._layers
        if way is None or not 0 < len(x) <= min(SINGLE_ROWS, self._rows(way.elements)) or not are_float32(x.device):
            yield from zip(self._clipped_sum(x, y), self._gradients(), strict=True)
            return
        layers, weights = cut(self._compute_by_layer(way, x, y), self._privacy.clip, self._elements)
        for layer, parameters in zip(layers, way.parameters, strict=True):
            for part in layer.single_sums(weights, [gradient_of(parameter) for parameter in parameters]):
                yield part, part

    def _gradients(self) -> Iterator[torch.Tensor]:
        for parameter in self._trained:
            yield from parts(gradient_of(parameter))

    def _noise_drawn(self) -> torch.Tensor | None:
        """Return a step's noise, whole units in float32 or float64, valid until the next call."""
        if not self._privacy.noise:
            return None
        assert self._gaussian is not None, "a job begins with begin()"
        if self._noise is None:
            short = self._privacy.noise * UNITS <= SINGLE_MOST
            self._noise = torch.empty(self._elements, dtype=torch.float32 if short else torch.float64)
        noise = self._noise
        if far := self._gaussian.fill(noise.numpy()):
            noise = noise.double()
            noise[list(far)] = torch.tensor(list(far.values()), dtype=torch.float64)
        return noise.to(self._trained[0].device)

    def _clipped_sum(self, x: torch.Tensor, y: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the sum of the clipped gradients in units, float64, flat; the caller rounds it."""
        way = self._layers
        rows = LAYERED_ROWS if way is not None else self._rows(self._elements)
        if way is not None and 0 < len(x) <= min(rows, self._rows(way.elements)):
            yield from cut_sums(self._compute_by_layer(way, x, y), self._privacy.clip, self._elements)
            return
        if self._total is None:
            self._total = torch.empty(self._elements, dtype=torch.float64, device=self._trained[0].device)
        total, start = self._total.zero_(), 0
        while start < len(x):
            if way is not None:
                rows = min(LAYERED_ROWS, self._rows(way.elements))
            part = slice(start, start + rows)
            if way is None:
                self._one_by_one(x[part], y[part])
            else:
                place = 0
                for found in cut_sums(
                    self._compute_by_layer(way, x[part], y[part]), self._privacy.clip, self._elements
                ):
                    total[place : place + found.numel()].add_(found)
                    place += found.numel()
            start += rows
        for one in self._shaped(total):
            yield from parts(one)

    @property
    def _layers(self) -> Layered | None:
        """Return the layered method, or None if a batch could exceed LAYERED_MOST.  Only public facts decide, because
        the two methods round differently.
        """
        return self._way if isinstance(self._way, Layered) and 2 * self._expected <= LAYERED_MOST else None

    def _rows(self, elements: int) -> int:
        return max(1, CHUNK_ELEMENTS // max(1, elements))

    def _compute_by_layer(self, way: Layered, x: torch.Tensor, y: torch.Tensor) -> list[LayerGradients]:
        with torch.enable_grad(), self._keep_buffers():
            return way.compute_by_layer(x, y)

    def _one_by_one(self, x: torch.Tensor, y: torch.Tensor) -> None:
        assert self._total is not None
        with torch.enable_grad(), self._keep_buffers():
            apart = self._way.gradients(x, y)
        add_clipped(self._shaped(self._total), apart, self._privacy.clip)

    @contextmanager
    def _keep_buffers(self) -> Iterator[None]:
        kept = [buffer.clone() for buffer in self._module.buffers()] if self._buffered else []
        yield
        if kept:
            with torch.no_grad():
                restore(self._module, kept)

    def _shaped(self, flat: torch.Tensor) -> list[torch.Tensor]:
        each = flat.split([parameter.numel() for parameter in self._trained])  # type: ignore[no-untyped-call]
        return [one.view(parameter.shape) for one, parameter in zip(each, self._trained, strict=True)]


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    """Return a parameter's .grad, which must exist."""
    assert parameter.grad is not None
    return parameter.grad


def cut_sums(layers: Sequence[LayerGradients], clip: float, elements: int) -> Iterator[torch.Tensor]:
    """Yield the sum of gradients clipped below `clip`, in its units, unrounded, as `_clipped_sum`."""
    layers, weights = cut(layers, clip, elements)
    for one in layers:
        yield from one.sums(weights)


def cut(layers: Sequence[LayerGradients], clip: float, elements: int) -> tuple[Sequence[LayerGradients], torch.Tensor]:
    """Return gradients and their weights [b], float64, which limit their lengths to the clip, in units, less a margin.

    One example moves the rounded sum by its clipped gradient, by at most one unit in each of the `elements`, and by the
    errors of the sums with and without it: of b examples in float32 b / (2^24 - b) of their lengths' sum, 2^-24
    SINGLE_ROWS^2 clips; in float64 2^-53 LAYERED_MOST^2.  The rest of MARGIN covers the rounding of a weighted factor,
    or of a float64 sum to float32.
    """
    norms = square_root(reduce(torch.add, (one.squares() for one in layers)))
    if not math.isfinite(float(norms.sum())):
        bad = ~norms.isfinite()  # whatever an example contains, it counts at most the clip
        layers = [one.without(bad) for one in layers]
        norms = norms.masked_fill(bad, 0)
    longest = UNITS * (1 - LAYERED_MARGIN) - math.sqrt(elements) - 1
    return layers, longest / norms.clamp(min=clip)


@torch.no_grad()
def add_clipped(sums: Sequence[torch.Tensor], apart: Sequence[torch.Tensor], clip: float) -> None:
    """Add gradients [b, *shape] to the sums, each clipped to `clip`, in whole units of it; `apart` is overwritten."""
    norms = lengths(apart)
    if not bool(norms.isfinite().all()):
        # an example counts at most the clip, regardless of its content: a gradient that is not finite counts as zero
        apart = [torch.nan_to_num(one, nan=0.0, posinf=0.0, neginf=0.0) for one in apart]
        norms = lengths(apart)
    factor = (UNITS * (1 - MARGIN) / norms.clamp(min=clip)).float()
    for total, one in zip(sums, apart, strict=True):
        one.mul_(factor.view(-1, *[1] * (one.dim() - 1))).trunc_()
        for part in one.split(EXACT):  # type: ignore[no-untyped-call]
            total.add_(part.sum(0))


def lengths(apart: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norms [b] of gradients [b, *shape] over all parameters; inf if a square overflows."""
    return square_root(torch.stack([squares(one.reshape(len(one), -1)) for one in apart]).sum(0))


# The separate gradient of each example, for a whole batch at once: by formulas if they cover all layers
# (`layer_gradients`), else by opacus's hooks on every layer, or example by example.
#
# An example's result must not depend on the others of its batch, or its gradient would include theirs.  BatchNorm is
# refused by name, and any other mixing by comparing two examples together and separately.  The gradients are checked
# too: they must add up to the batch's gradient, and equal those of each example alone.
#
# Source: Yousefpour et al., Opacus: user-friendly differential privacy library in PyTorch, 2021.


TOLERANCE = 1e-3
"""Tolerance of the comparisons with two examples, relative to the largest element; float32 rounds to about 1e-6."""

ONE_BY_ONE = (nn.RNNBase, nn.MultiheadAttention, nn.EmbeddingBag)
"""Layers without batched per-example gradients in torch."""


class PerExample(Protocol):
    criterion: Criterion

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """Return [b, *shape] per trained parameter, in their order, for b >= 1 examples; the module is in training
        mode.
        """


def per_example(module: nn.Module, criterion: Criterion | None = None) -> PerExample:
    """Return a method for the module's layers and a loss; cross-entropy by default.

    Raises ConfigError for BatchNorm, and if opacus is needed and not installed.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"{name or 'the model'} is {type(part).__name__}: it mixes the examples of a batch, so that none of "
                "them can be hidden",
                "Use torch.nn.GroupNorm, which normalises each example alone, or privacy for whole clients.",
            )
    if any(isinstance(part, ONE_BY_ONE) for part in module.modules()):
        return Alone(module, criterion)
    if layers := find_layers(module):
        return Layered(module, layers, criterion)
    return Hooked(module, criterion)


class Hooked:
    """Uses opacus: its formulas for known layers, functorch for others."""

    def __init__(self, module: nn.Module, criterion: Criterion | None = None) -> None:
        self._trained, self.criterion = trained(module), criterion or Criterion(Objective())
        try:
            self._wrapped = _grad_sample_module()(module, loss_reduction="sum", strict=False)
        except NotImplementedError as error:
            raise ConfigError(
                f"the model has a layer without gradients per example: {error}", "Put it together from torch's layers."
            ) from error

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        for parameter in self._trained:
            parameter.grad_sample = None  # type: ignore[attr-defined]
        loss = self.criterion.summed(self._wrapped(x), y)
        with warnings.catch_warnings():  # of hooks on a layer whose input has no gradient: it needs none
            warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
            loss.backward()  # type: ignore[no-untyped-call]
        return [self._take(parameter, len(x)) for parameter in self._trained]

    @contextmanager
    def unhooked(self) -> Iterator[None]:
        """Disable the hooks for passes outside `gradients`."""
        self._wrapped.disable_hooks()
        try:
            with warnings.catch_warnings():  # as above
                warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
                yield
        finally:
            self._wrapped.enable_hooks()

    def _take(self, parameter: nn.Parameter, examples: int) -> torch.Tensor:
        found: torch.Tensor | None = parameter.grad_sample  # type: ignore[attr-defined]
        parameter.grad_sample = None  # type: ignore[attr-defined]
        return parameter.new_zeros((examples, *parameter.shape)) if found is None else found


class Alone:
    """A separate forward and backward pass for every example."""

    def __init__(self, module: nn.Module, criterion: Criterion | None = None) -> None:
        self._module, self._trained = module, trained(module)
        self.criterion = criterion or Criterion(Objective())

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        each = [self.sum_batch(x[k : k + 1], y[k : k + 1]) for k in range(len(x))]
        return [torch.stack(column) for column in zip(*each, strict=True)]

    def sum_batch(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the sum of the examples' gradients."""
        loss = self.criterion.summed(self._module(x), y)
        found = torch.autograd.grad(loss, self._trained, allow_unused=True)
        return tuple(torch.zeros_like(p) if g is None else g for p, g in zip(self._trained, found, strict=True))


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def check_apart(module: nn.Module, way: PerExample, x: torch.Tensor, y: torch.Tensor) -> None:
    """Raise ConfigError if the model mixes examples, or their gradients do not add up; restores its buffers.

    `x`, `y`: two examples, or one.
    """
    kept = [buffer.clone() for buffer in module.buffers()]
    with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        if _mixes(module.eval(), x) or _mixes(module.train(), x):
            raise ConfigError(
                "the model's output for an example depends on the other examples of its batch: none can be hidden",
                "Normalise each example alone (GroupNorm, LayerNorm), or use privacy for whole clients.",
            )
        if wrong := _not_their_own(module, way, x, y):
            raise ConfigError(
                f"the gradients of single examples {wrong}: how a layer is used is not known",
                "Use a parameter in the layer that owns it, one input per layer with the batch first; or torch's own "
                "layers.",
            )
    restore(module, kept)


def restore(module: nn.Module, kept: Sequence[torch.Tensor]) -> None:
    """Restore the module's buffers."""
    for buffer, before in zip(module.buffers(), kept, strict=True):
        buffer.copy_(before)


@torch.no_grad()
def _mixes(module: nn.Module, x: torch.Tensor) -> bool:
    together = module(x)
    if not torch.equal(together, module(x)):
        return False  # dropout: results are not comparable
    return not _near(module(x[:1])[0], together[0])


def _not_their_own(module: nn.Module, way: PerExample, x: torch.Tensor, y: torch.Tensor) -> str:
    if isinstance(way, Alone):
        return ""
    with torch.random.fork_rng():
        apart = way.gradients(x, y)
    if any(len(one) != len(x) for one in apart):
        return "are not as many as the examples"
    alone = Alone(module, way.criterion)
    with way.unhooked() if isinstance(way, Hooked) else nullcontext():
        with torch.random.fork_rng():
            together = alone.sum_batch(x, y)
        if not _near(*(_line(parts) for parts in ([one.sum(0) for one in apart], together))):
            return "do not add up to that of the batch"
        with torch.no_grad():
            repeats = torch.equal(module(x), module(x))  # without dropout
        if repeats and not _near(_line(apart), _line(alone.gradients(x, y))):
            return "are not those of each of them alone"
    return ""


def _line(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([one.reshape(-1) for one in parts])


def _near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    largest = max(float(expected.abs().max()), float(found.abs().max()), 1e-12)
    return float((found - expected).abs().max()) <= TOLERANCE * largest


def _grad_sample_module() -> Any:
    return needed("opacus.grad_sample", "privacy", "differential privacy in training").GradSampleModule
