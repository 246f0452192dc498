"""Training of all simulated nodes with models that stay on their device: batches, rates, losses and errors.

A round reads nothing from a GPU (`device_stack`).  Losses and the finiteness of updates are read when the record needs
them, and an error names its node and round.  On the CPU they are read after every round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from fedgossip.base import kernels
from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import RowGroups, Vector, empty, frozen, one_scale_each
from fedgossip.core.metrics import Disagreement, disagreement
from fedgossip.learning.many_nodes.device_stack import MOST_GRAPHS, DeviceStack, Rows, StackEngine
from fedgossip.learning.many_nodes.stacked_engine import LayerStack
from fedgossip.learning.many_nodes.stacked_steps import mean_losses
from fedgossip.learning.many_nodes.workspace import Tensors, Workspace, numbers_of
from fedgossip.learning.one_model.batches import Batches, Indices
from fedgossip.learning.one_model.captured_steps import first_line
from fedgossip.learning.one_model.sharing import OutOfMemory
from fedgossip.learning.settings import TrainSettings

# Models of all nodes on the CPU from round to round, in the memory layout of the products.
#
#     train     block after block of nodes: a copy takes the local steps, then x + (t - x), as sent by a peer
#     mix       some columns of all nodes at a time (`resident`)
#
# Both work in place, so a model is in memory once.  It is stored in a tensor [n, numbers] per layer, as in a
# `workspace`, without the rows of zeros after its weights; a vector has another order.


KEPT_BLOCK, KEPT = 16 << 20, 64 << 20
"""Maximum bytes of a round's temporary memory, per block and in total: 10 000 nodes have blocks of 5 MB."""


class _Block(NamedTuple):
    """Nodes that train at once: their `models`, and the same elements of the copy `trained` in a workspace."""

    nodes: slice
    workspace: Workspace
    models: Tensors
    trained: Tensors


