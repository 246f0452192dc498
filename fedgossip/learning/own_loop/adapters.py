"""Adapters of low rank (LoRA: W + scaling B A, A [r, in], B [out, r]) in a user's module; mean(B) mean(A) is not
mean(BA).

    lora:ffa      A keeps its initial value and only B is exchanged: mean(B) A = mean(BA).  FFA-LoRA, Sun et al., ICLR
                  2024
    lora:both     A and B are exchanged and averaged separately, as without a form
    lora:product  scaling BA is exchanged, [out, in] per layer; each participant reduces the mean to its rank by an SVD.
                  FlexLoRA, Bai et al., NeurIPS 2024
    lora:stack    scaling BA is exchanged too; each participant adds the whole mean to the layer's frozen weight, and A
                  and B start again.  The mean of FLoRA, Wang et al., NeurIPS 2024, which sends the factors stacked

Each participant does this itself, so the result is the same under a secure sum and over gossip.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from fedgossip.algorithms.federated.adapter_distance import half_of, other_half, product_name
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, add, empty, frozen
from fedgossip.learning.one_model.flat import FFA, PRODUCT, STACK, Layout
from fedgossip.learning.own_loop.parameters import Exchanged

SMALLEST = 1e-7
"""Singular values below this share of the largest are rounding errors: their rows of A are kept, and train further."""


@dataclass(frozen=True)
class _Factors:
    """The indices of A and B in the exchanged tensors, and the factor of their product."""

    a: int
    b: int
    scaling: float


def prepare(module: nn.Module, form: str) -> None:
    """Check all training adapters of `module`, and freeze A for lora:ffa.

    Raises ConfigError if none trains, for an A without its B, a rank above its layer's sides, and a zero A, with which
    B does not train (lora:ffa, lora:stack).
    """
    named = dict(module.named_parameters())
    found = [name for name, p in named.items() if p.requires_grad and half_of(name)]
    if not any(half_of(name) == "b" for name in found):
        known = ", ".join([name for name, p in named.items() if p.requires_grad][:20])
        raise ConfigError(
            f"exchange = {form!r}: no B of an adapter trains", f"Names have lora_A and lora_B; there are: {known}."
        )
    for name in found:
        other = named.get(other_half(name))
        if other is None:
            text = f"exchange = {form!r}: {name!r} has no {other_half(name)!r}"
            raise ConfigError(text, "An adapter is two matrices, lora_A [r, in] and lora_B [out, r].")
        a, b = (other, named[name]) if half_of(name) == "b" else (named[name], other)
        _check(name, a, b, form)
    if form == FFA:
        for name in found:
            if half_of(name) == "a":
                named[name].requires_grad_(False)
                named[name].grad = None  # an optimizer steps by a gradient that is still there


def _check(name: str, a: torch.Tensor, b: torch.Tensor, form: str) -> None:
    if a.dim() < 2 or b.dim() < 2 or a.shape[0] != b.shape[1]:
        text = f"exchange = {form!r}: {name!r}: A is {list(a.shape)} and B is {list(b.shape)}"
        raise ConfigError(text, "A is [r, in] and B is [out, r], with one rank r.")
    rank, sides = a.shape[0], (b.shape[0], math.prod(a.shape[1:]))
    if rank > min(sides):
        text = f"exchange = {form!r}: {name!r} has rank {rank}, above its layer of {sides[0]} x {sides[1]}"
        raise ConfigError(text, f"Choose a rank of at most {min(sides)}, or train the layer itself.")
    if form in (FFA, STACK) and not bool(a.detach().any()):
        text = f"exchange = {form!r}: the A of {name!r} is zero, so that B would learn nothing"
        raise ConfigError(text, "Start A at random and B at zero, as LoRA does.")


class AdapterProducts(Exchanged):
    """The exchanged tensors of `module`, with scaling BA in place of the A and the B of each adapter.

    `read` multiplies; `write` reduces each product to the module's rank.  `kept`: share of energy, 0 to 1, after the
    last reduction, or None.
    """

    form: ClassVar[str] = PRODUCT

    def __init__(self, module: nn.Module, only: Sequence[str] = (), buffers: str = "average") -> None:
        self._inner = inner = Exchanged(module, only, buffers)
        self.module, self.exact = module, True
        self.kept: float | None = None
        names, tensors = inner.layout.names, inner.tensors()
        self._pairs: dict[int, _Factors] = {}
        gone = set()
        for place, name in enumerate(names):
            if half_of(name) != "b":
                continue
            if other_half(name) not in names:
                text = f"exchange = {self.form!r}: {name!r} travels and {other_half(name)!r} does not"
                raise ConfigError(text, "Let both train, and let patterns match both.")
            a = names.index(other_half(name))
            self._pairs[place] = _Factors(a, place, _scaling(module, inner.path(place), self.form))
            gone.add(a)
        self._places = [place for place in range(len(names)) if place not in gone]
        shapes = tuple(self._shape(place, tensors) for place in self._places)
        own = tuple(product_name(names[place]) if place in self._pairs else names[place] for place in self._places)
        plain = [
            place for place in self._places if place not in self._pairs and isinstance(tensors[place], nn.Parameter)
        ]
        trained = sum(tensors[place].numel() for place in plain)
        trained += sum(math.prod(self._shape(place, tensors)) for place in self._pairs)
        kinds = inner.layout.types
        types = tuple(kinds[place] for place in self._places) if kinds else ()
        self.layout = Layout(own, shapes, trained, inner.layout.kind, types)

    def _shape(self, place: int, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        pair = self._pairs.get(place)
        if pair is None:
            return tuple(tensors[place].shape)
        return tensors[pair.b].shape[0], math.prod(tensors[pair.a].shape[1:])

    def check_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._inner.check_optimizers(optimizers)

    def check_complete(self) -> None:
        self._inner.check_complete()

    def tensors(self) -> list[torch.Tensor]:
        return self._inner.tensors()

    def parts_of(self, vector: Vector) -> list[torch.Tensor]:  # noqa: ARG002
        """Raise ConfigError: a term of a product is no term of its factors."""
        what = "the algorithm adds terms to gradients, and has none for the factors of a product"
        advice = f"Take fedavg or a server of it (fedavgm, fedadam), or exchange = {FFA!r}."
        raise ConfigError(f"exchange = {self.form!r}: {what}", advice)

    def read(self) -> Vector:
        """Return the products and the other tensors as a new frozen vector."""
        held = self._inner.parts_of(self._inner.read())
        vector = empty(self.layout.length, self.layout.dtype)
        flat = torch.from_numpy(vector)
        for place, (_, where, shape) in zip(self._places, self.layout.places(), strict=True):
            pair = self._pairs.get(place)
            flat[where].view(shape).copy_(
                held[place] if pair is None else _product(held[pair.a], held[pair.b], pair.scaling)
            )
        return frozen(vector)

    def write(self, vector: Vector) -> None:
        """Copy the vector into the tensors; for each product its nearest matrix of the module's rank."""
        held = self._inner.parts_of(self._inner.read())
        given = torch.from_numpy(vector.copy())
        kept = whole = 0.0
        for place, (_, where, shape) in zip(self._places, self.layout.places(), strict=True):
            part, pair = given[where].view(shape), self._pairs.get(place)
            if pair is None:
                held[place] = part
                continue
            held[pair.a], held[pair.b], energy = _cut(part, held[pair.a], held[pair.b], pair.scaling)
            kept, whole = kept + energy[0], whole + energy[1]
        self.kept = kept / whole if whole else 1.0
        self._write_inner(held, given.dtype)

    def _write_inner(self, held: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
        flat = torch.cat([one.reshape(-1).to(device="cpu", dtype=dtype) for one in held])
        self._inner.write(frozen(flat.numpy()))

    def add(self, difference: Vector) -> None:
        """Add the vector to the products and the other tensors, and reduce the rank as `write` does."""
        self.write(add(self.read(), difference))

    def snapshot(self) -> Vector:
        return self._inner.read()

    def restore(self, kept: Vector) -> None:
        self._inner.write(kept)

    def facts(self) -> Mapping[str, float]:
        return {} if self.kept is None else {"kept_energy": self.kept}


class MergedProducts(AdapterProducts):
    """As `AdapterProducts`, of any rank: `write` adds each product to the frozen weight W of its layer.

        write(P)   W = W0 + P, A = A0, B = 0: W0, A0 are those at the join
        read()     P + scaling BA

    Memory: two more copies of each such weight.  A saved adapter alone has nothing of P; save the whole model.
    """

    form: ClassVar[str] = STACK

    def __init__(self, module: nn.Module, only: Sequence[str] = (), buffers: str = "average") -> None:
        super().__init__(module, only, buffers)
        held = self._inner.tensors()
        self._bases = {
            place: _base_of(module, self._inner.path(place), self._shape(place, held)) for place in self._pairs
        }
        self._first = {place: (base.detach().clone(), held[self._pairs[place].a].detach().clone())
                       for place, (base, _) in self._bases.items()}  # fmt: skip
        kind = torch.from_numpy(empty(0, self.layout.dtype)).dtype
        self._merged = {place: torch.zeros(self._shape(place, held), dtype=kind) for place in self._pairs}

    def read(self) -> Vector:
        vector = super().read().copy()
        for place, where in self._product_places():
            part = torch.from_numpy(vector)[where].view(self._merged[place].shape)
            part.add_(self._merged[place])
        return frozen(vector)

    @torch.no_grad()
    def write(self, vector: Vector) -> None:
        held, given = self._inner.parts_of(self._inner.read()), torch.from_numpy(vector.copy())
        for place, (_, where, shape) in zip(self._places, self.layout.places(), strict=True):
            if place not in self._pairs:
                held[place] = given[where].view(shape)
        for place, where in self._product_places():
            held[self._pairs[place].a], held[place] = self._first[place][1], torch.zeros_like(held[place])
            self._merge(place, given[where].view(self._merged[place].shape))
        self._write_inner(held, given.dtype)

    def snapshot(self) -> Vector:
        return frozen(np.concatenate([self._inner.read(), *(one.numpy().reshape(-1) for one in self._merged.values())]))

    @torch.no_grad()
    def restore(self, kept: Vector) -> None:
        start = self._inner.layout.length
        self._inner.write(frozen(kept[:start].copy()))
        for place, merged in self._merged.items():
            stop = start + merged.numel()
            self._merge(place, torch.from_numpy(kept[start:stop].copy()).view(merged.shape))
            start = stop

    def _product_places(self) -> list[tuple[int, slice]]:
        both = zip(self._places, self.layout.places(), strict=True)
        return [(place, where) for place, (_, where, _) in both if place in self._pairs]

    def _merge(self, place: int, product: torch.Tensor) -> None:
        (base, turned), (first, _) = self._bases[place], self._first[place]
        self._merged[place].copy_(product)
        added = product.T if turned else product
        base.copy_(first + added.reshape(base.shape).to(base.device))


def _base_of(module: nn.Module, path: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, bool]:
    """Return the frozen weight beside an adapter, and whether it is the transpose of the product [out, in]."""
    layer = _layer_of(module, path)
    inner = next((getattr(layer, one) for one in ("base_layer", "base", "linear") if hasattr(layer, one)), layer)
    base, where = getattr(inner, "weight", None), f"exchange = {STACK!r}: {path!r}"
    advice = f"Take {PRODUCT!r}, which keeps the mean in the adapters."
    if not isinstance(base, nn.Parameter) or not base.is_floating_point() or base.numel() != math.prod(shape):
        raise ConfigError(f"{where} has no weight of {shape[0]} x {shape[1]} floating numbers beside it", advice)
    names = [name for name, one in module.named_parameters(remove_duplicate=False) if one is base]
    if base.requires_grad or len(names) > 1:
        what = "trains itself" if base.requires_grad else f"is shared: {', '.join(names)}"
        raise ConfigError(f"{where}: the weight beside it {what}", advice)
    turned = "lora_embedding" in path or bool(getattr(layer, "fan_in_fan_out", False))
    return base, turned


def _product(a: torch.Tensor, b: torch.Tensor, scaling: float) -> torch.Tensor:
    """Return scaling B A, [out, in], in float64: one rounding per element."""
    return scaling * (b.double().flatten(1) @ a.double().flatten(1))


def _cut(
    whole: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scaling: float
) -> tuple[torch.Tensor, torch.Tensor, tuple[float, float]]:
    left, values, right = torch.linalg.svd(whole.double() / scaling, full_matrices=False)
    rank = a.shape[0]
    used = int((values[:rank] > SMALLEST * values[0]).sum()) if bool(values[0] > 0) else 0
    root = values[:used].sqrt()
    new_a, new_b = a.double().flatten(1).clone(), torch.zeros(b.shape[0], rank, dtype=torch.float64)
    new_a[:used] = root[:, None] * right[:used]
    new_b[:, :used] = left[:, :used] * root
    energy = values.square()
    return new_a.view(a.shape), new_b.view(b.shape), (float(energy[:used].sum()), float(energy.sum()))


def _layer_of(module: nn.Module, path: str) -> nn.Module:
    """Return the layer that holds the adapter with this matrix."""
    words = path.split(".")
    return module.get_submodule(".".join(words[: next(at for at, word in enumerate(words) if half_of(word))]))


def _scaling(module: nn.Module, path: str, form: str) -> float:
    found: Any = getattr(_layer_of(module, path), "scaling", 1.0)
    if isinstance(found, Mapping):
        found = next((found[word] for word in reversed(path.split(".")) if word in found), 1.0)
    if not isinstance(found, int | float) or not math.isfinite(found) or not found:
        text = f"exchange = {form!r}: the scaling of {path!r} is {found!r}"
        raise ConfigError(text, "Give its layer a scaling that is a number other than zero.")
    return float(found)
