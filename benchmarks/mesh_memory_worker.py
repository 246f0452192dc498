"""One of the processes of `mesh_memory.py`: as `fedgossip.learning.processes.worker`, and counts what it holds."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from mesh_memory import FOLDER
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from fedgossip.learning.one_model import weights
from fedgossip.learning.processes.ipc import Channel, Message, Setup, SharedArrays, TrainOrder
from fedgossip.learning.processes.processes import serve
from fedgossip.learning.processes.worker import CollectiveWorker


class Saved:
    """Bytes of the memory that is kept for backward passes, each piece once; `most`: at any one time."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module, self._users = module, Counter[int]()
        self.now = self.most = 0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | Kept:
        if tensor.is_meta or isinstance(_local(tensor), FakeTensor):  # of shapes alone, by which a division is found
            return tensor
        memory = _local(tensor).untyped_storage()
        weights = {_local(one).untyped_storage().data_ptr() for one in self._module.parameters() if not one.is_meta}
        if memory.data_ptr() in weights or not tensor.is_floating_point():
            return tensor
        # detached: a graph that nobody goes back through would hold its outputs, and they the graph
        return Kept(self, tensor.detach(), memory.data_ptr(), memory.nbytes())

    def hold(self, place: int, size: int) -> None:
        self._users[place] += 1
        self.now += size * (self._users[place] == 1)
        self.most = max(self.most, self.now)

    def drop(self, place: int, size: int) -> None:
        self._users[place] -= 1
        self.now -= size * (self._users[place] == 0)


class Kept:
    """A tensor until the graph lets it go."""

    def __init__(self, saved: Saved, tensor: torch.Tensor, place: int, size: int) -> None:
        self.tensor, self._saved, self._where = tensor, saved, (place, size)
        saved.hold(place, size)

    def __del__(self) -> None:
        self._saved.drop(*self._where)


def _unpack(kept: torch.Tensor | Kept) -> torch.Tensor:
    return kept.tensor if isinstance(kept, Kept) else kept


def _local(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return found.elem if isinstance(found, AsyncCollectiveTensor) else found


def _together(module: torch.nn.Module) -> int:
    """Return the bytes of what FSDP has brought together and not let go: parameters that are no parts now."""
    if not any(isinstance(one, FSDPModule) for one in module.modules()):
        return 0
    divided = [one for layer in module.modules() if isinstance(layer, FSDPModule) for one in _parts_of(layer)]
    return sum(_local(one.unsharded_param).nbytes for one in divided if one.sharded_state.name == "UNSHARDED")


def _parts_of(layer: FSDPModule) -> list[Any]:
    group = layer._get_fsdp_state()._fsdp_param_group
    return [] if group is None else list(group.fsdp_params)


class Counted:
    """Answers as the worker does, and writes down what it held."""

    def __init__(self, setup: Setup, worker: CollectiveWorker) -> None:
        self._worker, self._path = worker, Path(os.environ[FOLDER]) / f"{setup.rank}.json"
        self._slots = len(setup.train.slots)

    def answer(self, order: Message) -> Message:
        if not isinstance(order, TrainOrder):
            return self._worker.answer(order)
        loop, made = self._worker._loop, []
        scattered, saved = weights.scattered, Saved(loop._module)

        def counted(*given: Any) -> list[torch.Tensor]:
            made.append(scattered(*given))
            return made[-1]

        weights.scattered, between = counted, [0]
        watching = loop._module.register_forward_hook(lambda *_: between.append(_together(loop._module)))
        try:
            with saved_tensors_hooks(saved.pack, _unpack):
                found = self._worker.answer(order)
        finally:
            weights.scattered = scattered
            watching.remove()
        assert len(made) == self._slots, "terms are scattered too: give none"
        held = {
            "parameters": sum(value.nbytes for value in loop._held.values),
            "slots": sum(part.nbytes for slot in made for part in slot),
            "together": max(between),
            "activations": saved.most,
        }
        self._path.write_text(json.dumps(held))
        return found


def counted_member(setup: Message, channel: Channel, boards: Mapping[str, SharedArrays]) -> Counted:
    """Return the process that `setup` asks for, counted."""
    assert isinstance(setup, Setup)
    return Counted(setup, CollectiveWorker(setup, channel, boards))


serve(counted_member)
