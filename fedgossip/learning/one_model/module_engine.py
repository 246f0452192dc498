"""The engine of every model that `stacked_engine` does not support, one model after another; alone, or in a group
(`learning.processes`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedgossip.base import seeds
from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.machine import Terms
from fedgossip.core.task import Segment
from fedgossip.data.dataset import Dataset
from fedgossip.learning.dp_sgd.private import PrivateGradients
from fedgossip.learning.many_nodes.stacked_engine import Outcome, State
from fedgossip.learning.one_model import devices, loading, optimizers, spectral_norms, weights
from fedgossip.learning.one_model.batches import BatchPlan, Indices
from fedgossip.learning.one_model.captured_steps import CapturedSteps, captured_steps
from fedgossip.learning.one_model.devices import LOSS_SCALE, LossScale
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.losses import Criterion, Passes, Watch, WholePasses, predicted
from fedgossip.learning.one_model.scoring import Scoring, Tally
from fedgossip.learning.one_model.sharing import GpuSharing, OutOfMemory
from fedgossip.learning.one_model.stretches import GradientStretches, final_in_backward
from fedgossip.learning.one_model.weights import Held, Line
from fedgossip.learning.processes.group import Team, TeamNorm
from fedgossip.learning.settings import TrainSettings

PERSONAL = "personal"
"""Name in a node's state of its personal parameters."""

STEPS = "steps"
TEST_ROWS = 512  # test examples at a time


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """A module over the processes of a team: this process's part, and the callable of a forward pass."""

    team: Team
    held: Held
    forward: nn.Module
    passes: Passes | None = None
    """The passes of batches through a module that is only partly here."""
    testers: Team | None = None
    """All processes, if they share evaluations only and take steps independently."""


class Sums(NamedTuple):
    """Sums of an evaluation over predictions."""

    loss: float
    predicted: int
    tallies: Sequence[Tally]


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """A job with all its inputs; among the engines' methods only `train_one` changes `state`."""

    name: tuple[int, int]
    """(node, round), which seeds dropout."""
    vector: Vector
    plan: BatchPlan
    lr: float
    state: State
    terms: Terms | None = None


class Done(NamedTuple):
    """The result of a job: the mean loss of its steps, and the number of skipped steps."""

    loss: float
    skipped: int


