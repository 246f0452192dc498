"""Models of all nodes that stay on a device from round to round, in the memory layout of the products.

    models    the start of a round; unchanged until the round is mixed
    trained   their copy, changed by local steps; then x + (t - x), as sent by a peer
    mixing    of `trained` into `models`

Both are stacks [n, ...] of a tensor per layer (`workspace`).  Results are rounded as on the host: a CPU gives a peer's
bits.  Mixing gives the bits of `vectors.ordered_mix`: a row is gathered, multiplied and added by three operations,
never by a fused one.  After running out of memory a round restarts from `models` with half the block.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import RowGroups, Vector, empty, frozen, one_scale_each
from fedgossip.core.metrics import ROUNDINGS, Disagreement
from fedgossip.learning.many_nodes.convolutions import Shape
from fedgossip.learning.many_nodes.stacked_steps import StepLayout, Steps
from fedgossip.learning.many_nodes.workspace import Workspace, stack_of
from fedgossip.learning.one_model.batches import Indices
from fedgossip.learning.one_model.captured_steps import CapturedWork, Part, capture_on
from fedgossip.learning.one_model.sharing import OutOfMemory

ROUNDS_KEPT = 32
"""Capacity of the buffer of losses on the device, in rounds; larger than the maximum number of unread rounds."""

MOST_GRAPHS = 16
"""Maximum number of mixings stored on the device, each with a captured round; further rounds capture only training."""


class StackEngine(Protocol):
    """Trains a block of nodes: `stacked_engine.LayerStack`."""

    shape: Shape
    device: torch.device
    width: int
    layout: StepLayout

    @property
    def plain_block(self) -> int: ...

    def plain_step(self, workspace: Workspace, steps: Steps, step: int, picked: torch.Tensor) -> None: ...


class DeviceStack:
    """n models of an engine's shape, which take `steps` steps of plain SGD a round.

    `note` receives an event's name and text: smaller blocks, a round not captured.  Raises torch.cuda.OutOfMemoryError.
    """

    unread = 16
    """Maximum number of rounds with losses still on the device."""

    def __init__(self, engine: StackEngine, n: int, steps: int, note: Callable[[str, str], None]) -> None:
        self.n, self._engine, self._note = n, engine, note
        self.device = device = engine.device
        self._models, self._trained = stack_of(engine.shape, n, device), stack_of(engine.shape, n, device)
        self._model_rows, self._trained_rows = ([one.view(n, -1) for one in s] for s in (self._models, self._trained))
        self._examples = torch.zeros((steps, n, engine.width), dtype=torch.int64, device=device)
        self._scale = torch.from_numpy(engine.layout.full_scale(0.0)).to(device)
        self._weight = torch.from_numpy(engine.layout.full_weight).to(device).double()
        self._losses = torch.zeros(n, dtype=torch.float64, device=device)
        self._finite = torch.zeros(n, dtype=torch.bool, device=device)
        self._kept_losses = torch.zeros((ROUNDS_KEPT, n), dtype=torch.float64, device=device)
        self._kept_finite = torch.zeros((ROUNDS_KEPT, n), dtype=torch.bool, device=device)
        self._kept, self._lr = 0, 0.0
        self._most = min(n, engine.plain_block)
        self._blocks: list[tuple[slice, Workspace]] = []
        self._mixings: dict[int, DeviceMixing] = {}
        self._graphs: dict[tuple[str, int | None], CapturedWork] = {}
        self._capture = capture_on(device)

    @torch.no_grad()
    def load(self, models: Vector) -> None:
        """Copy models [n, d] from host memory."""
        self._retried(lambda: self._load(models))

    def _load(self, models: Vector) -> None:
        for rows, workspace in self._make_blocks():
            workspace.load(0, torch.from_numpy(np.array(models[rows])).to(self.device))
        for into, given in zip(self._models, self._trained, strict=True):
            into.copy_(given)

    @torch.no_grad()
    def models(self) -> Vector:
        """Return the models [n, d], frozen, in host memory."""
        length = self._engine.shape.length
        out = empty(self.n * length, np.float32).reshape(self.n, length)
        self._retried(lambda: self._store(out))
        return frozen(out)

    def _store(self, out: Vector) -> None:
        for into, given in zip(self._trained, self._models, strict=True):  # no longer needed by any round
            into.copy_(given)
        for rows, workspace in self._make_blocks():
            flat = torch.empty((rows.stop - rows.start, out.shape[1]), device=self.device)
            workspace.store(0, flat)
            out[rows] = flat.cpu().numpy()

    @torch.no_grad()
    def advance(self, indices: Indices, lr: float, mixing: DeviceMixing, phase: int | None) -> None:
        """Train all nodes on examples [steps, n, width] and mix; `phase` as given to `mixing_of`."""
        self._feed(indices, lr)
        if phase is None or phase not in self._mixings:
            self._do("train", None, self._train)
            self._mix(mixing, None)
        else:
            self._do("round", phase, self._train, *self._mixed_by(mixing))
        self._keep()

    @torch.no_grad()
    def watched(self, indices: Indices, lr: float, mixing: DeviceMixing, phase: int | None) -> Disagreement:
        """As `advance`; return the models' disagreement."""
        self._feed(indices, lr)
        self._do("train", None, self._train)
        found: list[torch.Tensor] = []
        self._retried(lambda: found.extend(self._measure_before_mixing()))
        self._mix(mixing, phase)
        self._retried(lambda: found.append(squared_distance(self._model_rows)))
        self._keep()
        before, spread, size, after = map(math.sqrt, torch.stack(found[-4:]).div_(self.n).tolist())
        return Disagreement(after, before, spread, ROUNDINGS * float(np.finfo(np.float32).eps) * size)

    def mixing_of(self, phase: int | None, groups: RowGroups) -> DeviceMixing:
        """Return the mixing of the rounds of a phase, cached if few phases repeat."""
        if phase is not None and phase in self._mixings:
            return self._mixings[phase]
        made = DeviceMixing(groups, self.n, self.device)
        if phase is not None and len(self._mixings) < MOST_GRAPHS:
            self._mixings[phase] = made
        return made

    def losses(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Return (losses, whether the updates were finite), [rounds, n] each, of the rounds since the last call."""
        kept, self._kept = self._kept, 0
        return self._kept_losses[:kept].cpu().numpy().copy(), self._kept_finite[:kept].cpu().numpy().copy()

    # --- a round ----------------------------------------------------------------------------------------------

    def _feed(self, indices: Indices, lr: float) -> None:
        """Copy a round's inputs and rate to the device in one transfer."""
        assert self._kept < ROUNDS_KEPT, "the losses of so many rounds are not kept"
        given = torch.from_numpy(np.ascontiguousarray(indices))
        if self.device.type == "cuda":
            given = given.pin_memory()  # torch keeps it until the copy is through
        self._examples.copy_(given, non_blocking=True)
        if lr != self._lr:
            self._scale.copy_(torch.from_numpy(self._engine.layout.full_scale(lr)))
            self._lr = lr

    def _do(self, name: str, phase: int | None, *parts: Part) -> None:
        """Run parts of a round; from the second call on as one captured graph, if possible."""
        key = name, phase
        if key not in self._graphs:
            self._graphs[key] = CapturedWork(parts, self._capture, self._not_captured, self._retried)
        self._graphs[key]()

    def _mix(self, mixing: DeviceMixing, phase: int | None) -> None:
        parts = self._mixed_by(mixing)
        if phase is not None and phase in self._mixings:
            self._do("mix", phase, *parts)
        else:
            for part in parts:
                self._retried(part)

    def _mixed_by(self, mixing: DeviceMixing) -> tuple[Part, Part]:
        """Return two parts: the first allocates no memory, because it must not be repeated."""
        return (
            lambda: mixing.scale(self._trained_rows),
            lambda: mixing.mix(self._trained_rows, self._model_rows, self._most),
        )

    def _keep(self) -> None:
        self._kept_losses[self._kept].copy_(self._losses)
        self._kept_finite[self._kept].copy_(self._finite)
        self._kept += 1

    def _measure_before_mixing(self) -> list[torch.Tensor]:
        trained, models = self._trained_rows, self._model_rows
        return [squared_distance(trained), squared_distance(trained, models), squared_size(trained)]

    def _train(self) -> None:
        for rows, workspace in self._make_blocks():
            given, trained = [one[rows] for one in self._models], workspace.stacks[0]
            for into, one in zip(trained, given, strict=True):
                into.copy_(one)
            self._losses[rows] = self._stepped(rows, workspace)
            sums = torch.zeros(rows.stop - rows.start, device=self.device)
            for into, one in zip(trained, given, strict=True):
                into.sub_(one)
                sums.add_(into.flatten(1).sum(1))
                into.add_(one)
            # a row's sum is finite if all its elements are, unless a diverged model overflows the sum
            self._finite[rows] = torch.isfinite(sums)

    def _stepped(self, rows: slice, workspace: Workspace) -> torch.Tensor:
        """Take the local steps; return each node's mean loss [k]."""
        k, width = rows.stop - rows.start, self._engine.width
        examples = [one[rows].view(-1) for one in self._examples]
        steps = self._engine.layout.arrange_rows(examples, self._scale, k)
        total = torch.zeros(k, dtype=torch.float64, device=self.device)
        for step in range(len(examples)):
            picked = torch.empty(k * width, device=self.device)
            self._engine.plain_step(workspace, steps, step, picked)
            total.sub_(picked.view(k, width).double().mul_(self._weight[0]).sum(1))
        return total.div_(len(examples))

    # --- memory -----------------------------------------------------------------------------------------------

    def _make_blocks(self) -> list[tuple[slice, Workspace]]:
        if not self._blocks:
            parts = [slice(at, min(self.n, at + self._most)) for at in range(0, self.n, self._most)]
            stacks = [[one[rows] for one in self._trained] for rows in parts]
            shape, width = self._engine.shape, self._engine.width
            room = Workspace(shape, self._most, width, 1, self.device, stacks[0])
            spaces = [room.narrow(rows.stop - rows.start) for rows in parts]
            self._blocks = [(r, space.on(stack)) for r, space, stack in zip(parts, spaces, stacks, strict=True)]
        return self._blocks

    def _retried(self, part: Part) -> None:
        """Run a part; after running out of memory with smaller blocks, so it must not read its own output.

        Raises TrainingError if memory does not suffice for one node.
        """
        while True:
            try:
                return part()
            except OutOfMemory:
                pass  # outside the handler: the error's frames hold used memory
            self._halve()

    def _halve(self) -> None:
        if self._most == 1:
            text = "out of memory, with the models of all nodes on the device and one of them in training"
            raise TrainingError(text, 'Take fewer nodes or smaller models, or train.device = "cpu".')
        self._most = -(-self._most // 2)
        self._blocks, self._graphs = [], {}
        gc.collect()
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.empty_cache()
        self._note("smaller_blocks", f"{self._most} nodes train at a time")

    def _not_captured(self, reason: str) -> None:
        if self._capture is not None:
            self._note("not_captured", reason)
        self._capture = None


GATHERED_BYTES = {"cuda": 16 << 20}
"""Bytes of rows gathered at a time: they stay in a GPU's second-level cache until they are added."""

GATHERED_ELSEWHERE = 1 << 18
"""The same on a CPU: 58 us for a node of 10 000 elements and five terms, and 119 with 16 MiB."""

MEASURED_NUMBERS = 1 << 22
"""Number of elements compared at a time: 32 MiB of float64."""

Rows = torch.Tensor
"""[n, P], float32."""


class _TermGroup(NamedTuple):
    """Rows with equal numbers of terms: `nodes` [g]; per term `ids` [k, g] and `weights` [k, g, 1]."""

    nodes: torch.Tensor | None
    """None if these are all nodes in order."""
    ids: torch.Tensor
    weights: torch.Tensor


class DeviceMixing:
    """The mixing of a round, on the device.  `scales` [n, 1]: a row's factor if all receivers give it the same weight;
    the row is then scaled once.
    """

    def __init__(self, groups: RowGroups, n: int, device: torch.device) -> None:
        self._groups = [_group_of(nodes, ids, weights, n, device) for nodes, ids, weights in groups]
        scales = one_scale_each(groups, n, np.dtype(np.float32))
        self._scales = None if scales is None else torch.from_numpy(scales[:, None]).to(device)

    def scale(self, rows: Sequence[Rows]) -> None:
        """Scale rows in place; each tensor contains some of the columns.  Call once, before `mix`."""
        if self._scales is not None:
            for one in rows:
                one.mul_(self._scales)

    def mix(self, rows: Sequence[Rows], into: Sequence[Rows], most: int) -> None:
        """Write the weighted sums of the scaled rows to `into`, for at most `most` nodes at a time."""
        for source, out in zip(rows, into, strict=True):
            room = GATHERED_BYTES.get(source.device.type, GATHERED_ELSEWHERE)
            at_once = max(1, min(most, room // (4 * source.shape[1])))
            for group in self._groups:
                for start in range(0, group.ids.shape[1], at_once):
                    self._mix(group, slice(start, start + at_once), source, out)

    def _mix(self, group: _TermGroup, part: slice, source: Rows, out: Rows) -> None:
        ids = [one[part] for one in group.ids]
        total = source.index_select(0, ids[0]) if group.nodes is not None else out[part]
        if group.nodes is None:
            torch.index_select(source, 0, ids[0], out=total)
        self._weigh(total, group, 0, part)
        for slot in range(1, len(ids)):
            term = source.index_select(0, ids[slot])
            self._weigh(term, group, slot, part)
            total.add_(term)
        if group.nodes is not None:
            out.index_copy_(0, group.nodes[part], total)

    def _weigh(self, term: Rows, group: _TermGroup, slot: int, part: slice) -> None:
        if self._scales is None:
            term.mul_(group.weights[slot, part])


def _group_of(nodes: np.ndarray, ids: np.ndarray, weights: np.ndarray, n: int, device: torch.device) -> _TermGroup:
    whole = np.array_equal(nodes, np.arange(n))
    turned = np.ascontiguousarray(ids.T), np.ascontiguousarray(weights.T.astype(np.float32)[:, :, None])
    there = [torch.from_numpy(one).to(device) for one in turned]
    return _TermGroup(None if whole else torch.tensor(nodes, device=device), *there)


def squared_distance(rows: Sequence[Rows], since: Sequence[Rows] | None = None) -> torch.Tensor:
    """Return sum_i ||x_i - mean||^2 in float64, on the device; with `since` of the differences x_i - since_i.

    Each difference is rounded to float32, as in `vectors.consensus_distance`.
    """

    def centre(block: torch.Tensor) -> torch.Tensor:
        return block - block.mean(0)

    return _summed(rows, since, centre)


def squared_size(rows: Sequence[Rows]) -> torch.Tensor:
    """Return sum_i ||x_i||^2 in float64, on the device."""
    return _summed(rows, None, lambda block: block)


def _summed(
    rows: Sequence[Rows], since: Sequence[Rows] | None, of: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64, device=rows[0].device)
    for place, one in enumerate(rows):
        n, columns = one.shape
        width = max(1, MEASURED_NUMBERS // n)
        for start in range(0, columns, width):
            block = one[:, start : start + width]
            if since is not None:
                block = block - since[place][:, start : start + width]
            total += of(block.double()).square_().sum()
    return total
