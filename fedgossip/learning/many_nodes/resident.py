"""Training of all simulated nodes with models that stay on their device: batches, rates, losses and errors.

A round reads nothing from a GPU (`device_stack`): the next is prepared while it computes.  Its losses and the
finiteness of updates are read when the record needs them, and an error then names its node and round.  On the CPU
(`host_stack`) that is after every round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import RowGroups, Vector
from fedgossip.core.resident_models import Disagreement
from fedgossip.learning.many_nodes.device_stack import DeviceStack
from fedgossip.learning.many_nodes.host_stack import HostStack
from fedgossip.learning.many_nodes.stacked_engine import LayerStack
from fedgossip.learning.one_model.batches import Batches
from fedgossip.learning.one_model.cuda_graphs import first_line
from fedgossip.learning.one_model.losses import not_finite
from fedgossip.learning.one_model.sharing import OutOfMemory
from fedgossip.learning.settings import TrainSettings

STACKS: Mapping[str, type[Any]] = {"cpu": HostStack, "cuda": DeviceStack}
"""The stack class of each kind of device."""


class ResidentStack:
    """`ResidentModels` of a stack of linear layers; see there."""

    def __init__(
        self, stack: DeviceStack | HostStack, batches: Batches, settings: TrainSettings, rounds: int, loss: str
    ) -> None:
        self._stack, self._batches, self._settings = stack, batches, settings
        self._rounds, self._loss = rounds, loss
        self._untold: list[tuple[int, float]] = []  # rounds with losses still on the device, and their rates
        self._failed: TrainingError | None = None

    @property
    def untold(self) -> int:
        return self._stack.untold

    def load(self, models: Vector) -> None:
        with self._errors_of("loading the models"):
            self._stack.load(models)

    def advance(self, round: int, phase: int | None, groups: RowGroups, *, watched: bool) -> Disagreement | None:
        stack: Any = self._stack
        lr = self._settings.rate(round, self._rounds)
        indices = self._batches.of_all(round, stack.n)
        assert indices is not None, "local steps are a number"
        with self._errors_of(f"round {round}"):
            mixing = stack.mixing_of(phase, groups)
            found: Disagreement | None = (stack.watched if watched else stack.advance)(indices, lr, mixing, phase)
        self._untold.append((round, lr))
        return found

    def losses(self) -> Sequence[npt.NDArray[np.float64]]:
        """See `ResidentModels`.  Raises TrainingError where a loss or an update was not finite."""
        if self._failed:
            raise self._failed
        with self._errors_of("reading the losses"):
            losses, finite = self._stack.losses()
        rounds, self._untold = self._untold, []
        for place, (round, lr) in enumerate(rounds):
            whole = finite[place] & np.isfinite(losses[place])
            if not whole.all():
                node = int(np.argmin(whole))
                self._failed = not_finite(node, round, self._loss, float(losses[place, node]), lr)
                return list(losses[:place])
        return list(losses)

    def models(self) -> Vector:
        with self._errors_of("reading the models"):
            return self._stack.models()

    @contextmanager
    def _errors_of(self, doing: str) -> Iterator[None]:
        """Convert errors of the device, RuntimeErrors of torch, into training errors with their place."""
        try:
            yield
        except TrainingError:
            raise
        except RuntimeError as error:
            text = f"{doing}: {self._stack.device} failed: {first_line(error)}"
            raise TrainingError(text, 'Go on with --resume, or take train.device = "cpu".') from error


def resident_models(
    engine: LayerStack,
    batches: Batches,
    settings: TrainSettings,
    rounds: int,
    loss: str,
    n: int,
    note: Callable[[str, str], None],
) -> ResidentStack | None:
    """Return n models that stay on the engine's device; None without support or memory, with a `note`.

    For plain SGD with a number of local steps a round.
    """
    kind = STACKS.get(engine.device.type)
    if kind is None or engine.shape.convolutions or settings.local_steps is None:
        return None
    try:
        stack = kind(engine, n, settings.local_steps, note)
    except OutOfMemory:
        note("not_resident", f"{n} models, twice, do not fit into the memory of {engine.device}")
        return None
    except RuntimeError as error:  # a faulty device: the next operation reports the cause
        note("not_resident", first_line(error))
        return None
    return ResidentStack(stack, batches, settings, rounds, loss)