class ModuleLoop:
    """Trains and evaluates any torch module, one job at a time.

    It synchronises with a GPU at the end of a job only (but float16 reads every gradient, lars and lamb every layer).

    Buffers outside the layout (integers; with buffers="local" running statistics) are loaded before the node's job and
    stored after it.  With "local" evaluation normalises by the test batch.

    A job changes its node's state only at its end, so a job that ran out of memory can be trained again.
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
        criterion: Criterion,
        scoring: Scoring,
        sharing: GpuSharing | None = None,
        spread: Spread | None = None,
        private: PrivateGradients | None = None,
    ) -> None:
        self.width = settings.examples_per_step
        self._private, self._criterion, self._scoring = private, criterion, scoring
        self._module, self._layout, self._settings, self._seed, self._device = module, layout, settings, seed, device
        self._sharing = sharing or GpuSharing()
        spread = spread or _alone(module, layout, settings, device)
        self._team, self._held = spread.team, spread.held
        whole = WholePasses(module, spread.forward, criterion, settings.precision, device)
        self._passes = spread.passes or whole
        self._testers = spread.testers or spread.team
        if settings.channels_last:
            devices.innermost(module)
        self._captured: CapturedSteps | None = None
        self._round = 0
        self._norms = [part for part in module.modules() if isinstance(part, TeamNorm)]
        own = Layout.personal_of(module, settings.stays)
        self._p = own.length
        self.trained = self._p + layout.parameters
        segments = weights.trained_segments(own, layout)
        self._steps = OptimiserSteps(settings, self._held, segments, self._p, layout.length)
        self._remembers = remembered(module, layout, settings)
        self._local = weights.local_buffers(module, layout)
        self._fresh = {name: b.detach().clone() for name, b in self._local.items()}
        self._ahead = loading.ahead_of(settings, device, loading.bytes_of(train, test))
        self.hold(train)
        self._test = loading.examples(test, device, self._ahead)
        self._predictions = loading.predictions_in(train)
        if private is not None:
            with self.examples.batches([np.arange(min(2, len(train)))]) as some:
                private.check(*next(some))

    def hold(self, train: Dataset) -> None:
        """Train on these examples from now on."""
        self.examples = loading.examples(train, self._device, self._ahead)

    def capture(self, train: Dataset, note: Callable[[str, int], None]) -> None:
        """Capture steps from now on, if allowed; `note` receives the reason for giving up, and the round."""
        how = self, self._module, train, self._settings, self._device
        self._captured = captured_steps(*how, lambda reason: note(reason, self._round))

    # --- training ---------------------------------------------------------------------------------------------

    def train_one(self, job: Assignment) -> Outcome:
        """Train one job and update its state."""
        trained, held = empty(self._layout.length, np.float32), self._held
        kept = {name: np.empty(shape, kind) for name, (kind, shape) in self._remembers.items()}
        if isinstance(held, weights.FlatWeights) and held.elsewhere:
            done = self._train(job, kept, partial(held.store_difference, trained))
            job.state.update(kept)
            return Outcome(frozen(trained), done.loss, held.finite_difference(), done.skipped)
        done = self.train_into(job, trained, kept)
        job.state.update(kept)
        return outcome(job.vector, trained, done)

    def train_into(self, job: Assignment, trained: Line, kept: Mapping[str, npt.NDArray[Any]]) -> Done:
        """Train one job and write the vector [length] and the node's state; several processes write parts."""
        return self._train(job, kept, partial(self._held.store, trained))

    def _train(self, job: Assignment, kept: Mapping[str, npt.NDArray[Any]], store: Callable[[Line], None]) -> Done:
        self._begin(job)
        state, steps = job.state, self._steps
        pulled = steps.load([state.get(slot) for slot in self._settings.slots], job.vector, job.terms)
        scale = LossScale(state.get(LOSS_SCALE)) if self._settings.precision == "float16" else None
        taken = int(state[STEPS]) if STEPS in state else 0
        rates = optimizers.rates(self._settings, [job.lr], [taken], len(job.plan.counts))
        factors = optimizers.factors(rates, steps.home)[:, :, 0]
        with self._seeded(job.name):
            if self._captured is not None and self._sharing.pieces == 1:
                losses = self._captured_losses(job.plan, factors, pulled)
                done = len(losses)
            else:
                losses, done = self._losses(job.plan, factors, pulled, scale)
        store(kept.get(PERSONAL, np.empty(0, np.float32)))
        self._keep(kept, taken + done, scale)
        total = self._team.total(torch.stack(losses))
        return Done(float(total.double().mean()), len(losses) - done)

    def _losses(
        self, plan: BatchPlan, factors: torch.Tensor, pulled: bool, scale: LossScale | None
    ) -> tuple[list[torch.Tensor], int]:
        """Take the steps of a plan; return this process's part of each loss, and the number of steps not skipped."""
        losses, done = [], 0
        with closing(self._gradients_of(plan, scale)) as gradients:
            for loss in gradients:
                losses.append(loss)
                if scale is None or self._unscaled(scale):
                    with torch.no_grad():
                        self._steps.take(factors[done], pulled=pulled)
                    done += 1
                self._team.progressed()
        return losses, done

    def _captured_losses(self, plan: BatchPlan, factors: torch.Tensor, pulled: bool) -> list[torch.Tensor]:
        assert self._captured is not None
        losses = []
        with self.examples.batches(plan.batches) as examples:
            for (x, y), factor in zip(examples, factors, strict=True):
                try:
                    losses.append(self._captured.step(pulled, x, y, factor))
                except OutOfMemory:
                    self._captured.give_up("memory ran out")
                    raise
                self._team.progressed()
        return losses

    def step(self, pulled: bool, x: torch.Tensor, y: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """See `captured_steps.Stepping`."""
        self._held.forget_gradients()
        loss = self._passes.backward(x, y, 1.0, 1.0, lambda _: nullcontext())
        with torch.no_grad():
            self._steps.take(factors, pulled=pulled)
        return loss

    def changed(self) -> Sequence[torch.Tensor]:
        """See `captured_steps.Stepping`."""
        assert isinstance(self._held, weights.FlatWeights), "steps of several processes are not captured"
        slots = [one for slot in self._steps.slots for one in slot]
        return [*self._held.standing(), *slots, *self._local.values()]

    def gradient_one(self, job: Assignment, stretches: GradientStretches | None = None) -> Outcome:
        """Return the mean gradient at the vector over all examples of the plan; neither trains nor stores state."""
        found = empty(self._layout.length, np.float32)
        done = self.gradient_into(job, found, stretches)
        return Outcome(frozen(found), done.loss, bool(np.isfinite(found.sum())))

    def gradient_into(self, job: Assignment, found: Line, stretches: GradientStretches | None = None) -> Done:
        """Write the mean gradient [length]; several processes write parts."""
        self._begin(job)
        totals = [torch.zeros_like(value) for value in self._held.values]
        losses: list[torch.Tensor] = []
        shares = self._shares_of(job.plan)

        def watched(loss: torch.Tensor) -> AbstractContextManager[None]:
            """The last backward pass: its final elements are sent immediately."""
            if stretches is None or len(losses) < len(shares) - 1:
                return nullcontext()
            total, gradient, share = totals[0][0], self._held.gradients[0][0], shares[-1]
            mean = self._summed_loss([*losses, loss * share])

            def read(where: slice) -> Vector:
                return frozen((total[where] + gradient[where] * share).cpu().numpy())

            return final_in_backward(self._module, self._layout, lambda place: stretches.final_from(place, read, mean))

        with self._seeded(job.name), closing(self._gradients_of(job.plan, None, watched)) as gradients:
            for loss, share in zip(gradients, shares, strict=True):
                losses.append(loss * share)
                with torch.no_grad():
                    for total, gradient in zip(totals, self._held.gradients, strict=True):
                        total.add_(gradient * share)
                self._team.progressed()
        weights.gathered(totals, self._held.places, found)
        return Done(self._summed_loss(losses), 0)

    def _summed_loss(self, shares: list[torch.Tensor]) -> float:
        return float(self._team.total(torch.stack(shares)).double().sum())

    def _shares_of(self, plan: BatchPlan) -> list[float]:
        """Return each batch's weight in the mean; equal if training is private, because sizes would disclose
        information.
        """
        counts = np.ones(len(plan.counts)) if self._private is not None else predictions_of(plan, self._predictions)
        return [float(np.float32(share)) for share in counts / counts.sum()]

    def _begin(self, job: Assignment) -> None:
        _, self._round = job.name
        self._team.begins(job.name)
        self._held.load(job.vector)
        self._load_local(job.state)
        self._module.train()
        if self._private is not None:
            self._private.begin(*job.name)

    def _gradients_of(
        self, plan: BatchPlan, scale: LossScale | None, watched: Watch = lambda _: nullcontext()
    ) -> Generator[torch.Tensor]:
        """Fill the gradient batch by batch; yield this process's part of each loss, 0 if training is private."""
        batches = plan.batches
        if self._private is not None:
            with self.examples.batches(batches) as examples:
                for x, y in examples:
                    self._private.fill(x, y)
                    yield torch.zeros(())
            return
        pieces = max(self._settings.accumulate, self._sharing.pieces)
        steps = [self._team.pieces_of(rows, pieces, self._predictions) for rows in batches]
        with self.examples.batches([rows for parts in steps for rows, _ in parts]) as examples:
            for rows, weighed in zip(batches, steps, strict=True):
                self._held.forget_gradients()
                self._announce(len(rows))
                factor = self._team.size * (scale.value if scale else 1)  # the processes' gradients are averaged
                watch = watched if len(weighed) == 1 and self._team.size == 1 else lambda _: nullcontext()
                parts = [self._passes.backward(*next(examples), weight, factor, watch) for _, weight in weighed]
                with torch.no_grad():
                    self._held.combine_gradients()
                yield parts[0] if len(parts) == 1 else torch.stack(parts).sum()

    def _announce(self, rows: int) -> None:
        self._passes.announce(rows)
        for norm in self._norms:
            norm.copies = not self._team.splits(rows)

    def _unscaled(self, scale: LossScale) -> bool:
        for gradient in self._held.gradients:
            gradient.mul_(1 / scale.value)
        return scale.take(self._held.finite())

    @contextmanager
    def _seeded(self, name: tuple[int, int]) -> Iterator[None]:
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            ids = (*name, self._testers.draws) if self._testers.draws else name
            root = seeds.integer(self._seed, "dropout", *ids)
            torch.default_generator.manual_seed(root)
            if self._device.type == "cuda":
                torch.cuda.manual_seed(root)
            yield

    def _load_local(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        for name, buffer in self._local.items():
            kept = state.get(f"buffer:{name}")
            buffer.copy_(self._fresh[name] if kept is None else torch.from_numpy(np.array(kept)))
        self._held.load_own(state.get(PERSONAL))

    def _keep(self, kept: Mapping[str, npt.NDArray[Any]], taken: int, scale: LossScale | None) -> None:
        for slot, parts in zip(self._settings.slots, self._steps.slots, strict=True):
            weights.gathered(parts, self._held.places, kept[slot])
        if self._team.rank or not self._team.speaks:
            return
        for name, buffer in self._local.items():
            kept[f"buffer:{name}"][...] = buffer.detach().cpu().numpy()
        if self._settings.slots:
            kept[STEPS][...] = taken
        if scale:
            kept[LOSS_SCALE][...] = scale.get_state()

    # --- evaluation -------------------------------------------------------------------------------------------

    def evaluate(self, vectors: Sequence[Vector]) -> list[dict[str, float]]:
        """Return the mean loss and the metrics on the test set, per vector."""
        return [means([self.sums(vector, None)], self._scoring) for vector in vectors]

    def evaluate_own(self, vector: Vector, state: State) -> dict[str, float]:
        """The same for one node: with its personal layers and local buffers."""
        return means([self.sums(vector, state)], self._scoring)

    @torch.no_grad()
    def sums(self, vector: Vector, state: Mapping[str, npt.NDArray[Any]] | None) -> Sums:
        """Return the sums over this process's part of the test set; `state`: of the node whose personal
        layers to use.
        """
        if state is None:
            self._held.load_own(None)
        else:
            self._load_local(state)
        self._held.load(vector)
        spectral_norms.settle(self._module)
        self._module.eval()
        if self._settings.buffers == "local":
            for part in self._module.modules():
                if isinstance(part, nn.modules.batchnorm._NormBase):
                    part.train()  # batch statistics; changes of the buffers are overwritten at the next job's load
        total, counted = 0.0, 0
        tallies: list[Tally] = []
        for x, y in self._test.chunks(max(1, TEST_ROWS // self._sharing.pieces)):
            mine, counts = self._testers.part_of(len(x))
            self._announce(len(x))
            outputs, labels = self._passes.outputs(x[mine]), y[mine]
            self._team.progressed()
            if counts:
                characters = predicted(labels)
                total += float(self._criterion.mean(outputs, labels)) * characters
                tallies += self._scoring.tallies(outputs.unsqueeze(0), labels)
                counted += characters
        return Sums(total, counted, tallies)


def predictions_of(plan: BatchPlan, count: Callable[[Indices], int]) -> Indices:
    """Return the number of predictions in each batch of a plan."""
    return np.array([count(rows) for rows in plan.batches])


def remembered(module: nn.Module, layout: Layout, settings: TrainSettings) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the type and shape of a node's stored state outside its vector, by name."""
    personal = Layout.personal_of(module, settings.stays).length
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, buffer in weights.local_buffers(module, layout).items():
        found[f"buffer:{name}"] = (str(buffer.dtype).removeprefix("torch."), tuple(buffer.shape))
    if personal:
        found[PERSONAL] = ("float32", (personal,))
    for slot in settings.slots:
        found[slot] = ("float32", (personal + layout.parameters,))
    if settings.slots:
        found[STEPS] = ("int64", ())
    if settings.precision == "float16":
        found[LOSS_SCALE] = ("float64", (2,))
    return found


def outcome(vector: Vector, trained: Line, done: Done) -> Outcome:
    """Return the result of training; `trained` is overwritten."""
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are reported by the outcome
        difference = np.subtract(trained, vector, out=trained)
        finite = bool(np.isfinite(difference.sum()))
    return Outcome(frozen(difference), done.loss, finite, done.skipped)


def means(parts: Sequence[Sums], scoring: Scoring) -> dict[str, float]:
    """Return the mean loss and the metrics of an evaluation by one or several processes."""
    loss = sum(part.loss for part in parts) / sum(part.predicted for part in parts)
    return {"loss": loss, **scoring.values([tally for part in parts for tally in part.tallies])}


def _alone(module: nn.Module, layout: Layout, settings: TrainSettings, device: torch.device) -> Spread:
    module.to(device)
    held = weights.FlatWeights(module, layout, Layout.personal_of(module, settings.stays), device)
    return Spread(Team(), held, compiled(module) if settings.compile else module)


def compiled(module: nn.Module) -> nn.Module:
    """Return the module wrapped by torch.compile; it shares all tensors with the given one."""
    found = torch.compile(module)
    assert isinstance(found, nn.Module)
    return found


# Steps on a process's part of a module, with the optimiser's state and a client's terms.
#
# All tensors have fixed addresses over jobs and are loaded again for each: a captured step (`captured_steps`) reads
# them there.


class OptimiserSteps:
    """Takes the steps of `settings` on held values; `segments`: tensors of their line, the first `own` elements
    personal.
    """

    def __init__(
        self, settings: TrainSettings, held: weights.Held, segments: Sequence[Segment], own: int, length: int
    ) -> None:
        self._settings, self._held, self._segments, self._own, self._length = settings, held, segments, own, length
        # where steps are taken: host memory, if a GPU's parts are offloaded
        self.home = held.values[0].device
        self.slots: list[list[torch.Tensor]] = []
        """Per slot a tensor [1, k] per held value."""
        self._pulls: list[tuple[int, optimizers.Pull]] = []
        """Per value the terms, and the index of the first element that they affect; created for the first job with
        terms.
        """
        self._mu = torch.zeros((), device=self.home)
        self._anchors: list[torch.Tensor] = []
        self._corrections: list[torch.Tensor] = []

    def load(self, remembered: Sequence[Line | None], vector: Vector, terms: Terms | None) -> bool:
        """Load a job: the node's state of each slot, and its terms; return whether the terms change the gradient."""
        if not self.slots:
            self.slots = [weights.scattered(None, self._held.places, self.home) for _ in remembered]
        for slot, line in zip(self.slots, remembered, strict=True):
            weights.spread_over(slot, line, self._held.places)
        if terms is None or not terms.active:
            return False
        if not self._pulls:
            self._make_pulls()
        correction = np.zeros(self._length, np.float32) if terms.correction is None else terms.correction
        for line, into in ((vector, self._anchors), (correction, self._corrections)):
            weights.spread_over(into, self._pad_own(line), self._held.places)
        self._mu.fill_(terms.pull)
        return True

    def take(self, factors: torch.Tensor, *, pulled: bool) -> None:
        """Take a step along the gradient, which is overwritten; `factors` [4, 1] from `optimizers.factors`."""
        if self._settings.clip_norm is not None:
            self._held.clip(self._settings.clip_norm)
        rate, root, kept, mean = factors
        values, gradients = self._held.values, self._held.gradients
        if pulled:
            for (begin, pull), value, gradient in zip(self._pulls, values, gradients, strict=True):
                pull.add_to(gradient[:, begin:], value[:, begin:])
        if self._settings.by_layers:
            how = self._settings, values, gradients, self.slots, self._layers
            optimizers.step_by_layers(*how, rate=rate, root=root, mean=mean)
        else:
            for part, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
                remembered = [slot[part] for slot in self.slots]
                optimizers.step(self._settings, value, gradient, remembered, rate=rate, root=root, kept=kept)
        self._held.refresh()

    def _make_pulls(self) -> None:
        places = self._held.places
        self._anchors, self._corrections = (weights.scattered(None, places, self.home) for _ in range(2))
        for place, anchor, correction in zip(places, self._anchors, self._corrections, strict=True):
            begin = place.count_before(self._own)  # personal elements are not pulled
            self._pulls.append((begin, optimizers.Pull(self._mu, anchor[:, begin:], correction[:, begin:])))

    def _pad_own(self, vector: Vector) -> Vector:
        return vector if not self._own else np.concatenate([np.zeros(self._own, np.float32), vector])

    def _layers(self, tensors: Sequence[torch.Tensor]) -> list[tuple[Sequence[torch.Tensor], bool]]:
        (line,) = tensors
        return [([line[:, one.start : one.stop]], len(one.shape) > 1) for one in self._segments]
