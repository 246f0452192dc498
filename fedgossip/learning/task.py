"""Local training with torch, with the same bits for every grouping of jobs into calls; and the baseline of one model on
all data.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedgossip.base.errors import ConfigError, FedgossipError, TrainingError, place_of
from fedgossip.base.vectors import Vector, add
from fedgossip.core.machine import NodeId, Produced, Report
from fedgossip.core.metrics import ResidentModels
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.task import Job, Segment, StackTraining, Update, WholeModel, first_wrong
from fedgossip.data.dataset import OF_COLUMNS, Dataset, check_kind, check_shares
from fedgossip.data.objectives import Objective, objective_of
from fedgossip.data.partitions import DrawExamples
from fedgossip.data.ragged import Ragged
from fedgossip.learning.dp_sgd.private import PrivateGradients
from fedgossip.learning.dp_sgd.record_privacy import PoissonBatches, RecordPrivacy, check_private
from fedgossip.learning.many_nodes import resident
from fedgossip.learning.many_nodes.convolutions import Shape, shape_of
from fedgossip.learning.many_nodes.job_blocks import blocks_of
from fedgossip.learning.many_nodes.stacked_engine import LayerStack, Outcome, State
from fedgossip.learning.many_nodes.stacked_steps import BY_HAND
from fedgossip.learning.models import loaded_model, models
from fedgossip.learning.one_model import loading, optimizers, probing, sharing
from fedgossip.learning.one_model.batches import Batches, BatchPlan, BucketBatches, Indices, check_lines, smallest_batch
from fedgossip.learning.one_model.devices import choose_float64
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.holdout import LocalTests
from fedgossip.learning.one_model.losses import Criterion, not_finite
from fedgossip.learning.one_model.module_engine import Assignment, ModuleLoop, predictions_of
from fedgossip.learning.one_model.own_trials import ALONE, check_one_example, check_own_parts
from fedgossip.learning.one_model.scoring import Scoring, check_together
from fedgossip.learning.one_model.stretches import GradientStretches
from fedgossip.learning.processes.engine import DistributedLoop, HogwildLoop, ProcessesLoop, Source
from fedgossip.learning.settings import HOGWILD, TrainSettings
from fedgossip.learning.untrained import check_gradients

if TYPE_CHECKING:
    from fedgossip.learning.processes.step_costs import ProcessMemory, StepShape


__all__ = ["TorchTask", "TrainSettings"]


class TorchTask:
    """A LocalTask that trains `model_source` on `train`; node i owns the examples shares[i], if any are local.

    A batch is a function of (seed, node, round), so a job may be computed anywhere, alone or with others.  Optimiser
    state and local buffers stay with their node, so its jobs must arrive in order (`state`).

    Stacks of Linear and ReLU train many nodes at once (`stacked_engine`), on the CPU also with convolutions, bit for
    bit as one at a time.  Other models train one job after another (`module_engine`), on a CUDA GPU together if
    possible (`job_blocks`), or each in several processes (`distributed`).  With `privacy` (`private`) models train one
    after another, and the metrics are only "steps" and "rate".  Sets torch's threads to settings.threads, as the order
    of a sum may depend on them.

    `kept`: held-out examples of each node, for requested tests.  `draw`: returns a node's examples at each call, in
    place of `shares`.

    Raises ConfigError if model, data and shares do not fit; TrainingError if a loss or an update is not finite.
    """

    def __init__(
        self,
        train: Dataset,
        test: Dataset,
        shares: Sequence[Indices] | Mapping[NodeId, Indices],
        model_source: str,
        settings: TrainSettings,
        *,
        seed: int,
        rounds: int,
        base: Path | None = None,
        kept: Mapping[NodeId, Indices] | None = None,
        privacy: RecordPrivacy | None = None,
        objective: Objective | None = None,
        draw: DrawExamples | None = None,
    ) -> None:
        objective = objective or objective_of(train.kind, "", ())
        check_kind(objective, train, test)
        owned = shares if isinstance(shares, Mapping) else dict(enumerate(shares))
        check_shares(owned, len(train))
        torch.set_num_threads(settings.threads)
        optimizers.check_own(settings)
        vocabulary = len(train.vocabulary) if train.vocabulary is not None else None
        module = models.build(model_source, train.shape, train.outputs, seed, vocabulary, base=base)
        self.settings, self.objective = settings, objective
        self.layout = Layout.from_module(module, settings.buffers, settings.stays)
        device, self._sharing = sharing.settle(settings, module, self.layout.schema)
        self._initial = self.layout.read(module)
        self._rounds, self._shares, self._test, self._seed = rounds, owned, test, seed
        self._remade = partial(models.build, model_source, train.shape, train.outputs, seed, vocabulary, base=base)
        self._recipe = loaded_model.Recipe(model_source, seed, loaded_model.example_of(train), objective, base)
        self._states: dict[NodeId, State] = {}
        self._lock = threading.Lock()  # a host evaluates during training in another thread; both share the buffers
        criterion, scoring = Criterion(objective, base), Scoring(objective, test, base)
        check_own_parts(model_source, module, self._remade, test, criterion, scoring)
        check_together(scoring, settings.processes, test)
        check_lines(train, settings, private=privacy is not None)
        tested = (deepcopy(module), self.layout, settings, train, kept or {}, privacy, seed, objective, base)
        self._tests = LocalTests(*tested) if kept else None
        shape = shape_of(module, self.layout, train.shape)
        common = (module, self.layout, train, test, settings)
        how: Any = {"seed": seed, "criterion": criterion, "scoring": scoring, "sharing": self._sharing}
        self._privacy, self._draw = privacy, draw
        self._engine: LayerStack | ModuleLoop | ProcessesLoop
        if privacy is not None:
            check_private(settings)
            private = PrivateGradients(module, privacy, settings, owned, seed, criterion)
            device = choose_float64(device)
            self._engine = ModuleLoop(*common, **how, device=device, private=private)
        elif settings.processes > 1 or settings.parallel == HOGWILD:
            source = Source(model_source, base, seed, objective)
            about: Any = {"source": source, "device": device, "scoring": scoring, "sharing": self._sharing}
            self._engine = (HogwildLoop if settings.parallel == HOGWILD else DistributedLoop)(*common, **about)
        elif shape is not None and _batched(shape, train, test, settings, device, objective):
            self._engine = LayerStack(shape, train, test, settings, device, objective, scoring)
        else:
            self._engine = ModuleLoop(*common, **how, device=device)
        if privacy is None and not isinstance(self._engine, LayerStack):
            check_one_example(model_source, self._remade, train, smallest_batch(train, owned.values(), settings))
        self._blocks = None
        if isinstance(self._engine, ModuleLoop) and privacy is None and draw is None:
            about = {"device": device, "criterion": criterion, "sharing": self._sharing, "rounds": rounds}
            self._blocks = blocks_of(self._engine, module, self.layout, train, settings, **about)
        self._predictions = loading.predictions_in(train)
        self._trained = getattr(self._engine, "trained", self.layout.parameters)
        self._batches = _batches_of(train, owned, settings, privacy, seed, self._engine.width)

    @property
    def length(self) -> int:
        return self.layout.length

    @property
    def dtype(self) -> np.dtype[np.floating]:
        return self.layout.dtype

    @property
    def schema(self) -> str:
        return self.layout.schema

    @property
    def memory(self) -> Sequence[ProcessMemory]:
        """Return the memory of each process, in order of the ranks, for processes with parts of the model; else ()."""
        return self._engine.memory if isinstance(self._engine, ProcessesLoop) else ()

    def step_shape(self) -> StepShape:
        """Return the memory, computation and messages of a node's processes in a step.

        Raises ConfigError for lines of different lengths.
        """
        from fedgossip.learning.processes.step_costs import StepShape

        if isinstance(self._recipe.like.x, Ragged):
            text = f"{self._recipe.like.name}: a step over lines of several lengths has no one number of FLOPs"
            raise ConfigError(text, "Take text:PATH, windows of one length, or leave simulation.inside out.")
        return StepShape.from_module(
            self._remade(), self._recipe.source, self._recipe.base, self.settings, self._recipe.like
        )

    def end_processes(self) -> None:
        """End the training processes, if any run; the next job starts new ones."""
        if isinstance(self._engine, ProcessesLoop):
            self._engine.standing.end()

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return self._initial

    def likeness(self) -> Likeness:
        """Return the properties, besides the layout, that other peers' models must share with this one; of a fresh
        model.
        """
        module = self._remade()
        frozen = probing.frozen_of(module, self.layout)
        return Likeness(frozen=frozen, probe=probing.probe_of(module, self._test, self._seed))

    def whole_model(self, vector: Vector, node: NodeId | None = None) -> WholeModel:
        """See `UsableTask`."""
        how = self._remade(), self.layout, self.settings, vector, self._states, node
        return loaded_model.build_whole_model(self._recipe, *how)

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """Return an update per job, see `LocalTask`.  Raises TrainingError if training diverges or raises."""
        if not jobs:
            return []
        with self._lock:
            self._hold_own(jobs)
            plans = [self._batches.plan(job.node, job.round) for job in jobs]
            lrs = [self.settings.rate(job.round, self._rounds) for job in jobs]
            states = [self._state_for(job) for job in jobs]
            tested = [self._test_own(job, state) for job, state in zip(jobs, states, strict=True)]
            outcomes = self._sharing.run(lambda: self._attempt(jobs, plans, lrs, states))
        for job, outcome, lr in zip(jobs, outcomes, lrs, strict=True):
            if not (outcome.finite and math.isfinite(outcome.loss)):
                raise self._diverged(job.node, job.round, outcome.loss, lr)
        return [
            Update(
                outcome.difference,
                len(self._shares[job.node]),
                {**self._metrics(outcome, plan, lr), **found},
                dict(outcome.logged),  # a checkpoint supports only plain dictionaries
            )
            for job, outcome, plan, lr, found in zip(jobs, outcomes, plans, lrs, tested, strict=True)
        ]

    def _diverged(self, node: NodeId, round: int, loss: float, lr: float) -> TrainingError:
        wrong = first_wrong(self._initial, self.layout.segments)
        return not_finite(node, round, self.objective.loss, loss, lr, wrong)

    def trains_stacks(self, n: int) -> bool:
        """Whether `train_stack` supports these nodes: layers on the CPU, plain SGD, a number of local steps."""
        plain = self.settings.plain and self.settings.local_steps is not None and self._privacy is None
        stacked = isinstance(self._engine, LayerStack) and self._engine.device.type == "cpu"
        return plain and stacked and all(node in self._shares for node in range(n))

    def train_stack(self, round: int, models: Vector, into: Vector, each: Callable[[slice], None]) -> StackTraining:
        """See `StackedTask`.  Raises TrainingError if training diverges."""
        assert isinstance(self._engine, LayerStack) and isinstance(self._batches, Batches), "ask trains_stacks first"
        lr = self.settings.rate(round, self._rounds)
        with self._lock:
            indices = self._batches.plan_all(round, len(models))
            assert indices is not None
            losses, finite = self._engine.train_stack(models, into, indices, lr, each)
        if not (finite & np.isfinite(losses)).all():
            node = int(np.argmin(finite & np.isfinite(losses)))
            raise self._diverged(node, round, float(losses[node]), lr)
        return StackTraining(losses, lr, len(indices))

    def resident_models(self, n: int, note: Callable[[str, str], None]) -> ResidentModels | None:
        """See `ResidentTask`: linear layers on a device of `resident.STACKS`, if `trains_stacks`."""
        engine, batches = self._engine, self._batches
        plain = self.settings.plain and self._privacy is None and all(node in self._shares for node in range(n))
        if not (plain and isinstance(engine, LayerStack) and isinstance(batches, Batches)):
            return None
        how = self.settings, self._rounds, self._diverged
        return resident.resident_models(engine, batches, *how, n, note)

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """See `GradientTask`; if records are private each batch's gradient has its noise.

        Raises TrainingError if a gradient is not finite, or the model raises.
        """
        check_gradients(self.layout, self.settings)
        return self._mean_gradients(jobs, None) if jobs else []

    def gradient_in_stretches(self, job: Job, deliver: Callable[[Produced], None]) -> Update:
        """See `StretchTask`.  Private gradients, and those of several processes, are not sent in stretches."""
        knows = self._privacy is None and not isinstance(self._engine, ProcessesLoop)
        (update,) = self._mean_gradients([job], deliver if knows else None)
        return update

    def full_gradient(self, vector: Vector, node: NodeId | None = None) -> tuple[float, Vector]:
        """Return the mean loss and its gradient [d] at a vector, over the training examples of `node`, or of all local
        nodes.

        Raises ConfigError if the model has no such gradient, examples are private, or none are local.
        """
        check_gradients(self.layout, self.settings)
        rows = self._shares[node] if node is not None else np.concatenate([*self._shares.values(), np.empty(0, int)])
        if self._privacy is not None or not isinstance(self._batches, Batches) or not len(rows):
            text = "there is no full gradient: no examples are here, they are private, or of several lengths"
            raise ConfigError(text, "Measure a number of outputs instead.")
        job = Job(0 if node is None else node, 0, vector)
        with self._lock:
            plan = self._batches.plan_rows(rows)
            (found,) = self._sharing.run(lambda: self._gradients([job], [plan], [self._states.get(job.node, {})], None))
        return found.loss, found.difference

    def _mean_gradients(self, jobs: Sequence[Job], deliver: Callable[[Produced], None] | None) -> Sequence[Update]:
        with self._lock:
            self._hold_own(jobs)
            plans = [self._batches.plan(job.node, job.round, job.accumulate) for job in jobs]
            states = [self._states.get(job.node, {}) for job in jobs]
            tested = [self._test_own(job, state) for job, state in zip(jobs, states, strict=True)]
            stretches = None if deliver is None else partial(self._stretches, jobs[0], plans[0], deliver)
            outcomes = self._sharing.run(lambda: self._gradients(jobs, plans, states, stretches))
        for job, outcome in zip(jobs, outcomes, strict=True):
            if not (outcome.finite and math.isfinite(outcome.loss)):
                rate = self.settings.rate(job.round, self._rounds)
                raise self._diverged(job.node, job.round, outcome.loss, rate)
        found = []
        for job, outcome, plan, more in zip(jobs, outcomes, plans, tested, strict=True):
            steps, facts = len(plan.counts), self._sum_facts(outcome.loss, plan)
            metrics = {"steps": steps, **({} if self._privacy else facts), **more}
            found.append(Update(outcome.difference, len(self._shares[job.node]), metrics))
        return found

    def _stretches(self, job: Job, plan: BatchPlan, deliver: Callable[[Produced], None]) -> GradientStretches:
        examples = len(self._shares[job.node])

        def delivered(start: int, vector: Vector, loss: float) -> None:
            deliver(Produced(job.round, start, vector, examples, self._sum_facts(loss, plan)))

        return GradientStretches(job.stretches, self.length, delivered)

    def _sum_facts(self, loss: float, plan: BatchPlan) -> dict[str, float]:
        return {"loss": loss, "rows": float(predictions_of(plan, self._predictions).sum())}

    def _gradients(
        self,
        jobs: Sequence[Job],
        plans: Sequence[BatchPlan],
        states: Sequence[State],
        stretches: Callable[[], GradientStretches] | None,
    ) -> Sequence[Outcome]:
        engine, watched = self._engine, None if stretches is None else stretches()
        if isinstance(engine, LayerStack):
            return engine.gradients([job.vector for job in jobs], plans, watched)
        found = []
        for job, plan, state in zip(jobs, plans, states, strict=True):
            with _name_errors(job, plan):
                how = () if watched is None or isinstance(engine, ProcessesLoop) else (watched,)
                found.append(engine.gradient_one(_assigned(job, plan, 0.0, state), *how))
        return found

    def _test_own(self, job: Job, state: State) -> Mapping[str, float]:
        return self._tests.measure(job.node, job.round, job.vector, state) if job.tested and self._tests else {}

    def test_own(self, node: NodeId, round: int, vector: Vector) -> Mapping[str, float]:
        """Return the metrics of a vector [d] with the node's personal tensors on its held-out examples; {}
        without any.
        """
        with self._lock:
            state = self._states.get(node, {})
            return self._tests.measure(node, round, vector, state) if self._tests else {}

    def _hold_own(self, jobs: Sequence[Job]) -> None:
        if self._draw is None:
            return
        assert isinstance(self._engine, LayerStack | ModuleLoop), "processes read their examples once"
        train, self._shares = self._draw(sorted({job.node for job in jobs}))
        check_shares(self._shares, len(train))
        self._engine.hold(train)
        self._batches = _batches_of(train, self._shares, self.settings, None, self._seed, self._engine.width)

    def _state_for(self, job: Job) -> State:
        """Return the node's state; for a job with terms without the optimiser's slots."""
        state = self._states.setdefault(job.node, {})
        if job.terms is not None:
            for name in (*self.settings.slots, "steps"):
                state.pop(name, None)
        return state

    def _metrics(self, outcome: Outcome, plan: BatchPlan, lr: float) -> dict[str, float]:
        work: dict[str, float] = {"steps": max(1, len(plan.counts) - outcome.skipped), "rate": lr}
        if self._privacy is not None:
            return work  # a loss would disclose information about the examples
        return {"loss": outcome.loss, **work}

    def _attempt(
        self, jobs: Sequence[Job], plans: Sequence[BatchPlan], lrs: Sequence[float], states: Sequence[State]
    ) -> Sequence[Outcome]:
        """Train the jobs; states change when all are complete, so a retry is possible."""
        drafts = {id(state): dict(state) for state in states}  # a node may have several of the jobs
        outcomes = self._run(jobs, plans, lrs, [drafts[id(state)] for state in states])
        for state in states:
            state.update(drafts[id(state)])
        return outcomes

    def _run(
        self, jobs: Sequence[Job], plans: Sequence[BatchPlan], lrs: Sequence[float], states: Sequence[State]
    ) -> Sequence[Outcome]:
        engine = self._engine
        if isinstance(engine, LayerStack):
            return engine.train([job.vector for job in jobs], plans, lrs, states, [job.terms for job in jobs])
        assigned = [_assigned(*one) for one in zip(jobs, plans, lrs, states, strict=True)]
        found = self._blocks.train(assigned) if self._blocks else None
        if found is None:
            found = [self._alone(job, one) for job, one in zip(jobs, assigned, strict=True)]
        return found

    def _alone(self, job: Job, assigned: Assignment) -> Outcome:
        assert not isinstance(self._engine, LayerStack), "its jobs are trained together"
        with _name_errors(job, assigned.plan):
            return self._engine.train_one(assigned)

    def report_to(self, write: Callable[[Report], None]) -> None:
        """See `ReportingTask`: on a GPU, whether nodes are trained together."""
        if self._blocks:
            self._blocks.report_to(write)

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return the loss and the metrics on the test set per vector [d]; for text per character.

        Raises TrainingError if the model raises.
        """
        with self._lock:
            try:
                return self._sharing.run(lambda: self._engine.evaluate(vectors))
            except FedgossipError:
                raise
            except Exception as error:
                shape, outputs = list(self._test.shape), self._test.outputs
                advice = (
                    f"Does the model fit the test data, where an example is {shape} and an answer {outputs} numbers?"
                )
                raise TrainingError(f"evaluating raised {error!r}{place_of(error)}", advice) from error

    def evaluate_own(self, node: NodeId, vector: Vector) -> Mapping[str, float]:
        """As `evaluate`, for the vector with the node's personal tensors: personal layers and local buffers."""
        engine, state = self._engine, self._states.get(node, {})
        with self._lock:
            if isinstance(engine, LayerStack):
                return self._sharing.run(lambda: engine.evaluate([vector])[0])
            return self._sharing.run(lambda: engine.evaluate_own(vector, state))

    def state(self, node: NodeId) -> dict[str, np.ndarray]:
        """Return the node's state outside its vector: optimiser slots, steps taken, local buffers.

        It is immutable: training replaces these arrays and never changes them.
        """
        return dict(self._states.get(node, {}))

    def load_state(self, node: NodeId, state: Mapping[str, np.ndarray]) -> None:
        """Restore a state from `state`.  Raises ConfigError if it belongs to another model or optimiser."""
        for name in self.settings.slots:
            if name in state and state[name].shape != (self._trained,):
                raise ConfigError(
                    f"node {node}: {name} has {state[name].size} elements; expected {self._trained}",
                    "Was the state written with another model?",
                )
        self._states[node] = {name: array.copy() for name, array in state.items()}

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.layout.segments


