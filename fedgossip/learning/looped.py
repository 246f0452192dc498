"""One model after another: the engine of every model that `batched` does not know.

The module's tensors are views of one flat tensor: loading a vector is one copy, and so is reading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from fedgossip import seeds
from fedgossip.learning import optimizers
from fedgossip.learning.batched import Outcome, State
from fedgossip.learning.batches import Plan
from fedgossip.learning.data import Dataset
from fedgossip.learning.flat import Layout
from fedgossip.learning.settings import TrainSettings
from fedgossip.machine import Terms
from fedgossip.vectors import Vector, empty, frozen

PERSONAL = "personal"
"""Under this name a node's state holds its personal parameters."""

TEST_ROWS = 512  # test examples at a time


class ModuleLoop:
    """Trains and evaluates any torch module, one job at a time.

    Buffers that are not in the layout (integer ones; with buffers="local" the running statistics too) belong to the
    node: they are loaded before its job and kept after it.  With "local" no vector has statistics of its own, so
    evaluation then normalises by the statistics of the test batch.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        train: Dataset,
        test: Dataset,
        settings: TrainSettings,
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        self.width = settings.batch_size
        self._module, self._layout, self._settings, self._seed, self._device = module, layout, settings, seed, device
        module.to(device)
        own = Layout.personal_of(module, settings.stays)
        self._p = own.length  # elements that stay at the node come first, so that all that is trained lies together
        self.trained = own.length + layout.parameters
        self._all = torch.empty(own.length + layout.length, device=device)
        self._own, self._flat = self._all[: own.length], self._all[own.length :]
        layout.adopt(module, self._flat)
        own.adopt(module, self._own)
        self._fresh_own = self._own.clone()
        self._weights = self._all[: self.trained].unsqueeze(0)
        self._gradient = torch.zeros_like(self._weights)
        self._bind_gradients(own, self._gradient[0, : own.length])
        self._bind_gradients(layout, self._gradient[0, own.length :])
        self._local = {name: b for name, b in module.named_buffers() if name not in layout.names}
        self._fresh = {name: b.detach().clone() for name, b in self._local.items()}
        self._x, self._y = _tensor(train.x).to(device), _tensor(train.y).to(device)
        self._test = (_tensor(test.x).to(device), _tensor(test.y).to(device))

    def _bind_gradients(self, layout: Layout, gradient: torch.Tensor) -> None:
        tensors = dict(self._module.named_parameters())
        for name, where, shape in layout.places():
            if name in tensors:
                tensors[name].grad = gradient[where].view(shape)

    # --- training ---------------------------------------------------------------------------------------------

    def train_one(
        self, vector: Vector, plan: Plan, lr: float, state: State, name: tuple[int, int], terms: Terms | None = None
    ) -> Outcome:
        """Train one job; `name` is its (node, round), which seeds dropout."""
        self._load(vector)
        self._load_local(state)
        self._module.train()
        slots, pull = self._slots_of(state), self._pull_of(terms)
        taken = int(state["steps"]) if "steps" in state else 0
        rate, root = optimizers.rates(self._settings, [lr], [taken], len(plan.counts))
        losses = []
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            self._seed_here(*name)
            for step, (row, count) in enumerate(zip(plan.indices, plan.counts, strict=True)):
                losses.append(self._gradient_of(torch.from_numpy(row[:count]).to(self._device)))
                with torch.no_grad():
                    self._optimise(slots, pull, float(rate[step, 0]), float(root[min(step, len(root) - 1), 0]))
        self._keep(state, slots, taken + len(losses))
        difference = empty(self._layout.length, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is said so
            np.subtract(self._flat.cpu().numpy(), vector, out=difference)
            finite = bool(np.isfinite(difference.sum()))
        return Outcome(frozen(difference), float(torch.stack(losses).double().mean()), finite)

    def _slots_of(self, state: State) -> list[torch.Tensor]:
        names = self._settings.slots
        kept = [state.get(name, np.zeros(self.trained, np.float32)) for name in names]
        return [torch.from_numpy(array.copy()).to(self._device).unsqueeze(0) for array in kept]

    def _pull_of(self, terms: Terms | None) -> optimizers.Pull | None:
        if terms is None or not terms.active:
            return None
        correction = np.zeros(self._layout.length, np.float32) if terms.correction is None else terms.correction
        towards = torch.from_numpy(correction[: self._layout.parameters].copy()).to(self._device).unsqueeze(0)
        return optimizers.Pull(
            torch.tensor(terms.pull, device=self._device), self._weights[:, self._p :].clone(), towards
        )

    def _gradient_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Fill the flat gradient from one batch and return its loss."""
        self._gradient.zero_()
        loss = _cross_entropy(self._module(self._x[rows]), self._y[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _optimise(self, slots: Sequence[torch.Tensor], pull: optimizers.Pull | None, rate: float, root: float) -> None:
        if self._settings.clip_norm is not None:
            optimizers.clip([self._gradient], self._settings.clip_norm)
        if pull is not None:
            pull.add_to(self._gradient[:, self._p :], self._weights[:, self._p :])
        pair = torch.tensor([rate, root], device=self._device)
        optimizers.step(self._settings, self._weights, self._gradient, slots, rate=pair[0], root=pair[1])

    def _seed_here(self, node: int, round: int) -> None:
        root = seeds.integer(self._seed, "dropout", node, round)
        torch.default_generator.manual_seed(root)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(root)

    def _load(self, vector: Vector) -> None:
        if self._device.type == "cpu":
            np.copyto(self._flat.numpy(), vector)
        else:
            self._flat.copy_(torch.from_numpy(vector.copy()))

    def _load_local(self, state: State) -> None:
        for name, buffer in self._local.items():
            kept = state.get(f"buffer:{name}")
            buffer.copy_(self._fresh[name] if kept is None else torch.from_numpy(np.array(kept)))
        self._own.copy_(torch.from_numpy(np.array(state[PERSONAL])) if PERSONAL in state else self._fresh_own)

    def _keep(self, state: State, slots: Sequence[torch.Tensor], taken: int) -> None:
        for name, buffer in self._local.items():
            state[f"buffer:{name}"] = buffer.detach().cpu().numpy().copy()
        if self._p:
            state[PERSONAL] = self._own.cpu().numpy().copy()
        for slot, tensor in zip(self._settings.slots, slots, strict=True):
            state[slot] = tensor.reshape(-1).cpu().numpy().copy()
        if slots:
            state["steps"] = np.asarray(taken)

    # --- evaluation -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, vectors: Sequence[Vector]) -> list[dict[str, float]]:
        """Return the mean loss and the accuracy on the test set, per vector."""
        self._own.copy_(self._fresh_own)
        return [self._evaluate_one(vector) for vector in vectors]

    @torch.no_grad()
    def evaluate_own(self, vector: Vector, state: State) -> dict[str, float]:
        """The same of one node: with its personal layers and local buffers."""
        self._load_local(state)
        return self._evaluate_one(vector)

    def _evaluate_one(self, vector: Vector) -> dict[str, float]:
        self._load(vector)
        self._module.eval()
        if self._settings.buffers == "local":
            for part in self._module.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.train()  # batch statistics; what it does to the buffers goes at the next job's load
        chunks = -(-len(self._test[0]) // TEST_ROWS)
        total, hits, predicted = 0.0, 0, 0
        for x, y in zip(*(part.tensor_split(chunks) for part in self._test), strict=True):
            logits = self._module(x)
            total += float(_cross_entropy(logits, y)) * y.numel()
            hits += int((logits.argmax(-1) == y).sum())
            predicted += y.numel()
        return {"loss": total / predicted, "accuracy": hits / predicted}


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Return a tensor over the array's memory, or over a copy where torch could not write to it."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
