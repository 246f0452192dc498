"""Storage of a client's examples, and transfer of batches to the training device.

Examples that fit stay on the training device (`Resident`).  The others stay in host memory, and a thread prepares
batches (`Streamed`), for a CUDA GPU as follows:

    thread    pick rows into a pinned buffer -> copy it on a separate stream -> record an event
    trainer   let its stream wait for the event -> train; the copy of the next batch runs at the same time

A pinned buffer is reused after its copy.  The trainer's stream is recorded on the copy's memory, else it could be
reused while a kernel reads it.  A batch has the same rows in both cases.  Lines of different lengths are padded on
request (`Padded`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.data.dataset import Dataset, Indices
from fedgossip.data.ragged import Ragged, Rows, batch, chunks
from fedgossip.learning.settings import TrainSettings

Batch = tuple[torch.Tensor, torch.Tensor]
"""Examples and labels on the training device."""

DEFAULT_AHEAD = 2
"""One batch is copied while another one waits: more only evens out a slow disk."""

SHARE_OF_MEMORY = 4
"""Examples may use 1 / this share of a GPU's free memory: models and activations need the rest."""


def ahead_of(settings: TrainSettings, device: torch.device, examples_bytes: int) -> int:
    """Return the number of batches to prepare ahead; 0 if the examples are on the device."""
    if settings.prefetch is not None:
        return settings.prefetch
    if device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    return 0 if examples_bytes * SHARE_OF_MEMORY <= free else DEFAULT_AHEAD


def needs_modules(settings: TrainSettings, device: torch.device, train: Dataset, test: Dataset) -> bool:
    """Return whether settings or data require torch's own modules, in place of a hand-written path."""
    return settings.as_modules or ahead_of(settings, device, bytes_of(train, test)) > 0


def bytes_of(*sets: Dataset) -> int:
    """Return the bytes of the data sets' examples in memory."""
    return sum(one.x.nbytes + one.y.nbytes for one in sets)


def examples(data: Dataset, device: torch.device, ahead: int) -> Resident | Padded | Streamed:
    """Return the examples of a data set, on the device or with `ahead` batches prepared."""
    if ahead:
        return Streamed(data, device, ahead)
    return Padded(data, device) if isinstance(data.x, Ragged) else Resident(data, device)


def predictions_in(data: Dataset) -> Callable[[Indices], int]:
    """Return a function that counts the predictions of some examples: one each, or one for each character."""
    if not isinstance(data.y, Ragged):
        return len
    lengths = data.y.lengths
    return lambda rows: int(lengths[rows].sum())


