"""Many copies of one stack of layers, trained together by hand-written batched matrix products.

Linear layers with ReLU between them; convolutions before them are in `convolutions`, by the same rules.

    forward     z_l = a_l W_l'        a_{l+1} = max(z_l, 0)
    top         e = (softmax(z) - onehot(y)) * scale          scale: 1 / examples of the step, for plain SGD times -lr
                or another loss's derivative: `tops`
    backward    e_{l-1} = e_l W_l where z_{l-1} > 0, else 0
    update      W_l += e_l' a_l                               plain SGD: gradient and step are one matrix product

A node's bits do not depend on its block: every product is torch.bmm or baddbmm over the node axis; other operations are
elementwise or within one node.  A step has one shape for all nodes; unused rows have weight 0.  Products with a side of
length 1 round differently, so a step has at least two rows, and hidden layers of one unit are not trained here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.machine import Terms
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import Objective
from fedgossip.learning.many_nodes.convolutions import Shape, pictures
from fedgossip.learning.many_nodes.stacked_steps import (
    StepLayout,
    Steps,
    count_steps,
    mean_losses,
    summed_losses,
    top_of,
)
from fedgossip.learning.many_nodes.workspace import Workspace, node_bytes, padded
from fedgossip.learning.one_model import optimizers
from fedgossip.learning.one_model.batches import BatchPlan, Indices
from fedgossip.learning.one_model.scoring import Scoring, Tally
from fedgossip.learning.one_model.stretches import GradientStretches
from fedgossip.learning.settings import TrainSettings

State = dict[str, npt.NDArray[Any]]

CACHE_BYTES = 4 << 20  # of a block: fewer calls against more misses; flat between 4 and 16 MiB on a 2 MiB second level
LARGEST_BLOCK = 128  # nodes; more gain nothing on a CPU
LARGEST_BLOCK_ELSEWHERE = 4096  # nodes on a GPU
TEST_ROWS = 256  # test examples at a time
IMAGE_ROWS = 32  # the same for images: every convolution produces many numbers per input
GRADIENT_COPIES = 2  # stacks of a workspace: weights, gradients


class Outcome(NamedTuple):
    """The result of training one vector: trained minus given, the mean loss, whether the difference is finite."""

    difference: Vector
    loss: float
    finite: bool
    skipped: int = 0
    """Number of skipped steps, after an overflow of a 16-bit gradient."""
    logged: Mapping[str, float] = MappingProxyType({})
    """Further values for the record."""


class LayerStack:
    """The engine of softmax and mlp models, with or without convolutions before the linear layers."""

    def __init__(
        self,
        shape: Shape,
        train: Dataset,
        test: Dataset,
        settings: TrainSettings,
        device: torch.device,
        objective: Objective,
        scoring: Scoring,
    ) -> None:
        self.shape, self.settings, self.device = shape, settings, device
        self.width = max(2, settings.examples_per_step)
        self._objective = objective
        self._length = shape.length
        self._scoring = scoring
        self._test = test
        self._test_rows = IMAGE_ROWS if shape.convolutions else TEST_ROWS
        self._test_blocks: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._workspaces: dict[tuple[int, int], Workspace] = {}
        self.hold(train)

    def hold(self, train: Dataset) -> None:
        """Train on these examples from now on."""
        self._x = _rows(train, self.shape).to(self.device)
        most = self.plain_block * self.width  # plain SGD has the largest blocks
        self._top = top_of(self._objective.loss, train, self.shape.sizes[-1], most, self.device)
        self.layout = StepLayout(self.settings, self.width, self._top, self.device)
        self._tensor = self.layout.tensor

    # --- training ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def train(
        self,
        vectors: Sequence[Vector],
        plans: Sequence[BatchPlan],
        lrs: Sequence[float],
        states: Sequence[State],
        terms: Sequence[Terms | None],
    ) -> list[Outcome]:
        """Return one outcome per vector; `states` are changed in place."""
        outcomes: dict[int, Outcome] = {}
        pulled = {j: one for j, one in enumerate(terms) if one is not None and one.active}
        for group in ([j for j in range(len(plans)) if j not in pulled], list(pulled)):  # each job's path is its own
            order = sorted(group, key=lambda j: -len(plans[j].counts))
            block = self._block(self.width, self._copies(bool(group and group[0] in pulled)))
            for start in range(0, len(order), block):
                part = order[start : start + block]
                taken = [int(states[j].get("steps", 0)) for j in part]
                pulls = [pulled[j] for j in part if j in pulled]
                steps = self.layout.arrange_plans([plans[j] for j in part], [lrs[j] for j in part], taken, pulls)
                found = self._train_block(steps, [vectors[j] for j in part], [states[j] for j in part], pulls)
                outcomes.update(zip(part, found, strict=True))
        return [outcomes[j] for j in range(len(vectors))]

    @torch.no_grad()
    def train_stack(
        self, models: Vector, into: Vector, indices: Indices, lr: float, each: Callable[[slice], None]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Write the differences of plain SGD from `models` [n, d] over examples [steps, n, width] to `into`.

        Return the losses [n], and which differences are finite.  `each`: as in `StackedTask`.
        """
        n, block = len(models), self.plain_block
        finite = np.empty(n, np.bool_)
        picked = torch.zeros((len(indices), n, self.width))
        given, trained = _view_read_only(models), torch.from_numpy(into)
        with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are reported
            whole = self.layout.arrange_full_batches(indices, lr, block)
            for start in range(0, n, block):
                rows = slice(start, min(n, start + block))
                steps = whole.select_block(rows, self._top)
                workspace = self._workspace(rows.stop - start, self.width, 1)
                workspace.load(0, given[rows])
                for step in range(len(indices)):
                    self.plain_step(workspace, steps, step, picked[step, rows].view(-1))
                workspace.store(0, trained[rows])
                difference = np.subtract(into[rows], models[rows], out=into[rows])
                finite[rows] = np.isfinite(difference.sum(axis=1))  # as below
                each(rows)
            return mean_losses(picked.numpy(), whole.weight), finite

    def plain_step(self, workspace: Workspace, steps: Steps, step: int, picked: torch.Tensor) -> None:
        """Take a step of plain SGD for all nodes of a workspace; `picked` [k * width]: negative losses of examples."""
        self._pass(workspace, steps, step, picked, workspace.stacks[0], adds=True)

    @torch.no_grad()
    def gradients(
        self, vectors: Sequence[Vector], plans: Sequence[BatchPlan], stretches: GradientStretches | None = None
    ) -> list[Outcome]:
        """Return the mean gradient at each vector over all examples of its plan, without state; for a single vector,
        send its `stretches` during the computation.
        """
        outcomes: dict[int, Outcome] = {}
        order = sorted(range(len(plans)), key=lambda j: -len(plans[j].counts))
        block = self._block(self.width, GRADIENT_COPIES)
        for start in range(0, len(order), block):
            part = order[start : start + block]
            found = self._gradient_block([plans[j] for j in part], [vectors[j] for j in part], stretches)
            outcomes.update(zip(part, found, strict=True))
        return [outcomes[j] for j in range(len(vectors))]

    def _gradient_block(
        self, plans: Sequence[BatchPlan], vectors: Sequence[Vector], stretches: GradientStretches | None
    ) -> Iterator[Outcome]:
        k = len(vectors)
        steps = self.layout.arrange_gradient(plans)
        weight = steps.weight
        workspace = self._workspace(k, self.width, GRADIENT_COPIES)
        workspace.load(0, self._tensor(np.stack(vectors)))
        for tensor in workspace.stacks[1]:
            tensor.zero_()
        picked = torch.zeros((len(steps.rows), k * self.width), device=self.device)
        found = torch.empty((k, self._length), device=self.device)

        def final(layer: int) -> None:
            """The gradients of this linear layer and all later ones are final."""
            assert stretches is not None
            place = workspace.store_layer(1, layer, found)
            loss = float(summed_losses(picked.cpu().numpy(), weight)[0])
            stretches.final_from(place, lambda where: frozen(found[0, where].cpu().numpy().copy()), loss)

        for step, active in enumerate(steps.active):
            ws = workspace if active == k else workspace.narrow(active)
            last = stretches is not None and step == len(steps.active) - 1
            self._pass(ws, steps, step, picked[step], ws.stacks[1], adds=True, final=final if last else None)
        workspace.store(1, found)
        gradients = found.cpu().numpy()
        with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are reported
            losses = summed_losses(picked.cpu().numpy(), weight).tolist()
            finite = np.isfinite(gradients.sum(axis=1)).tolist()
        return map(Outcome, frozen(gradients), losses, finite)

    def _copies(self, pulled: bool = False) -> int:
        """Number of stacks in a workspace: weights, gradients, the optimiser's slots, terms."""
        if self.settings.plain and not pulled:
            return 1
        return 2 + len(self.settings.slots) + 2 * pulled

    def _train_block(
        self, steps: Steps, vectors: Sequence[Vector], states: Sequence[State], pulls: Sequence[Terms]
    ) -> Iterator[Outcome]:
        k = len(vectors)
        workspace = self._workspace(k, self.width, self._copies(bool(pulls)))
        given = np.stack(vectors)
        workspace.load(0, self._tensor(given))
        self._load_slots(workspace, states)
        if pulls:
            workspace.load(-2, self._tensor(given))
            zeros = np.zeros(self._length, np.float32)
            corrections = [zeros if one.correction is None else one.correction for one in pulls]
            workspace.load(-1, self._tensor(np.stack(corrections)))
        picked = torch.zeros(
            (len(steps.rows), k * self.width), device=self.device
        )  # log p(y); 0 for steps that a node does not take
        for step, active in enumerate(steps.active):
            self._step(workspace if active == k else workspace.narrow(active), steps, step, active, picked[step])
        trained = torch.empty(given.shape, device=self.device)
        workspace.store(0, trained)
        self._store_slots(workspace, states, steps)
        difference = empty(given.size, np.float32).reshape(given.shape)
        with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are reported
            np.subtract(trained.cpu().numpy(), given, out=difference)
            losses = mean_losses(picked.cpu().numpy(), steps.weight).tolist()
            # a row's sum is finite if all its elements are, unless a diverged model overflows the sum
            finite = np.isfinite(difference.sum(axis=1)).tolist()
        return map(Outcome, frozen(difference), losses, finite)

    def _step(self, ws: Workspace, steps: Steps, step: int, active: int, picked: torch.Tensor) -> None:
        plain = self.settings.plain and steps.pull is None
        self._pass(ws, steps, step, picked, ws.stacks[0 if plain else 1], adds=plain)
        if not plain:
            pull = None if steps.pull is None else steps.pull[:active]
            factors = {name: getattr(steps, name)[step, :active] for name in optimizers.Rates._fields}
            self._optimise(ws, factors, pull)

    def _pass(
        self,
        ws: Workspace,
        steps: Steps,
        step: int,
        picked: torch.Tensor,
        into: list[torch.Tensor],
        *,
        adds: bool,
        final: Callable[[int], None] | None = None,
    ) -> None:
        """Compute a step's gradient, times its scale, and write or add it to a stack.

        `final` is called for each linear layer when its gradient is complete, the last layer first.
        """
        rows, targets, scale = steps.rows[step], steps.targets[step], steps.scale[step]
        active = len(ws.logits)
        places = active * self.width
        if len(rows) > places:
            rows, scale, picked = rows[:places], scale[:active], picked[:places]
            targets = self._top.part(targets, slice(0, active), self.width)
        torch.index_select(self._x, 0, rows, out=ws.first_rows)
        if ws.convolutions is not None:
            ws.convolutions.forward()
        _forward(ws, ws.inputs[0])
        self._top.fill(ws, targets, picked)
        ws.top.mul_(scale)
        for layer in range(ws.last, -1, -1):
            if layer:
                _backward(ws, layer)
            elif ws.risen is not None:
                torch.bmm(ws.rising[0], ws.inner[0], out=ws.risen)
            if adds:
                into[ws.kernels + layer].baddbmm_(*ws.factors[layer])
            else:
                torch.bmm(*ws.factors[layer], out=into[ws.kernels + layer])
            if final:
                final(layer)
        if ws.convolutions is not None:
            ws.convolutions.backward(into[: ws.kernels], int(adds))

    def _optimise(self, ws: Workspace, factors: Mapping[str, torch.Tensor], pull: torch.Tensor | None) -> None:
        gradients = ws.stacks[1]
        if self.settings.clip_norm is not None:
            optimizers.clip(gradients, self.settings.clip_norm)
        for layer, gradient in enumerate(gradients):
            if pull is not None:
                anchor, correction = ws.stacks[-2][layer], ws.stacks[-1][layer]
                optimizers.Pull(pull, anchor, correction).add_to(gradient, ws.stacks[0][layer])
        remembered = ws.stacks[2 : 2 + len(self.settings.slots)]
        if self.settings.by_layers:
            rate, root, mean = (factors[name] for name in ("rate", "root", "mean"))
            how = self.settings, ws.stacks[0], gradients, remembered, ws.layers
            optimizers.step_by_layers(*how, rate=rate, root=root, mean=mean)
            return
        rate, root, kept = (factors[name] for name in ("rate", "root", "kept"))
        for layer, gradient in enumerate(gradients):
            slots = [stack[layer] for stack in remembered]
            optimizers.step(self.settings, ws.stacks[0][layer], gradient, slots, rate=rate, root=root, kept=kept)

    def _load_slots(self, ws: Workspace, states: Sequence[State]) -> None:
        for number, name in enumerate(self.settings.slots, 2):
            flat = np.zeros((len(states), self._length), np.float32)
            for row, state in zip(flat, states, strict=True):
                if name in state:
                    row[:] = state[name]
            ws.load(number, self._tensor(flat))

    def _store_slots(self, ws: Workspace, states: Sequence[State], steps: Steps) -> None:
        if not self.settings.slots:
            return
        for number, name in enumerate(self.settings.slots, 2):
            flat = torch.empty((len(states), self._length), device=self.device)
            ws.store(number, flat)
            for state, row in zip(states, flat.cpu().numpy(), strict=True):
                state[name] = row.copy()
        for state, count in zip(states, count_steps(steps.weight), strict=True):
            state["steps"] = np.asarray(int(state.get("steps", 0)) + int(count))

    # --- evaluation -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, vectors: Sequence[Vector]) -> list[dict[str, float]]:
        """Return the mean loss and the metrics on the test set, per vector."""
        block = self._block(self._test_rows, self._copies())
        found: list[dict[str, float]] = []
        for start in range(0, len(vectors), block):
            found += self._evaluate_block(np.stack(vectors[start : start + block]))
        return found

    def _evaluate_block(self, flat: npt.NDArray[np.float32]) -> list[dict[str, float]]:
        k, m = len(flat), len(self._test)
        ws = self._workspace(k, self._test_rows, self._copies())
        ws.load(0, self._tensor(flat))
        picked: list[torch.Tensor] = []
        tallies: list[list[Tally]] = [[] for _ in range(k)]
        for x, labels, given in self._test_set():
            if ws.convolutions is None:
                _forward(ws, x.expand(k, -1, -1))
            else:
                ws.convolutions.images.copy_(x)
                ws.convolutions.forward()
                _forward(ws, ws.inputs[0])
            picked.append(self._top.picked(ws, labels))
            outputs = ws.logits[:, : self.shape.sizes[-1], : len(given)].transpose(1, 2)
            for found, tally in zip(tallies, self._scoring.tallies(outputs, given), strict=True):
                found.append(tally)
        losses = torch.cat(picked, 1)[:, :m].cpu().numpy()
        return [
            {"loss": -float(row.sum(dtype=np.float64)) / m, **self._scoring.values(found)}
            for row, found in zip(np.ascontiguousarray(losses), tallies, strict=True)
        ]

    def _test_set(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Return (x [1, rows, inputs], labels in the top's form, original labels) in blocks of one shape, the last
        padded.
        """
        if not self._test_blocks:
            size = self._test_rows
            short = -len(self._test) % size
            filled = np.pad(np.arange(len(self._test)), (0, short), mode="edge")
            x = _rows(self._test, self.shape)[filled].unsqueeze(0).to(self.device)
            labels, given = self._tensor(self._top.labels(self._test.y[filled])), self._tensor(self._test.y)
            self._test_blocks = [
                (x[:, start : start + size], labels[:, :, start : start + size], given[start : start + size])
                for start in range(0, len(filled), size)
            ]
        return self._test_blocks

    # --- buffers ----------------------------------------------------------------------------------------------

    @property
    def plain_block(self) -> int:
        """Return the number of nodes that plain SGD trains at once."""
        return self._block(self.width, 1)

    def _block(self, rows: int, copies: int) -> int:
        if self.device.type != "cpu":
            return LARGEST_BLOCK_ELSEWHERE
        if self.settings.threads > 1:
            return 1  # threads divide the sums of a lone product; of several products each thread computes whole ones
        return max(1, min(LARGEST_BLOCK, CACHE_BYTES // node_bytes(self.shape, rows, copies)))

    def _workspace(self, k: int, rows: int, copies: int) -> Workspace:
        found = self._workspaces.get((rows, copies))
        if found is None or len(found.logits) < k:
            room = min(self._block(rows, copies), 1 << (k - 1).bit_length())
            found = self._workspaces[rows, copies] = Workspace(self.shape, room, rows, copies, self.device)
        return found.narrow(k)


def _forward(ws: Workspace, first: torch.Tensor) -> None:
    """Fill z and logits from the signals `first` [k, rows, padded inputs]."""
    for turned, weights in ws.refreshed:
        turned.copy_(weights)
    signal = first
    for layer in range(ws.last):
        torch.bmm(signal, ws.turned[layer], out=ws.z[layer])
        torch.clamp(ws.z[layer], min=0, out=ws.hidden[layer + 1])
        signal = ws.inputs[layer + 1]
    torch.bmm(signal, ws.turned[ws.last], out=ws.z[ws.last])
    ws.logits.copy_(ws.turned_logits)


def _backward(ws: Workspace, layer: int) -> None:
    """Fill the errors below `layer`, before its weights change."""
    below = ws.errors[layer - 1]
    torch.bmm(ws.rising[layer], ws.inner[layer], out=below)
    torch.ops.aten.threshold_backward.grad_input(below, ws.z[layer - 1], 0, grad_input=below)


def _view_read_only(array: npt.NDArray[Any]) -> torch.Tensor:
    """Return the tensor of a read-only array, without a copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def _rows(dataset: Dataset, shape: Shape) -> torch.Tensor:
    if shape.convolutions:
        return pictures(dataset.x, shape.convolutions[0])
    inputs = shape.sizes[0]
    rows = np.zeros((len(dataset), padded(inputs)), np.float32)
    rows[:, :inputs] = dataset.x.reshape(len(dataset), -1)
    rows[:, inputs] = 1
    return torch.from_numpy(rows)