def _batches_of(
    train: Dataset,
    owned: Mapping[NodeId, Indices],
    settings: TrainSettings,
    privacy: RecordPrivacy | None,
    seed: int,
    width: int,
) -> Batches | BucketBatches | PoissonBatches:
    if privacy is not None:
        return PoissonBatches(owned, settings, privacy, seed)
    if isinstance(train.x, Ragged):
        return BucketBatches(owned, settings, seed, train.x.bucket, len(train.x.buckets))
    return Batches(owned, settings, seed, width)


def _batched(
    shape: Shape, train: Dataset, test: Dataset, settings: TrainSettings, device: torch.device, objective: Objective
) -> bool:
    """Return whether a stack of this shape trains many nodes at once: convolutions only on the CPU, no lines of
    different lengths.
    """
    if isinstance(train.x, Ragged):
        return False
    outputs = shape.sizes[-1]
    fits = outputs == train.outputs if train.kind in OF_COLUMNS else outputs >= max(2, train.outputs)
    if not fits or objective.loss not in BY_HAND or (shape.convolutions and device.type != "cpu"):
        return False
    return not loading.needs_modules(settings, device, train, test)


def _assigned(job: Job, plan: BatchPlan, lr: float, state: State) -> Assignment:
    return Assignment((job.node, job.round), job.vector, plan, lr, state, job.terms)