class HostStack:
    """n models of an engine's shape, which take `steps` steps of plain SGD a round."""

    unread = 1
    """Maximum number of rounds with unread losses."""

    def __init__(self, engine: StackEngine, n: int, steps: int, note: Callable[[str, str], None]) -> None:  # noqa: ARG002
        self.n, self._engine, self._most = n, engine, min(n, engine.plain_block)
        self.device = engine.device
        kernels.keep(KEPT_BLOCK, KEPT)
        sizes = numbers_of(engine.shape)
        # allocated by numpy, which requests large pages from the system; torch does not
        self._models = [torch.from_numpy(np.zeros((n, size), np.float32)) for size in sizes]
        self._room = torch.from_numpy(np.zeros(room_of(n, max(sizes)), np.float32))
        self._picked = torch.zeros((steps, n, engine.width))
        self._sums = torch.zeros((len(self._models), n))
        self._losses: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]] = []
        self._mixings: dict[int, HostMixing] = {}
        self._blocks = list(self._make_blocks())

    def _make_blocks(self) -> list[_Block]:
        shape, width = self._engine.shape, self._engine.width
        room = Workspace(shape, self._most, width, 1, self.device)
        found = []
        for start in range(0, self.n, self._most):
            nodes = slice(start, min(self.n, start + self._most))
            workspace = room.narrow(nodes.stop - nodes.start)
            flat = zip(workspace.stacks[0], numbers_of(shape), strict=True)
            trained = [one.flatten(1)[:, :size] for one, size in flat]
            found.append(_Block(nodes, workspace, [one[nodes] for one in self._models], trained))
        return found

    @torch.no_grad()
    def load(self, models: Vector) -> None:
        """Take models [n, d]."""
        for block in self._blocks:
            block.workspace.load(0, torch.from_numpy(np.array(models[block.nodes])))
            for into, one in zip(block.models, block.trained, strict=True):
                into.copy_(one)

    @torch.no_grad()
    def models(self) -> Vector:
        """Return the models [n, d], frozen."""
        length = self._engine.shape.length
        out = empty(self.n * length, np.float32).reshape(self.n, length)
        flat = torch.from_numpy(out)
        for block in self._blocks:
            for into, one in zip(block.trained, block.models, strict=True):
                into.copy_(one)
            block.workspace.store(0, flat[block.nodes])
        return frozen(out)

    def advance(self, indices: Indices, lr: float, mixing: HostMixing, phase: int | None) -> None:  # noqa: ARG002
        """Train all nodes on examples [steps, n, width] and mix."""
        self._train(indices, lr)
        mixing.mix(self._models, self._room)

    def watched(self, indices: Indices, lr: float, mixing: HostMixing, phase: int | None) -> Disagreement:  # noqa: ARG002
        """As `advance`; return the models' disagreement."""
        before = self.models()
        self._train(indices, lr)
        outgoing = self.models()
        mixing.mix(self._models, self._room)
        return disagreement(before, outgoing, self.models())

    def mixing_of(self, phase: int | None, groups: RowGroups) -> HostMixing:
        """Return the mixing of the rounds of a phase, cached if few phases repeat."""
        if phase is not None and phase in self._mixings:
            return self._mixings[phase]
        made = HostMixing(groups, self.n)
        if phase is not None and len(self._mixings) < MOST_GRAPHS:
            self._mixings[phase] = made
        return made

    def losses(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Return (losses, whether the models were finite), [rounds, n] each, of the rounds since the last call."""
        kept, self._losses = self._losses, []
        losses, finite = zip(*kept, strict=True) if kept else ((), ())
        shape = len(kept), self.n
        return np.array(losses, np.float64).reshape(shape), np.array(finite, np.bool_).reshape(shape)

    @torch.no_grad()
    def _train(self, indices: Indices, lr: float) -> None:
        engine, picked = self._engine, self._picked
        whole = engine.layout.arrange_full_batches(indices, lr, self._most)
        for nodes, workspace, models, trained in self._blocks:
            for into, given in zip(trained, models, strict=True):
                into.copy_(given)
            steps = whole.select_block(nodes, engine.layout.top)
            for step in range(len(picked)):
                engine.plain_step(workspace, steps, step, picked[step, nodes].view(-1))
            for total, given, one in zip(self._sums, models, trained, strict=True):
                given.add_(one.sub_(given))
                torch.sum(given, 1, out=total[nodes])
        # a row's sum is finite if all its elements are, unless a diverged model overflows the sum
        finite = torch.isfinite(self._sums.sum(0)).numpy()
        with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are reported by `finite`
            self._losses.append((mean_losses(picked.numpy(), whole.weight), finite))


# In-place mixing of rows on the CPU, with the bits of `vectors.ordered_mix`.
#
# Some columns of all rows are scaled into a buffer that stays in the cache, and summed from there: every row is read
# from memory once and written once, for any number of receivers.
#
# A sum starts at +0 here.  This equals `ordered_mix`'s unless all terms are -0.  A trained value is never -0, being x +
# (t - x), so a term is -0 only if a negative number below 2^-148 was scaled.


COLUMNS_OF_ALL = 1 << 18
"""Number of elements mixed at a time, 1 MiB: 5.8 us for 1000 nodes of 9216 numbers and five terms, 6.3 with 4 MiB."""

FEWEST_COLUMNS = 112
"""Minimum number of columns mixed at a time: 10 000 such nodes take 6.5 us each, 6.9 with 64, 11 with 32."""


class _Group(NamedTuple):
    """Rows with equal numbers of terms: `nodes` [g], None: all in order; `ids` [g, k]; `weights` [k, g, 1], None:
    scaled rows.
    """

    nodes: torch.Tensor | None
    ids: torch.Tensor
    weights: torch.Tensor | None


def room_of(n: int, columns: int) -> int:
    """Return the number of elements mixed at a time, of n rows with at most `columns` columns."""
    return n * min(columns, max(FEWEST_COLUMNS, COLUMNS_OF_ALL // n // 16 * 16))


class HostMixing:
    """The mixing of a round, in a buffer of `room_of` numbers."""

    def __init__(self, groups: RowGroups, n: int) -> None:
        scales = one_scale_each(groups, n, np.dtype(np.float32))
        self._scales = None if scales is None else torch.from_numpy(scales[:, None])
        self._groups = [_group_of(nodes, ids, weights, n, scales is None) for nodes, ids, weights in groups]

    @torch.no_grad()
    def mix(self, rows: Sequence[Rows], room: torch.Tensor) -> None:
        """Replace each row by the weighted sum of its senders' rows; each tensor contains some of the columns."""
        for one in rows:
            n, columns = one.shape
            width = len(room) // n
            for start in range(0, columns, width):
                part = one[:, start : start + width]
                given = room[: part.numel()].view(part.shape)
                if self._scales is None:
                    given.copy_(part)
                else:
                    torch.mul(part, self._scales, out=given)
                for group in self._groups:
                    mixed = _summed(group, given)
                    if group.nodes is None:
                        part.copy_(mixed)
                    else:
                        part.index_copy_(0, group.nodes, mixed)


def _summed(group: _Group, given: torch.Tensor) -> torch.Tensor:
    if group.weights is None:
        return functional.embedding_bag(group.ids, given, mode="sum")  # row by row, term after term
    total: torch.Tensor | None = None
    for ids, weights in zip(group.ids.unbind(1), group.weights, strict=True):
        term = given.index_select(0, ids).mul_(weights)
        total = term if total is None else total.add_(term)
    assert total is not None, "a row has a term"
    return total


def _group_of(nodes: np.ndarray, ids: np.ndarray, weights: np.ndarray, n: int, weighed: bool) -> _Group:
    whole = np.array_equal(nodes, np.arange(n))
    factors = torch.from_numpy(np.ascontiguousarray(weights.T.astype(np.float32)[:, :, None])) if weighed else None
    return _Group(None if whole else torch.tensor(nodes), torch.from_numpy(ids.astype(np.int32)), factors)


STACKS: Mapping[str, type[Any]] = {"cpu": HostStack, "cuda": DeviceStack}
"""The stack class of each kind of device."""


Diverged = Callable[[int, int, float, float], TrainingError]
"""(node, round, loss, lr): the error of a training whose loss or update is not finite."""


class ResidentStack:
    """`ResidentModels` of a stack of linear layers; see `ResidentModels`."""

    def __init__(
        self, stack: DeviceStack | HostStack, batches: Batches, settings: TrainSettings, rounds: int, diverged: Diverged
    ) -> None:
        self._stack, self._batches, self._settings = stack, batches, settings
        self._rounds, self._diverged = rounds, diverged
        self._unread: list[tuple[int, float]] = []  # rounds with losses still on the device, and their rates
        self._failed: TrainingError | None = None

    @property
    def unread(self) -> int:
        return self._stack.unread

    def load(self, models: Vector) -> None:
        with self._errors_of("loading the models"):
            self._stack.load(models)

    def advance(self, round: int, phase: int | None, groups: RowGroups, *, watched: bool) -> Disagreement | None:
        stack: Any = self._stack
        lr = self._settings.rate(round, self._rounds)
        indices = self._batches.plan_all(round, stack.n)
        assert indices is not None, "local steps are a number"
        with self._errors_of(f"round {round}"):
            mixing = stack.mixing_of(phase, groups)
            found: Disagreement | None = (stack.watched if watched else stack.advance)(indices, lr, mixing, phase)
        self._unread.append((round, lr))
        return found

    def losses(self) -> Sequence[npt.NDArray[np.float64]]:
        """See `ResidentModels`.  Raises TrainingError if a loss or an update is not finite."""
        if self._failed:
            raise self._failed
        with self._errors_of("reading the losses"):
            losses, finite = self._stack.losses()
        rounds, self._unread = self._unread, []
        for place, (round, lr) in enumerate(rounds):
            whole = finite[place] & np.isfinite(losses[place])
            if not whole.all():
                node = int(np.argmin(whole))
                self._failed = self._diverged(node, round, float(losses[place, node]), lr)
                return list(losses[:place])
        return list(losses)

    def models(self) -> Vector:
        with self._errors_of("reading the models"):
            return self._stack.models()

    @contextmanager
    def _errors_of(self, doing: str) -> Iterator[None]:
        try:
            yield
        except TrainingError:
            raise
        except RuntimeError as error:
            text = f"{doing}: {self._stack.device} failed: {first_line(error)}"
            raise TrainingError(text, 'Resume with --resume, or set train.device = "cpu".') from error


def resident_models(
    engine: LayerStack,
    batches: Batches,
    settings: TrainSettings,
    rounds: int,
    diverged: Diverged,
    n: int,
    note: Callable[[str, str], None],
) -> ResidentStack | None:
    """Return n models on the engine's device, for plain SGD by local_steps; None, with a `note`, without support or
    memory.
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
    return ResidentStack(stack, batches, settings, rounds, diverged)
