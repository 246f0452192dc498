"""One of the processes that train one client together: it does what the client's task orders, and ends with it.

    python -m fedgossip.learning.ddp.worker SOCKET EXAMPLES GIVEN FOUND

The numbers are descriptors: of a socket pair (`ipc`), and of three boards (`shared_memory`): the examples, what a job
is given, what it finds.  A thread listens to the socket and ends the process at once when the task's process is gone,
also in the midst of a sum over all processes; so an interrupted run leaves none behind.
"""

from __future__ import annotations

import inspect
import os
import queue
import shutil
import socket
import sys
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fedgossip import signals
from fedgossip.errors import FedgossipError
from fedgossip.learning import custom, devices, models
from fedgossip.learning.batches import BatchPlan
from fedgossip.learning.dataset import Dataset
from fedgossip.learning.ddp.group import Team, joined
from fedgossip.learning.ddp.ipc import (
    STATE,
    Alive,
    Channel,
    Evaluated,
    EvaluateOrder,
    Failed,
    Message,
    Ready,
    Setup,
    TrainOrder,
    TrainReply,
)
from fedgossip.learning.ddp.shared_memory import SharedArrays
from fedgossip.learning.flat import Layout
from fedgossip.learning.losses import Criterion
from fedgossip.learning.module_engine import Assignment, ModuleLoop, Spread, compiled
from fedgossip.learning.objectives import Objective
from fedgossip.learning.scoring import Scoring
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.sharing import GpuSharing
from fedgossip.learning.stacked_engine import State
from fedgossip.learning.weights import FlatWeights
from fedgossip.machine import Terms

ALIVE_SECONDS = 1.0
"""Between two signs of life."""

BOARDS = ("examples", "given", "found")


class CollectiveWorker:
    """A process of the team, set up."""

    def __init__(self, setup: Setup, channel: Channel, boards: Mapping[str, SharedArrays]) -> None:
        self._channel, self._boards, self._said = channel, boards, time.monotonic()
        self._sharing = GpuSharing()
        settings = TrainSettings(**setup.settings)
        torch.set_num_threads(settings.threads)
        device, team = _meet(setup), Team(setup.rank, setup.size, self._progressed)
        train, test = _examples(setup, boards["examples"])
        module = joined(_built(setup, train), team)
        layout = Layout.from_module(module, settings.buffers, settings.stays)
        loose = custom.is_function(setup.source) and setup.source not in models.KINDS
        spread = _spread(module, layout, settings, device, team, loose=loose)
        objective = Objective(setup.kind, setup.loss, setup.metrics)
        base = None if setup.base is None else Path(setup.base)
        judged = {"criterion": Criterion(objective, base), "scoring": Scoring(objective, test, base)}
        how = {**judged, "seed": setup.seed, "device": device, "sharing": self._sharing, "spread": spread}
        self._loop = ModuleLoop(module, layout, train, test, settings, **how)  # type: ignore[arg-type]

    def answer(self, order: Message) -> Message:
        """Do what is ordered."""
        assert isinstance(order, TrainOrder | EvaluateOrder)
        self._sharing.pieces = order.pieces
        given = self._boards["given"].views(order.given)
        if isinstance(order, TrainOrder):
            return self._train(order, given)
        found = self._loop.sums(given["vector"], _state(given) if order.own else None)
        sums = [np.sum(parts, axis=0).tolist() for parts in zip(*(one.sums for one in found.tallies), strict=True)]
        return Evaluated(found.loss, found.predicted, sums)

    def _train(self, order: TrainOrder, given: Mapping[str, npt.NDArray[Any]]) -> TrainReply:
        found = self._boards["found"].views(order.found)
        plan = BatchPlan(given["indices"], given["counts"])
        terms = None if order.pull is None else Terms(order.pull, given.get("correction"))
        job = Assignment((order.node, order.round), given["vector"], plan, order.lr, _state(given), terms)
        if order.gradient:
            done = self._loop.gradient_into(job, found["vector"])
        else:
            done = self._loop.train_into(job, found["vector"], _state(found))
        return TrainReply(done.loss, done.skipped)

    def _progressed(self) -> None:
        now = time.monotonic()
        if now - self._said > ALIVE_SECONDS:
            self._said = now
            self._channel.send(Alive())


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


