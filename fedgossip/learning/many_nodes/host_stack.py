"""Models of all nodes on the CPU from round to round, in the layout that products read.

    train     a block of nodes after the other: a copy takes the local steps, then x + (t - x), as sent by a peer
    mix       some columns of all nodes after the other (`host_mixing`)

Both work in place, so that a model is in memory once.  It is in a tensor [n, numbers] per layer, as in a `workspace`,
without the rows of zeros behind its weights; a vector has another order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedgossip.base import imports
from fedgossip.base.vectors import RowGroups, Vector, empty, frozen
from fedgossip.core.resident_models import Disagreement, disagreement
from fedgossip.learning.many_nodes.device_stack import MOST_GRAPHS, StackEngine
from fedgossip.learning.many_nodes.host_mixing import HostMixing, room_of
from fedgossip.learning.many_nodes.stacked_steps import mean_losses
from fedgossip.learning.many_nodes.workspace import Tensors, Workspace, numbers_of
from fedgossip.learning.one_model.batches import Indices

KEPT_BLOCK, KEPT = 16 << 20, 64 << 20
"""Maximum bytes of a round's temporary memory, per block and in all: 10 000 nodes have blocks of 5 MB."""


class _Block(NamedTuple):
    """Nodes that train at once: their `models`, and the same numbers of the copy that is `trained` in a workspace."""

    nodes: slice
    workspace: Workspace
    models: Tensors
    trained: Tensors


class HostStack:
    """n models of an engine's shape, which take `steps` steps of plain SGD a round."""

    untold = 1
    """Maximum number of rounds with unread losses."""

    def __init__(self, engine: StackEngine, n: int, steps: int, note: Callable[[str, str], None]) -> None:  # noqa: ARG002
        self.n, self._engine, self._most = n, engine, min(n, engine.plain_block)
        self.device = engine.device
        imports.keep(KEPT_BLOCK, KEPT)
        sizes = numbers_of(engine.shape)
        # of numpy's: it asks the system for large pages, which torch does not
        self._models = [torch.from_numpy(np.zeros((n, size), np.float32)) for size in sizes]
        self._room = torch.from_numpy(np.zeros(room_of(n, max(sizes)), np.float32))
        self._picked = torch.zeros((steps, n, engine.width))
        self._sums = torch.zeros((len(self._models), n))
        self._losses: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]] = []
        self._mixings: dict[int, HostMixing] = {}
        self._blocks = list(self._in_blocks())

    def _in_blocks(self) -> list[_Block]:
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
        """Return the mixing of the rounds of a phase, kept where few phases repeat."""
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
        whole = engine.layout.of_full_batches(indices, lr, self._most)
        for nodes, workspace, models, trained in self._blocks:
            for into, given in zip(trained, models, strict=True):
                into.copy_(given)
            steps = whole.of_block(nodes, engine.layout.top)
            for step in range(len(picked)):
                engine.plain_step(workspace, steps, step, picked[step, nodes].view(-1))
            for total, given, one in zip(self._sums, models, trained, strict=True):
                given.add_(one.sub_(given))
                torch.sum(given, 1, out=total[nodes])
        # a row's sum is finite where all its elements are, short of a model that has exploded anyway
        finite = torch.isfinite(self._sums.sum(0)).numpy()
        with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are reported by `finite`
            self._losses.append((mean_losses(picked.numpy(), whole.weight), finite))
