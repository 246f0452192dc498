"""A process's parts of a module, by FSDP2, by tensors, by stages, or by several of them: `weights.Held`.

The grid's tensor axis cuts a tensor along one axis; FSDP's data axis then cuts rows (as torch.chunk).  Each process
reads and writes its own places of the line; the whole vector exists in host memory only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from fedgossip.base.vectors import Vector
from fedgossip.learning.models.models import Transformer
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.one_model.module_engine import Spread
from fedgossip.learning.one_model.weights import Line, Place
from fedgossip.learning.processes.grid import CONTEXT, DATA, EXPERT, PIPELINE, TENSOR, ProcessGrid
from fedgossip.learning.processes.ipc import Setup
from fedgossip.learning.processes.plans import PackedColwise, Plan, leave_others, plan_of, stages_of
from fedgossip.learning.processes.step_costs import gathered_layers, part_of
from fedgossip.learning.settings import LET_GO

# A worker's part of a divided module: by stages, by layers, by rows with FSDP.
#
# Imported only if a model is divided, and `pipeline` only if it has stages: each loads much of torch.


def divided(
    setup: Setup,
    module: nn.Module,
    layout: Layout,
    shape: tuple[int, ...],
    criterion: Criterion,
    grid: ProcessGrid,
    device: torch.device,
) -> Spread:
    """Keep only this process's part of the module; `shape`: of an example."""
    settings, base = setup.train, None if setup.base is None else Path(setup.base)
    plan, number = plan_of(module, setup.source, base, settings.mesh, shape), settings.mesh.pipeline
    own, origins = Layout.personal_of(module, settings.stays), origins_of(module)
    stage, passes = module, None
    if number > 1:
        from fedgossip.learning.processes.pipeline import StagePasses

        stage = stages_of(module, setup.source, base, number)[grid.place(PIPELINE)]
        leave_others(module, stage)
        passes = StagePasses(module, stage, grid, settings, criterion, device)
    here = set(stage.modules())
    packed = divide(module, {name: style for name, style in plan.items() if module.get_submodule(name) in here}, grid)
    if settings.mesh.context > 1:
        from fedgossip.learning.processes.context import ContextGroup, divide_context

        assert isinstance(module, Transformer), "checked with the plan"
        place, size = grid.place(CONTEXT), grid.size(CONTEXT)
        divide_context(module, ContextGroup(grid.mesh.get_group(CONTEXT), place, size, settings.mesh.attention))
    if settings.mesh.expert > 1:
        from fedgossip.learning.processes.experts import divide_experts

        assert isinstance(module, Transformer), "checked with the plan"
        divide_experts(module, grid.mesh[EXPERT])
    if settings.parallel == "fsdp":
        # moves host tensors to the device
        shard(stage, grid.mesh[DATA], offload=settings.offload, zero=settings.zero)
    if not settings.offload:
        stage.to(device)
    return Spread(grid.team, HeldParts(module, layout, own, grid, origins, packed), stage, passes)


# Layers over several processes: each computes with its part of the weights, and torch sums or concatenates.


def divide(module: nn.Module, plan: Plan, grid: ProcessGrid) -> Mapping[str, int]:
    """Divide the layers of the plan over the tensor axis; return the parameters that consist of several matrices, and
    their number of matrices.
    """
    packed: dict[str, int] = {}
    for name, style in plan.items():
        layer = module.get_submodule(name)
        if isinstance(style, PackedColwise):
            packed |= {f"{name}.{part}": style.matrices for part, _ in layer.named_parameters()}
        parallelize_module(layer, grid.mesh[TENSOR], style, src_data_rank=None)
    return packed


# A module in parts: each process of a team holds about 1/P of every tensor, for models that do not fit one GPU.
#
# torch's FSDP2 (`fully_shard`) gathers the parts of a layer just before its computation, and releases them afterwards;
# gradients are scattered in parts.  A part is some first rows of a tensor, then the next, in order of the ranks
# (`parts`).  With `offload` the parts and their gradients are in host memory, page-locked with a GPU: gathered layers
# are on the GPU, and steps are taken on the host.  With `zero` = 2 a layer stays gathered from the forward pass to its
# backward pass: half of the gather messages, and all parameters in each process between the passes.  Source: Zhao et
# al., PyTorch FSDP: experiences on scaling fully sharded data parallel, VLDB 2023.


