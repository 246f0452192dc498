"""A worker's part of a module that is divided: by stages, by layers, by rows with FSDP.

Loaded where a model is divided alone, and `pipeline` where it has stages: each loads much of torch.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.one_model.module_engine import Spread
from fedgossip.learning.processes.fsdp import shard
from fedgossip.learning.processes.grid import DATA, PIPELINE, ProcessGrid
from fedgossip.learning.processes.ipc import Setup
from fedgossip.learning.processes.parts import HeldParts, origins_of
from fedgossip.learning.processes.plans import plan_of
from fedgossip.learning.processes.stages import leave_others, stages_of
from fedgossip.learning.processes.tensor_parallel import divide


def divided(
    setup: Setup,
    module: nn.Module,
    layout: Layout,
    shape: tuple[int, ...],
    criterion: Criterion,
    grid: ProcessGrid,
    device: torch.device,
) -> Spread:
    """Leave this process its part of the module; `shape`: of an example."""
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
    if settings.parallel == "fsdp":
        # brings what stays there to the device
        shard(stage, grid.mesh[DATA], offload=settings.offload, zero=settings.zero)
    if not settings.offload:
        stage.to(device)
    return Spread(grid.team, HeldParts(module, layout, own, grid, origins, packed), stage, passes)
