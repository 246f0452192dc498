"""Several clients on one GPU: each trains in its turn, and again after running out of memory.

A job out of memory is trained again alone, then with every batch in two, four, eight pieces, whose gradients add up to
the same step, to rounding (BatchNorm uses the statistics of pieces).  After each turn unused memory is released.
"""

from __future__ import annotations

import gc
import hashlib
import os
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from fedgossip.base import owner_files
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.learning.one_model import devices
from fedgossip.learning.settings import HOGWILD, TrainSettings

Result = TypeVar("Result")

OutOfMemory = torch.cuda.OutOfMemoryError
"""torch's error for every kind of device."""


class GpuSharing:
    """Trains jobs in turns, and again in smaller pieces after running out of memory.  On a CPU there are no turns."""

    def __init__(self, slots: Sequence[Slots] = (), most_pieces: int = 1, places: Sequence[int] = ()) -> None:
        self._slots, self._most = slots, most_pieces
        self.pieces = 1
        """Number of pieces of a batch; it never decreases."""
        for place in places:
            weakref.finalize(self, os.close, place)

    def run(self, job: Callable[[], Result]) -> Result:
        """Return the job's result; a job out of memory is called again, so it must change nothing before its end.

        Raises TrainingError if one example does not fit.
        """
        alone = not self._slots
        while True:
            with suppress(OutOfMemory), self._turns(alone):
                return job()
            self._give_back()
            if alone and self.pieces >= self._most:
                raise TrainingError(
                    f"out of memory, with batches in {self.pieces} pieces while no other participant trained",
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
        gc.collect()
        for slots in self._slots:
            slots.give_back()


class CudaMemory:
    """The memory of a CUDA GPU, as reported by torch's allocator and the driver."""

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
    """Choose the device, and register on it if it is a GPU; return how to share it.

    "cuda" is the GPU with the fewest clients of this user; each of several processes takes one.  Raises ConfigError if
    device, machine or model does not support the settings.
    """
    if settings.portable:
        devices.settle()
    device = devices.device_for("cpu" if settings.portable or settings.parallel == HOGWILD else settings.device)
    devices.check(settings, device, module)
    if device.type != "cuda":
        return device, GpuSharing((), settings.examples_per_step)
    kind = hashlib.sha256(repr((schema, settings)).encode()).hexdigest()[:16]
    if settings.processes > 1:
        # sorted: other clients may number the same GPUs differently, and two must not wait for each other
        folders = sorted(make_own_folder(folder_of(torch.device("cuda", rank))) for rank in range(settings.processes))
        slots, places = [Slots(folder, kind) for folder in folders], [take_emptiest([folder])[1] for folder in folders]
        return device, GpuSharing(slots, settings.examples_per_step, places)
    numbers = range(torch.cuda.device_count()) if device.index is None else [device.index]
    candidates = [torch.device("cuda", number) for number in numbers]
    chosen, place = take_emptiest([make_own_folder(folder_of(one)) for one in candidates])
    device = candidates[chosen]
    slots = [Slots(folder_of(device), kind, CudaMemory(device))]
    return device, GpuSharing(slots, settings.examples_per_step, [place])


def folder_of(device: torch.device) -> Path:
    """Return the folder of the lock files of a GPU's clients."""
    properties: Any = torch.cuda.get_device_properties(device)
    name = str(getattr(properties, "uuid", f"{properties.name}-{device.index}")).replace(" ", "-")
    return Path(tempfile.gettempdir()) / f"fedgossip-{user()}" / f"cuda-{name}"


# Turns on a GPU, so that the clients of one machine together fit into its memory.  No torch.
#
# Processes of one user coordinate through locked files in a folder per GPU; a lock ends with its process.
#
#     here-PID-N   locked by every client on this GPU until it ends
#     queue        locked by the client waiting for a turn; the others wait for this lock, so none starves
#     slot-N       locked by every training client; contains its maximum bytes, and its process
#     room         free bytes while no client trained
#     peak-KIND    maximum observed bytes of a job of this kind
#     door         locked while one of these files is read or changed
#
# A client gets a turn if its bytes and those of all training clients fit into the room: for jobs of one kind floor(0.9
# room / peak) at a time.  The first job of a kind trains alone and is measured.


SHARE_OF_ROOM = 0.9
"""Usable share of the free memory: allocators round up and fragment."""

MOST_SLOTS = 64
TURN_SECONDS = 1800.0
"""Maximum wait for a turn in seconds; a longer job makes the waiting clients fail."""

POLL_SECONDS = 0.02


class Memory(Protocol):
    """The measurements of a device's memory for a turn."""

    def free(self) -> int:
        """Return the free bytes, for any process."""

    def began(self) -> None:
        """Begin a job: count its allocations from now on."""

    def peak(self) -> int:
        """Return the maximum bytes of this process since `began`, beyond its bytes at that time."""

    def give_back(self) -> None:
        """Release unused memory of this process to the device."""


class Slots:
    """The turns of one GPU, for jobs of one kind.  Without a `memory`, only one client trains at a time."""

    def __init__(self, folder: Path, kind: str, memory: Memory | None = None, patience: float = TURN_SECONDS) -> None:
        self.folder, self._memory, self._patience = make_own_folder(folder), memory, patience
        self._peak_file, self._room_file = folder / f"peak-{kind}", folder / "room"

    @contextmanager
    def turn(self, *, alone: bool = False) -> Iterator[None]:
        """Hold a slot while training.  Raises TrainingError, naming the holders, after too long a wait."""
        until = time.monotonic() + self._patience
        with locked(self.folder / "queue", until):
            slot = self._slot(alone or self._memory is None, until)
        try:
            if self._memory:
                self._memory.began()
            yield
            if self._memory:
                self._note(self._memory.peak())
        finally:
            self.give_back()
            os.close(slot)

    def give_back(self) -> None:
        """Release unused memory of this process to the GPU."""
        if self._memory:
            self._memory.give_back()

    def _slot(self, alone: bool, until: float) -> int:
        while (slot := self._admitted(alone, until)) is None:
            _wait(self.folder, until)
        return slot

    def _admitted(self, alone: bool, until: float) -> int | None:
        with locked(self.folder / "door", until):
            held = {int(path.name.partition("-")[2]): _number(path) for path in _find_locked(self.folder, "slot")}
            free = self._memory.free() if self._memory else 0
            if not held:  # while a client trains, the free memory excludes what it uses
                self._room_file.write_text(str(free))
            room, need = int(SHARE_OF_ROOM * _number(self._room_file)), _number(self._peak_file)
            if alone or not need:  # an unmeasured job may need all memory
                fits, need = not held, room
            else:
                fits = not held or (sum(held.values()) + need <= room and need <= free)
            place = next((number for number in range(MOST_SLOTS) if number not in held), None)
            if not fits or place is None:
                return None
            return _opened(self.folder / f"slot-{place}", f"{need} {os.getpid()}")

    def _note(self, peak: int) -> None:
        with locked(self.folder / "door", time.monotonic() + self._patience):
            self._peak_file.write_text(str(max(1, peak, _number(self._peak_file))))


def take_emptiest(folders: Sequence[Path]) -> tuple[int, int]:
    """Register on the GPU with the fewest clients; return its number, and the descriptor of the lock."""
    until = time.monotonic() + TURN_SECONDS
    with ExitStack() as doors:
        for folder in folders:  # all doors before the count: two starting clients would choose the same GPU
            doors.enter_context(locked(folder / "door", until))
        crowds = [len(_find_locked(folder, "here")) for folder in folders]
        chosen = crowds.index(min(crowds))
        return chosen, _placed(folders[chosen])


def _placed(folder: Path) -> int:
    taken = {path.name for path in folder.glob("here-*")}
    name = next(name for number in range(1 << 16) if (name := f"here-{os.getpid()}-{number}") not in taken)
    return _opened(folder / name, "")


def user() -> int:
    """Return the user id of this process; 0 on Windows, as in its files."""
    return os.getuid() if hasattr(os, "getuid") else 0


def make_own_folder(folder: Path) -> Path:
    """Return the folder, created if missing.  Raises ConfigError if it, or its parent, belongs to another user."""
    for one in (folder.parent, folder):
        one.mkdir(mode=0o700, exist_ok=True)
        if one.stat().st_uid != user() or one.is_symlink():
            raise ConfigError(f"{one} is not ours", "The clients of a GPU agree there; remove it, or set TMPDIR.")
    return folder


# --- locked files -----------------------------------------------------------------------------------------------------


@contextmanager
def locked(path: Path, until: float) -> Iterator[None]:
    """Hold the lock of a file.  Raises TrainingError if it is not available before `until`."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not owner_files.try_lock(file):
            _wait(path.parent, until)
        yield
    finally:
        os.close(file)


def _opened(path: Path, content: str) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(file, content.encode())
    if not owner_files.try_lock(file):
        raise AssertionError(f"{path}: somebody holds what nobody else may want")
    return file


def _find_locked(folder: Path, kind: str) -> list[Path]:
    """Return the locked files of a kind, and remove the others; call only while holding the door."""
    found = []
    for path in folder.glob(f"{kind}-*"):
        if _is_held(path):
            found.append(path)
        else:
            path.unlink(missing_ok=True)
    return found


def _is_held(path: Path) -> bool:
    file = os.open(path, os.O_RDONLY)
    try:
        return not owner_files.try_lock(file)
    finally:
        os.close(file)


def _number(path: Path) -> int:
    """Return the first number in a file; 0 without one."""
    return int(next(iter(_words(path)), 0))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []


def _wait(folder: Path, until: float) -> None:
    if time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        return
    who = sorted({word for path in folder.glob("slot-*") for word in _words(path)[1:]})
    raise TrainingError(
        f"no turn to train on {folder.name}: process {', '.join(who) or 'unknown'} has it for too long",
        "Is that process stopped?  End it, or give the clients GPUs of their own.",
    )
