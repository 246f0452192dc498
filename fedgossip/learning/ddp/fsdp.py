"""A module in parts: each process of a team holds about 1/P of every tensor, for models that do not fit one GPU.

torch's FSDP2 (`fully_shard`) brings the parts of a layer together just before it computes, and lets them go after it;
gradients come back in parts.  A part is some first rows of a tensor, then the next, in order of the ranks (as
torch.chunk divides), so it is one stretch of the vector, and each process reads and writes its own stretches alone: the
whole vector exists in host memory only.
Source: Zhao et al., PyTorch FSDP: experiences on scaling fully sharded data parallel, VLDB 2023.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fedgossip.learning.ddp.group import Team
from fedgossip.learning.flat import Layout
from fedgossip.learning.places import Line, Place
from fedgossip.vectors import Vector

CONTAINERS = (nn.Sequential, nn.ModuleList)


def shard(module: nn.Module, team: Team, device: torch.device) -> None:
    """Divide the module's parameters: each element of a list of layers comes together by itself, then the rest."""
    mesh = init_device_mesh(device.type, (team.size,))
    for layer in list(_layers(module)):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    # True also for the outermost: else it would stay whole after an evaluation, and not see the next vector
    fully_shard(module, mesh=mesh, reshard_after_forward=True)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    for container in module.modules():
        if isinstance(container, CONTAINERS):
            for layer in container:
                if not isinstance(layer, CONTAINERS) and next(layer.parameters(), None) is not None:
                    yield layer


class Sharded:
    """What this process holds of a module that was divided by `shard`; see `weights.Held`."""

    def __init__(self, module: nn.Module, layout: Layout, own: Layout, device: torch.device, team: Team) -> None:
        self._p, self._device, self._team = own.length, device, team
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        offsets = [(name, where.start) for name, where, _ in own.places()]
        offsets += [(name, own.length + where.start) for name, where, _ in layout.places()]
        held = [(tensors[name], offset) for name, offset in offsets if isinstance(tensors[name], DTensor)]
        self._parameters = [tensor for tensor, _ in held]
        self.values = tuple(_local(tensor) for tensor in self._parameters)
        self.places = tuple(_place(tensor, offset, team) for tensor, offset in held)
        self._buffers = [
            (tensors[name], where) for name, where, _ in layout.places() if not isinstance(tensors[name], DTensor)
        ]
        self._fresh = [value.clone() for value in self.values]

    @property
    def gradients(self) -> Sequence[torch.Tensor]:
        return [
            torch.zeros_like(value) if parameter.grad is None else _local(parameter.grad)
            for parameter, value in zip(self._parameters, self.values, strict=True)
        ]

    def forget_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def refresh(self) -> None:
        pass  # values are the parameters' own

    def clip(self, longest: float) -> None:
        gradients = self.gradients
        square = torch.zeros((), device=self._device)
        for gradient in gradients:
            square += gradient.square().sum()
        length = math.sqrt(float(self._team.total(square)))
        if length > longest:
            for gradient in gradients:
                gradient.mul_(longest / length)

    def finite(self) -> bool:
        spoiled = torch.zeros((), device=self._device)
        for gradient in self.gradients:
            spoiled += (~torch.isfinite(gradient)).sum()
        return float(self._team.total(spoiled)) == 0

    @torch.no_grad()
    def load(self, vector: Vector) -> None:
        for value, place in zip(self.values, self.places, strict=True):
            if place.offset >= self._p:
                value[0].copy_(torch.from_numpy(place.take(vector, self._p)))
        for buffer, where in self._buffers:
            buffer.copy_(_tensor(vector[where]).view(buffer.shape))

    @torch.no_grad()
    def load_own(self, personal: Line | None) -> None:
        for value, place, fresh in zip(self.values, self.places, self._fresh, strict=True):
            if place.offset < self._p:
                value.copy_(fresh if personal is None else torch.from_numpy(place.take(personal)))

    def store(self, vector: Line, personal: Line) -> None:
        for value, place in zip(self.values, self.places, strict=True):
            part = value.detach().cpu().numpy()
            if place.offset < self._p:
                place.put(personal, part)
            else:
                place.put(vector, part, self._p)
        if self._team.rank == 0:
            for buffer, where in self._buffers:
                vector[where] = buffer.detach().cpu().numpy().reshape(-1)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a tensor, [1, k], over the same memory."""
    assert isinstance(tensor, DTensor)
    with torch.no_grad():
        part = tensor.to_local()
        return part.view(1, part.numel())


def _place(tensor: torch.Tensor, offset: int, team: Team) -> Place:
    """Return where this process's part of a tensor, which begins at `offset`, lies in the line."""
    return Place.tensor(offset, tuple(tensor.shape)).divided(0, team.rank, team.size)


def _tensor(line: Line) -> torch.Tensor:
    return torch.from_numpy(np.array(line))