def _examples(setup: Setup, board: SharedArrays) -> tuple[Dataset, Dataset]:
    views = board.views(setup.examples)
    train, test = (
        Dataset(
            name,
            views[f"{name}.x"],
            views[f"{name}.y"],
            setup.classes,
            vocabulary=setup.vocabulary,
            kind=setup.kind,
            label_mean=setup.label_scale[0],
            label_deviation=setup.label_scale[1],
        )
        for name in ("train", "test")
    )
    return train, test


def _built(setup: Setup, data: Dataset) -> nn.Module:
    base = None if setup.base is None else Path(setup.base)
    size = None if setup.vocabulary is None else len(setup.vocabulary)
    return models.build(setup.source, data.shape, data.outputs, setup.seed, size, base=base)


def _spread(
    module: nn.Module, layout: Layout, settings: TrainSettings, device: torch.device, team: Team, *, loose: bool
) -> Spread:
    """Put the module into the hands of the team; `loose`: a step may leave some of its parameters without gradient."""
    own = Layout.personal_of(module, settings.stays)
    if settings.parallel == "fsdp":
        from fedgossip.learning.ddp.fsdp import Sharded, shard

        shard(module, team, device)
        return Spread(team, Sharded(module, layout, own, device, team), module)
    module.to(device)
    held = FlatWeights(module, layout, own, device)
    found = DistributedDataParallel(
        module,
        device_ids=[device] if device.type == "cuda" else None,
        find_unused_parameters=loose,
        **_without_buffers(),
    )
    return Spread(team, held, compiled(found) if settings.compile else found)


def _without_buffers() -> dict[str, Any]:
    """Tell DDP, by the name of its torch, to leave the buffers alone: `TeamNorm` keeps them the same everywhere."""
    known = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def _state(arrays: Mapping[str, npt.NDArray[Any]]) -> State:
    """Return what belongs to a node's state among the arrays of a job."""
    return {name.removeprefix(STATE): array for name, array in arrays.items() if name.startswith(STATE)}


def _listen(channel: Channel, inbox: queue.SimpleQueue[Message]) -> None:
    """Pass on what is ordered, and end this process when there is nobody to order any more."""
    store = None
    while (message := channel.receive()) is not None:
        if isinstance(message, Setup):
            store = Path(message.store)
        inbox.put(message)
    if store:  # a task's process that was killed has not cleared it away
        shutil.rmtree(store.parent, ignore_errors=True)
    os._exit(0)  # not sys.exit: the main thread may wait for the other processes


def _failed(error: Exception) -> Failed:
    if isinstance(error, FedgossipError):
        return Failed(type(error).__name__, str(error), error.advice)
    return Failed(type(error).__name__, f"{type(error).__name__}: {error}", "")


def main() -> None:
    """Set up as the first message says, then answer orders one after the other; the first failure is the last word."""
    signals.ignore_terminals()  # they are for the task's process
    descriptors = [int(word) for word in sys.argv[1:]]
    channel, boards = Channel(socket.socket(fileno=descriptors[0])), map(SharedArrays, descriptors[1:])
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, inbox), name="orders", daemon=True).start()
    try:
        setup = inbox.get()
        assert isinstance(setup, Setup)
        member = CollectiveWorker(setup, channel, dict(zip(BOARDS, boards, strict=True)))
        channel.send(Ready())
        while True:
            channel.send(member.answer(inbox.get()))
    except Exception as error:
        channel.send(_failed(error))
    threading.Event().wait()  # for the task to end us: it may want to hear from the others first


if __name__ == "__main__":
    main()