@contextmanager
def _name_errors(job: Job, plan: BatchPlan) -> Iterator[None]:
    try:
        yield
    except (FedgossipError, sharing.OutOfMemory):
        raise
    except Exception as error:
        advice = "Does the model fit the data, and each batch the model?"
        if min(plan.counts, default=0) == 1:
            advice = ALONE
        text = f"node {job.node}, round {job.round}: training raised {error!r}{place_of(error)}"
        raise TrainingError(text, advice) from error


def train_centralised(
    train: Dataset,
    test: Dataset,
    model_source: str,
    settings: TrainSettings,
    seed: int,
    steps: int,
    batch_size: int,
    objective: Objective | None = None,
) -> dict[str, float]:
    """Return the metrics, "loss", "train_loss" and "steps" of one model after `steps` steps of `batch_size` examples.

    Steps of n peers with b examples correspond to steps here of n * b.  A round is settings.local_steps steps
    (local_epochs: one), so the schedule is the peers'.
    """
    per_round = min(steps, settings.local_steps or 1)
    rounds = max(1, steps // per_round)
    pooled = replace(settings, batch_size=batch_size, accumulate=1, local_steps=per_round, local_epochs=None)
    share = np.arange(len(train))
    task = TorchTask(train, test, [share], model_source, pooled, seed=seed, rounds=rounds, objective=objective)
    vector, train_loss = task.initial(0), float("nan")
    for round in range(rounds):
        (update,) = task.train([Job(0, round, vector)])
        assert update.difference is not None
        vector, train_loss = add(vector, update.difference), update.metrics["loss"]
    return {**task.evaluate([vector])[0], "train_loss": train_loss, "steps": float(rounds * per_round)}
