"""Steps of one model on a CUDA GPU, captured once and then replayed: one launch in place of hundreds.

The module's Python code does not run in a replay, and might decide or store something.  The first batches check this:

    first     taken uncaptured; the state of Python is compared before and after it, and waits for the device are
              detected
    second    captured, and taken both ways from the end of the first one: both must agree, to rounding
    later     replayed

The checks compare modules' attributes, the identity of parameters and buffers, and the random states of Python, numpy
and torch.  If something differs, a capture fails or memory is short, steps run one by one, and `note` receives the
reason.  Batches of another size are never captured.

`CapturedWork` does the same for any work on a device:

    first call      the parts one after another, uncaptured: they initialise everything that a capture needs
    then            the same calls once more, captured: this computes nothing
    later calls     the graph, in one launch

A replay uses the capture's memory: inputs and outputs are buffers at fixed addresses.  On the CPU the parts are called.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from fedgossip.data.dataset import Dataset
from fedgossip.data.ragged import Ragged
from fedgossip.learning.one_model.sharing import OutOfMemory
from fedgossip.learning.settings import TrainSettings

KINDS = ("cuda",)
"""Kinds of devices that capture steps."""

ROUNDING = 1e-3
"""Maximum distance of a replay's end, in step lengths: sums on a GPU may change their order."""

ROOM = 8
"""Minimum free memory for a capture, in multiples of a step's: a graph's memory is never released."""

COPIES = 3
"""Number of copies of all changed tensors while the first replay is compared."""

PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device)

Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(x, y, factors) -> the loss; changes the weights in place."""


class Stepping(Protocol):
    """Takes steps: `module_engine.ModuleLoop`."""

    def step(self, pulled: bool, x: torch.Tensor, y: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """Take a step on one batch, with or without the terms of a federated client; return its loss."""

    def changed(self) -> Sequence[torch.Tensor]:
        """Return all tensors that a step changes and a later one reads, at fixed addresses."""


Room = Callable[[int], bool]
"""Returns, after a step, whether memory suffices for a graph and the given additional bytes."""

Part = Callable[[], None]
"""Work on buffers at fixed addresses."""

Capture = Callable[[Part], Part]
"""Returns a function that replays the work.  Raises RuntimeError if it cannot be captured; neither case computes."""


class CapturedWork:
    """Calls `parts` one after another, and replays them once captured.

    `each` calls an uncaptured part, and may repeat it; `refused` receives the reason of a failed capture, which is
    final.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        capture: Capture | None,
        refused: Callable[[str], None],
        each: Callable[[Part], None] = lambda part: part(),
    ) -> None:
        self._parts, self._capture, self._refused, self._each = tuple(parts), capture, refused, each
        self._replay: Part | None = None

    def __call__(self) -> None:
        if self._replay is not None:
            self._replay()
            return
        for part in self._parts:
            self._each(part)
        if self._capture is not None:
            capture, self._capture = self._capture, None
            try:
                self._replay = capture(self._all)
            except RuntimeError as error:  # torch's device errors are kinds of RuntimeError
                self._refused(first_line(error))

    def _all(self) -> None:
        for part in self._parts:
            part()


def first_line(error: Exception) -> str:
    """Return the first line of an error, without torch's advice to programmers."""
    return str(error).partition("\n")[0] or type(error).__name__


def capture_on(device: torch.device) -> Capture | None:
    """Return the capture function of a CUDA device; None for a device without graphs.

    The graphs share a memory pool, so they are never replayed at once.
    """
    if device.type != "cuda":
        return None
    pool = torch.cuda.graph_pool_handle()

    def capture(work: Part) -> Part:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
        drawn = torch.cuda.get_rng_state(device)
        try:
            # thread_local: device operations of other threads of the process are excluded
            with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                work()
        except Exception:
            torch.cuda.set_stream(stream)  # torch leaves both as the capture had them
            _draw_again(device, drawn)
            raise
        return graph.replay

    return capture