def shard(module: nn.Module, mesh: DeviceMesh, *, offload: bool = False, zero: int = LET_GO) -> None:
    """Divide the module's parameters over a mesh of one axis; each element of a list of layers is gathered
    separately.
    """
    # torch refuses to lock memory without an accelerator
    policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy()
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # no code changes an output in place
    for layer in [*gathered_layers(module), module]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=zero == LET_GO, offload_policy=policy)
        if zero != LET_GO:
            layer.register_forward_hook(_release_without_backward)


def _release_without_backward(layer: nn.Module, _given: Any, _found: Any) -> None:
    """Release the layer also after an evaluation, which has no backward pass."""
    if not torch.is_grad_enabled() and isinstance(layer, FSDPModule):
        layer.reshard()


Origins = Mapping[str, torch.Tensor]
"""The parameters of a module before its division, by name."""


class HeldParts:
    """The parts of a module's parameters in this process; those of other stages are on no device."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        own: Layout,
        grid: ProcessGrid,
        origins: Origins,
        packed: Mapping[str, int],
    ) -> None:
        """`packed`: parameters that consist of several matrices of one size, each divided."""
        self._p, self._grid = own.length, grid
        tensors, offsets = dict(module.named_parameters()), dict(_offsets(own, layout))
        held = [(name, tensor) for name, tensor in tensors.items() if tensor.device.type != "meta"]
        places = {name: _place(tensor, offsets.get(name, 0), grid, packed.get(name, 1)) for name, tensor in held}
        with torch.no_grad():
            for name, tensor in held:
                start = torch.from_numpy(places[name].take(origins[name].numpy().reshape(-1), offsets.get(name, 0)))
                _local(tensor).copy_(start)
        trained = [(name, tensor) for name, tensor in held if name in offsets]
        self._parameters = [tensor for _, tensor in trained]
        self.places = tuple(places[name] for name, _ in trained)
        self.values = tuple(_local(tensor) for tensor in self._parameters)
        self._first = [_is_first(tensor, grid) for tensor in self._parameters]
        buffers = dict(module.named_buffers())
        self._buffers = [(buffers[name], where) for name, where, _ in layout.places() if name in buffers]
        self._fresh = [
            value.clone() if place.offset < self._p else None
            for value, place in zip(self.values, self.places, strict=True)
        ]
        self.forget_gradients()

    @property
    def gradients(self) -> Sequence[torch.Tensor]:
        return self._gradients

    def forget_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        self._gradients: Sequence[torch.Tensor] = []

    @torch.no_grad()
    def combine_gradients(self) -> None:
        found = [_gradient(*pair) for pair in zip(self._parameters, self.values, strict=True)]
        if found and not _is_divided_by_rows(self._parameters[0]) and self._grid.team.size > 1:
            found = self._averaged(found)
        if found and self._grid.size(CONTEXT) > 1:
            found = self._summed(found, CONTEXT)
        if found and self._grid.size(EXPERT) > 1:
            found = self._summed_common(found)
        self._gradients = found

    def _averaged(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [one.div_(self._grid.team.size) for one in self._summed(gradients, DATA)]

    def _summed_common(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Sum over the axis of experts all gradients except those of experts, which are complete here."""
        common = [EXPERT not in _axes(parameter) for parameter in self._parameters]
        summed = iter(self._summed([one for one, all in zip(gradients, common, strict=True) if all], EXPERT))
        return [next(summed) if all else one for one, all in zip(gradients, common, strict=True)]

    def _summed(self, gradients: Sequence[torch.Tensor], axis: str) -> list[torch.Tensor]:
        line, sizes = torch.cat(list(gradients), dim=1), [part.shape[1] for part in gradients]
        distributed.all_reduce(line, group=self._grid.mesh.get_group(axis))
        return list(torch.split(line, sizes, dim=1))

    def refresh(self) -> None:
        pass  # values are the parameters' own

    def clip(self, longest: float) -> None:
        square = torch.zeros((), device=self._device)  # in host memory if parts are offloaded
        for gradient, first in zip(self._gradients, self._first, strict=True):
            if first:
                square += gradient.square().sum()
        length = math.sqrt(float(self._total(square)))
        if length > longest:
            for gradient in self._gradients:
                gradient.mul_(longest / length)

    def finite(self) -> bool:
        spoiled = torch.zeros((), device=self._device)
        for gradient in self._gradients:
            spoiled += (~torch.isfinite(gradient)).sum()
        return float(self._total(spoiled)) == 0

    def _total(self, number: torch.Tensor) -> torch.Tensor:
        """Return the sum over all processes."""
        found = number.to(self._grid.mesh.device_type)
        distributed.all_reduce(found)
        return found

    @property
    def _device(self) -> torch.device:
        return self.values[0].device

    @torch.no_grad()
    def load(self, vector: Vector) -> None:
        for value, place in zip(self.values, self.places, strict=True):
            if place.offset >= self._p:
                value[0].copy_(torch.from_numpy(place.take(vector, self._p)))
        for buffer, where in self._buffers:
            buffer.copy_(torch.from_numpy(np.array(vector[where])).view(buffer.shape))

    @torch.no_grad()
    def load_own(self, personal: Line | None) -> None:
        for value, place, fresh in zip(self.values, self.places, self._fresh, strict=True):
            if fresh is not None:
                value.copy_(fresh if personal is None else torch.from_numpy(place.take(personal)))

    def store(self, vector: Line, personal: Line) -> None:
        for value, place in zip(self.values, self.places, strict=True):
            part = value.detach().cpu().numpy()
            if place.offset < self._p:
                place.put(personal, part)
            else:
                place.put(vector, part, self._p)
        if self._grid.team.rank == 0:
            for buffer, where in self._buffers:
                vector[where] = buffer.detach().cpu().numpy().reshape(-1)


