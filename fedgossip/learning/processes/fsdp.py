"""A module in parts: each process of a team holds about 1/P of every tensor, for models that do not fit one GPU.

torch's FSDP2 (`fully_shard`) brings the parts of a layer together just before it computes, and lets them go after it;
gradients come back in parts.  A part is some first rows of a tensor, then the next, in order of the ranks (`parts`).
With `offload` the parts lie in host memory, page-locked beside a GPU, and so do their gradients: what is brought
together is on the GPU, and steps are taken on the host.
With `zero` = 2 a layer that has come together stays so from the forward pass to its backward one: half of the messages
that bring parts together, and all parameters in each process between the passes.
Source: Zhao et al., PyTorch FSDP: experiences on scaling fully sharded data parallel, VLDB 2023.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

from fedgossip.learning.settings import LET_GO

CONTAINERS = (nn.Sequential, nn.ModuleList)


def shard(module: nn.Module, mesh: DeviceMesh, *, offload: bool = False, zero: int = LET_GO) -> None:
    """Divide the module's parameters over the processes of a mesh of one axis: each element of a list of layers comes
    together by itself, then the rest."""
    # torch refuses to lock memory where there is no accelerator
    policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy()
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # nobody changes an output in place
    for layer in [*_layers(module), module]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=zero == LET_GO, offload_policy=policy)
        if zero != LET_GO:
            layer.register_forward_hook(_let_go_without_backward)


def _let_go_without_backward(layer: nn.Module, _given: Any, _found: Any) -> None:
    """After an evaluation no backward pass lets go: the layer would stay whole, and not see the next vector."""
    if not torch.is_grad_enabled() and isinstance(layer, FSDPModule):
        layer.reshard()


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    for container in module.modules():
        if isinstance(container, CONTAINERS):
            for layer in container:
                if not isinstance(layer, CONTAINERS) and next(layer.parameters(), None) is not None:
                    yield layer