def _draw_again(device: torch.device, drawn: torch.Tensor) -> None:
    fresh = torch.Generator(device)
    fresh.set_state(drawn)
    torch.cuda.default_generators[device.index or 0].graphsafe_set_state(fresh)


@dataclass(frozen=True, slots=True, eq=False)
class _Captured:
    """A captured step and the memory that it reads and writes."""

    x: torch.Tensor
    y: torch.Tensor
    factors: torch.Tensor
    loss: torch.Tensor
    replay: Part

    def __call__(self, x: torch.Tensor, y: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        for into, given in ((self.x, x), (self.y, y), (self.factors, factors)):
            into.copy_(given)
        self.replay()
        return self.loss.clone()


class CapturedSteps:
    """Takes the steps of `stepping` on batches of `width` examples, captured as soon as possible."""

    def __init__(
        self,
        stepping: Stepping,
        module: nn.Module,
        width: int,
        capture: Capture,
        room: Room,
        generator: torch.Generator,
        note: Callable[[str], None],
    ) -> None:
        self._stepping, self._module, self._width = stepping, module, width
        self._capture: Capture | None = capture
        self._room, self._generator, self._note = room, generator, note
        self._looked = False
        self._captured: dict[bool, _Captured] = {}

    def step(self, pulled: bool, x: torch.Tensor, y: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """See `Stepping`."""
        if self._capture is None or len(x) != self._width:
            return self._stepping.step(pulled, x, y, factors)
        if (known := self._captured.get(pulled)) is not None:
            return known(x, y, factors)
        if self._looked:
            return self._first_replay(self._capture, pulled, x, y, factors)
        before = remembered_by_python(self._module, self._generator)
        with waits(x.device) as found:
            loss = self._stepping.step(pulled, x, y, factors)
        self._looked = True
        if changes := differences(before, remembered_by_python(self._module, self._generator)):
            self._give_up(f"Python changes {changes[0]} in a step")
        elif found:
            self._give_up("a step waits for the device, for example to read a number")
        return loss

    def give_up(self, reason: str) -> None:
        """Run steps one operation after another from now on, and release the graphs' memory; noted once."""
        if self._capture is not None:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self._capture = None
        self._captured.clear()
        self._note(reason)

    def _first_replay(
        self, capture: Capture, pulled: bool, x: torch.Tensor, y: torch.Tensor, factors: torch.Tensor
    ) -> torch.Tensor:
        """Capture a step, and take it both ways; on a difference the uncaptured result is used."""
        if not self._room(COPIES * sum(one.nbytes for one in self._stepping.changed())):
            self._give_up(f"less than {ROOM} times the memory of a step is free")
            return self._stepping.step(pulled, x, y, factors)
        begun, drawn = self._standing(), self._generator.get_state()
        expected_loss = self._stepping.step(pulled, x, y, factors)
        expected, expected_drawn = self._standing(), self._generator.get_state()
        self._stand(begun)
        self._generator.set_state(drawn)
        found = self._capture_step(capture, pulled, x, y, factors)
        if found is not None:
            loss = found(x, y, factors)
            drawn_alike = torch.equal(self._generator.get_state(), expected_drawn)
            if drawn_alike and agree(begun, expected, self._standing(), expected_loss, loss):
                self._captured[pulled] = found
                return loss
            self._give_up("a replay differs from the step")
        self._stand(expected)
        self._generator.set_state(expected_drawn)
        return expected_loss

    def _capture_step(
        self, capture: Capture, pulled: bool, x: torch.Tensor, y: torch.Tensor, factors: torch.Tensor
    ) -> _Captured | None:
        into, loss = [one.clone() for one in (x, y, factors)], torch.zeros((), device=x.device)

        def work() -> None:
            loss.copy_(self._stepping.step(pulled, into[0], into[1], into[2]))

        try:
            return _Captured(into[0], into[1], into[2], loss, capture(work))
        except OutOfMemory:
            self._give_up("memory ran out")
        except RuntimeError as error:  # torch's device errors are kinds of RuntimeError
            self._give_up(first_line(error))
        return None

    def _standing(self) -> list[torch.Tensor]:
        return [one.clone() for one in self._stepping.changed()]

    def _stand(self, at: Sequence[torch.Tensor]) -> None:
        for into, given in zip(self._stepping.changed(), at, strict=True):
            into.copy_(given)


def captured_steps(
    stepping: Stepping,
    module: nn.Module,
    train: Dataset,
    settings: TrainSettings,
    device: torch.device,
    note: Callable[[str], None],
) -> CapturedSteps | None:
    """Return the capture of steps on a device of KINDS; None for settings with steps that read from the device."""
    capture = capture_on(device) if device.type in KINDS and settings.capture else None
    asks = settings.precision == "float16" or settings.by_layers
    if capture is None or asks or settings.accumulate > 1 or isinstance(train.x, Ragged):
        return None
    how = stepping, module, settings.batch_size, capture, lambda beside: enough(device, beside), generator_of(device)
    return CapturedSteps(*how, note)


def generator_of(device: torch.device) -> torch.Generator:
    """Return the random generator of modules on a CUDA device."""
    return torch.cuda.default_generators[device.index or 0]


def enough(device: torch.device, beside: int) -> bool:
    """Return whether, after a step, `ROOM` times its allocation on a CUDA device is free, plus `beside` bytes."""
    step = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) >= ROOM * step + beside


def agree(
    begun: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    found: Sequence[torch.Tensor],
    expected_loss: torch.Tensor,
    loss: torch.Tensor,
) -> bool:
    """Return whether two steps from the same start agree, to `ROUNDING` of each tensor's change."""
    for start, one, other in zip(begun, expected, found, strict=True):
        if not torch.is_floating_point(one):
            if not torch.equal(one, other):
                return False
            continue
        moved, apart = torch.linalg.vector_norm(one - start), torch.linalg.vector_norm(one - other)
        if not bool(apart <= ROUNDING * moved):  # also false for NaN
            return False
    return bool((loss - expected_loss).abs() <= ROUNDING * expected_loss.abs())


@contextmanager
def waits(device: torch.device) -> Iterator[list[str]]:
    """Watch a block on a CUDA device; afterwards the list has a text for each operation that waited for it.

    Capturing such an operation would fail, recoverably.
    """
    found: list[str] = []
    if device.type != "cuda":
        yield found
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for one in caught:
        if "synchronizing CUDA operation" in str(one.message):
            found.append(str(one.message))
        elif "Synchronization debug mode" not in str(one.message):  # torch's message about the mode itself
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def remembered_by_python(module: nn.Module, generator: torch.Generator) -> dict[str, object]:
    """Return the state that a module's Python could keep between steps, by readable names, without the device's
    `generator`.

    Attributes other than plain values are compared by identity and length: changes within them are not detected.
    """
    numbers: Any = np.random.get_state()  # noqa: NPY002
    found: dict[str, object] = {
        "the state of random": random.getstate(),
        "the state of numpy.random": (numbers[1].tobytes(), *numbers[2:]),
    }
    if generator is not torch.default_generator:
        found["the state of torch's generator on the CPU"] = torch.default_generator.get_state().numpy().tobytes()
    for name, part in module.named_modules():
        where = f"{name}." if name else ""
        for key, value in vars(part).items():
            if key in ("_parameters", "_buffers", "_modules"):
                found |= {f"{where}{inner}": identify(one) for inner, one in value.items()}
            else:
                found[f"{where}{key}"] = identify(value)
    return found


@dataclass(frozen=True, slots=True)
class _Object:
    """An object's identity and length."""

    one: object
    size: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Object) and self.one is other.one and self.size == other.size

    __hash__ = None  # type: ignore[assignment]


def identify(value: object) -> object:
    """Return a plain value itself, and for another object its identity and length."""
    if isinstance(value, PLAIN):
        return value
    return _Object(value, len(value) if isinstance(value, Collection) and not isinstance(value, torch.Tensor) else 0)


def differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Return the names of the differences, in order."""
    names = list(dict.fromkeys([*before, *after]))
    none = object()
    return [name for name in names if before.get(name, none) != after.get(name, none)]
