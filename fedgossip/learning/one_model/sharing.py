"""Several clients on one GPU: each trains in its turn (`gpu_semaphore`), and again after running out of memory.

Another user's process, or a batch of longer texts, may use memory that was free when the turn was given.  Then the job
is trained again alone, and if that does not help, with every batch in two, four, eight pieces: the gradients add up to
the same step, to rounding.  BatchNorm then counts over pieces, as it would over smaller batches.  After each turn
unused memory is released to the GPU.
"""

from __future__ import annotations

import gc
import hashlib
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from fedgossip.base.errors import TrainingError
from fedgossip.learning.one_model import devices, portable
from fedgossip.learning.one_model.gpu_semaphore import Slots, ours, take_emptiest, user
from fedgossip.learning.settings import HOGWILD, TrainSettings

Result = TypeVar("Result")

OutOfMemory = torch.cuda.OutOfMemoryError
"""torch's own error, of any device."""


class GpuSharing:
    """Trains jobs in turns, and again in smaller pieces after running out of memory.  On a CPU there are no turns."""

    def __init__(self, slots: Sequence[Slots] = (), most_pieces: int = 1, places: Sequence[int] = ()) -> None:
        self._slots, self._most = slots, most_pieces
        self.pieces = 1
        """How many pieces a batch is computed in; it only grows."""
        for place in places:
            weakref.finalize(self, os.close, place)

    def run(self, job: Callable[[], Result]) -> Result:
        """Return the job's result; a job out of memory is called again, so it must change nothing before its end.

        Raises TrainingError where there is too little memory for one example at a time.
        """
        alone = not self._slots
        while True:
            with suppress(OutOfMemory), self._turns(alone):
                return job()
            self._give_back()
            if alone and self.pieces >= self._most:
                raise TrainingError(
                    f"out of memory, with batches in {self.pieces} pieces and nobody else's turn",
                    'Use a smaller model, several processes with parallel = "fsdp", or device = "cpu".',
                )
            if alone:
                self.pieces *= 2
            alone = True

    @contextmanager
    def _turns(self, alone: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for slots in self._slots:
                stack.enter_context(slots.turn(alone=alone))
            yield

    def _give_back(self) -> None:
        """Release memory after the error, whose frames hold used memory, is gone."""
        gc.collect()
        for slots in self._slots:
            slots.give_back()


class CudaMemory:
    """The memory of a CUDA GPU, as torch's allocator and the driver see it."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._before = device, 0

    def free(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free)

    def began(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        return int(torch.cuda.max_memory_reserved(self._device) - self._before)

    def give_back(self) -> None:
        with torch.cuda.device(self._device):
            torch.cuda.empty_cache()


def settle(settings: TrainSettings, module: nn.Module, schema: str) -> tuple[torch.device, GpuSharing]:
    """Choose the device, and take a place on it where it is a GPU; return how to share it.

    "cuda" is the GPU with the fewest clients of ours; of several processes each takes one.  Other devices have no
    turns.  Raises ConfigError where device, machine or model cannot serve the settings.
    """
    if settings.portable:
        portable.settle()
    device = devices.device_for("cpu" if settings.portable or settings.parallel == HOGWILD else settings.device)
    devices.check(settings, device, module)
    if device.type != "cuda":
        return device, GpuSharing((), settings.examples_per_step)
    kind = hashlib.sha256(repr((schema, settings)).encode()).hexdigest()[:16]
    if settings.processes > 1:
        # sorted: others may number the same GPUs in another way, and two must not wait for each other
        folders = sorted(ours(folder_of(torch.device("cuda", rank))) for rank in range(settings.processes))
        slots, places = [Slots(folder, kind) for folder in folders], [take_emptiest([folder])[1] for folder in folders]
        return device, GpuSharing(slots, settings.examples_per_step, places)
    numbers = range(torch.cuda.device_count()) if device.index is None else [device.index]
    candidates = [torch.device("cuda", number) for number in numbers]
    chosen, place = take_emptiest([ours(folder_of(one)) for one in candidates])
    device = candidates[chosen]
    slots = [Slots(folder_of(device), kind, CudaMemory(device))]
    return device, GpuSharing(slots, settings.examples_per_step, [place])


def folder_of(device: torch.device) -> Path:
    """Return the folder in which the clients of a GPU agree."""
    properties: Any = torch.cuda.get_device_properties(device)
    name = str(getattr(properties, "uuid", f"{properties.name}-{device.index}")).replace(" ", "-")
    return Path(tempfile.gettempdir()) / f"fedgossip-{user()}" / f"cuda-{name}"