class Resident:
    """All examples are stored on the training device."""

    def __init__(self, data: Dataset, device: torch.device) -> None:
        self._device = device
        self._x, self._y = _tensor(data.x).to(device), _tensor(data.y).to(device)

    def batches(self, wanted: Sequence[Indices]) -> AbstractContextManager[Iterator[Batch]]:
        """Return an iterator over the batches of these rows, to be used inside a `with`."""
        if not wanted:
            return nullcontext(iter(()))
        together = torch.from_numpy(np.concatenate(wanted)).to(self._device)  # once: a GPU is waited for at each copy
        ends = accumulate(map(len, wanted))
        return nullcontext(self._pick(together[end - len(rows) : end]) for rows, end in zip(wanted, ends, strict=True))

    def chunks(self, size: int) -> Iterator[Batch]:
        """Yield all examples in order, at most `size` at a time, in parts of nearly equal length."""
        parts = -(-len(self._x) // size)
        yield from zip(self._x.tensor_split(parts), self._y.tensor_split(parts), strict=True)

    def _pick(self, rows: torch.Tensor) -> Batch:
        return self._x[rows], self._y[rows]


class Padded:
    """Rows of different lengths, in host memory: a batch is padded, then copied to the training device."""

    def __init__(self, data: Dataset, device: torch.device) -> None:
        self._x, self._y, self._way = data.x, data.y, _Direct(device)

    def batches(self, wanted: Sequence[Indices]) -> AbstractContextManager[Iterator[Batch]]:
        """As `Resident.batches`."""
        return nullcontext(self._way.send(number, self._x, self._y, rows) for number, rows in enumerate(wanted))

    def chunks(self, size: int) -> Iterator[Batch]:
        """As `Resident.chunks`, but one bucket after another."""
        with self.batches(list(chunks(self._x, size))) as batches:
            yield from batches


class Streamed:
    """The examples are in host memory; a thread with the lifetime of a job prepares `ahead` batches."""

    def __init__(self, data: Dataset, device: torch.device, ahead: int) -> None:
        self._x, self._y, self._device, self._ahead = data.x, data.y, device, ahead
        self._way = _Stream(device, ahead + 1) if device.type == "cuda" else _Direct(device)

    @contextmanager
    def batches(self, wanted: Sequence[Indices]) -> Iterator[Iterator[Batch]]:
        """Yield an iterator over the batches of these rows, which raises errors of the thread."""
        line = _Line(self._ahead)
        thread = guarded_thread(self._fill, "batches", wanted, line)
        thread.start()
        try:
            yield (self._way.arrived(line.take()) for _ in wanted)
        finally:
            line.stop()
            thread.join()

    def chunks(self, size: int) -> Iterator[Batch]:
        """As `Resident.chunks`, or `Padded.chunks`."""
        with self.batches(list(chunks(self._x, size))) as batches:
            yield from batches

    def _fill(self, wanted: Sequence[Indices], line: _Line) -> None:
        try:
            for number, rows in enumerate(wanted):
                if not line.wait_for_room():
                    return
                line.put(self._way.send(number, self._x, self._y, rows))
        except Exception as error:  # raised again by the waiting consumer
            line.put(error)


class _Line:
    """A bounded queue between two threads, which the consumer may close at any time."""

    def __init__(self, places: int) -> None:
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._room = threading.Semaphore(places)
        self._stopped = False

    def wait_for_room(self) -> bool:
        """Wait for a free slot; return false if the queue is closed."""
        self._room.acquire()
        return not self._stopped

    def put(self, item: Any) -> None:
        self._items.put(item)

    def take(self) -> Any:
        item = self._items.get()
        self._room.release()
        if isinstance(item, Exception):
            raise item
        return item

    def stop(self) -> None:
        self._stopped = True
        self._room.release()


class _Direct:
    """Batches without streams: for the CPU, and for GPUs without streams."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, number: int, x: Rows, y: Rows, rows: Indices) -> Batch:  # noqa: ARG002
        picked = (torch.from_numpy(batch(part, rows)) for part in (x, y))
        return next(picked).to(self._device), next(picked).to(self._device)

    def arrived(self, batch: Batch) -> Batch:
        return batch


@dataclass(slots=True, eq=False)
class _Pinned:
    """Page-locked memory for one batch, and the event after the last copy from it."""

    x: torch.Tensor
    y: torch.Tensor
    copied: torch.cuda.Event


class _Stream:
    """Batches through a ring of pinned buffers and a second CUDA stream, parallel to training."""

    def __init__(self, device: torch.device, buffers: int) -> None:
        self._device, self._side = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ring: list[_Pinned | None] = [None] * buffers

    def send(self, number: int, x: Rows, y: Rows, rows: Indices) -> tuple[Batch, torch.cuda.Event]:
        """Start copying a batch to the device; return it with the event of its arrival."""
        pinned = self._buffer(number % len(self._ring), x, y, len(rows))
        parts = []
        with torch.cuda.device(self._device), torch.cuda.stream(self._side):
            for source, buffer in ((x, pinned.x), (y, pinned.y)):
                parts.append(_into(buffer, source, rows).to(self._device, non_blocking=True, copy=True))
            pinned.copied.record(self._side)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(self._side)
        return (parts[0], parts[1]), arrived

    def arrived(self, sent: tuple[Batch, torch.cuda.Event]) -> Batch:
        """Return the batch for use on the current stream."""
        batch, copied = sent
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copied)
        for part in batch:
            part.record_stream(current)
        return batch

    def _buffer(self, place: int, x: Rows, y: Rows, rows: int) -> _Pinned:
        found = self._ring[place]
        if found is not None:
            found.copied.synchronize()
            if len(found.x) >= rows:
                return found
        kinds = [(torch.from_numpy(part[:0].copy()).dtype, part.shape[1:]) for part in (x, y)]
        pinned = [torch.empty((rows, *shape), dtype=dtype, pin_memory=True) for dtype, shape in kinds]
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        fresh = self._ring[place] = _Pinned(pinned[0], pinned[1], copied)
        return fresh


def _into(buffer: torch.Tensor, source: Rows, rows: Indices) -> torch.Tensor:
    if isinstance(source, Ragged):
        padded = torch.from_numpy(source.padded(rows))
        return buffer.view(-1)[: padded.numel()].view(padded.shape).copy_(padded)
    part = buffer[: len(rows)]
    np.take(source, rows, axis=0, out=part.numpy(), mode="clip")  # "raise" would copy once more
    return part


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())
