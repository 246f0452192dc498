"""One of the processes that train one client together: a module in the hands of torch.distributed, or of Hogwild."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fedgossip.learning.models import models
from fedgossip.learning.one_model import devices
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.module_engine import ModuleLoop, Spread, compiled
from fedgossip.learning.one_model.weights import FlatWeights
from fedgossip.learning.processes.compressed import compress
from fedgossip.learning.processes.grid import ProcessGrid
from fedgossip.learning.processes.group import Team, joined
from fedgossip.learning.processes.hogwild_worker import HogwildWorker
from fedgossip.learning.processes.ipc import Channel, Message, Setup, TrainOrder, TrainReply
from fedgossip.learning.processes.module_member import (
    Arrays,
    ModuleMember,
    examples_of,
    job_of,
    judged_by,
    module_of,
    state_in,
)
from fedgossip.learning.processes.serving import LifeSigns, OrderTaker, serve
from fedgossip.learning.processes.shared_memory import SharedArrays
from fedgossip.learning.settings import HOGWILD, TrainSettings


class CollectiveWorker(ModuleMember):
    """A process of a team that takes every step together."""

    def __init__(self, setup: Setup, channel: Channel, boards: Mapping[str, SharedArrays]) -> None:
        super().__init__(boards)
        settings = setup.train
        torch.set_num_threads(settings.threads)
        device = _meet(setup)
        grid = ProcessGrid.of(settings, device, setup.rank, LifeSigns(channel).progressed)
        train, test = examples_of(setup, boards["examples"])
        module = joined(module_of(setup, train), grid.team)
        layout = Layout.from_module(module, settings.buffers, settings.stays)
        judged = judged_by(setup, test)
        if settings.in_parts:
            from fedgossip.learning.processes.parts import divided  # here alone: it loads much of torch

            spread = divided(setup, module, layout, train.shape, judged["criterion"], grid, device)
        else:
            spread = _copied(module, layout, settings, device, grid.team, setup)
        how = {"seed": setup.seed, "device": device, "sharing": self._sharing, "spread": spread}
        self._loop = ModuleLoop(module, layout, train, test, settings, **judged, **how)  # type: ignore[arg-type]

    def _train(self, order: TrainOrder, given: Arrays, found: Arrays) -> TrainReply:
        job = job_of(order, given)
        if order.gradient:
            done = self._loop.gradient_into(job, found["vector"])
        else:
            done = self._loop.train_into(job, found["vector"], state_in(found))
        return TrainReply(done.loss, done.skipped)


def _meet(setup: Setup) -> torch.device:
    """Make torch's process group with the others; return the device of this process."""
    device = torch.device("cuda", setup.rank) if setup.device == "cuda" else torch.device(setup.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        devices.check_precision(setup.settings["precision"], device)  # the task's process stays away from the GPUs
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=torch.distributed.FileStore(setup.store, setup.size),  # type: ignore[attr-defined]
        rank=setup.rank,
        world_size=setup.size,
        timeout=timedelta(seconds=setup.silence),
    )
    return device


def _copied(
    module: nn.Module, layout: Layout, settings: TrainSettings, device: torch.device, team: Team, setup: Setup
) -> Spread:
    """Give every process the whole module."""
    module.to(device)
    held = FlatWeights(module, layout, Layout.personal_of(module, settings.stays), device)
    found = DistributedDataParallel(
        module,
        device_ids=[device] if device.type == "cuda" else None,
        find_unused_parameters=models.is_own(setup.source),  # a step may leave some without gradient
        **_without_buffers(),
    )
    team = replace(team, begins=compress(found, settings, setup.seed))
    return Spread(team, held, compiled(found) if settings.compile else found)


def _without_buffers() -> dict[str, Any]:
    """Return DDP's option, by torch version, to leave the buffers alone: `TeamNorm` keeps them equal everywhere."""
    known = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def member_of(setup: Message, channel: Channel, boards: Mapping[str, SharedArrays]) -> OrderTaker:
    """Return the process that `setup` asks for."""
    assert isinstance(setup, Setup)
    return (HogwildWorker if setup.settings["parallel"] == HOGWILD else CollectiveWorker)(setup, channel, boards)


if __name__ == "__main__":
    serve(member_of)