def origins_of(module: nn.Module) -> Origins:
    """Return copies of a module's parameters, for the parts made from it."""
    return {name: tensor.detach().clone() for name, tensor in module.named_parameters()}


def _offsets(own: Layout, layout: Layout) -> Iterator[tuple[str, int]]:
    yield from ((name, where.start) for name, where, _ in own.places())
    yield from ((name, own.length + where.start) for name, where, _ in layout.places())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a tensor, [1, k], over the same memory."""
    with torch.no_grad():
        part = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
        return part.view(1, part.numel())


def _gradient(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a part, [1, k]; zeros without a gradient."""
    found = parameter.grad
    if found is None:
        return torch.zeros_like(value)
    if isinstance(found, DTensor):
        assert isinstance(parameter, DTensor)
        if found.placements != parameter.placements:  # of norms that saw a part of the text: sums to be added up
            found = found.redistribute(placements=parameter.placements)
        found = found.to_local()
    return found.reshape(1, -1)


def _axes(tensor: torch.Tensor) -> Mapping[str, int]:
    if not isinstance(tensor, DTensor):
        return {}
    names = tensor.device_mesh.mesh_dim_names or ()
    pairs = zip(names, tensor.placements, strict=True)
    return {name: placement.dim for name, placement in pairs if not placement.is_replicate()}  # type: ignore[attr-defined]


def _is_divided_by_rows(tensor: torch.Tensor) -> bool:
    """Whether a tensor is divided by rows (FSDP)."""
    return DATA in _axes(tensor)


def _is_first(tensor: torch.Tensor, grid: ProcessGrid) -> bool:
    return all(axis in _axes(tensor) or grid.place(axis) == 0 for axis in (DATA, CONTEXT, EXPERT, TENSOR))


def _place(tensor: torch.Tensor, offset: int, grid: ProcessGrid, matrices: int) -> Place:
    stands = {axis: (grid.place(axis), grid.size(axis)) for axis in (TENSOR, EXPERT, DATA)}
    return part_of(Place.tensor(offset, tuple(tensor.shape)), _axes(tensor), stands, matrices)
