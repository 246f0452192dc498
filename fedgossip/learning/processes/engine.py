"""One client, several processes: a GPU for each, or all on the CPU; they train every step together.

    the task's process     DistributedLoop: writes a job to a board, sends the order, reads the results
    P processes (`worker`)   a torch.distributed group; each trains on its part of every batch

The task's process is no member, so a crash in the group is an error here and does not end the peer.  Process 0 replies
for all if all replies are equal.  With "ddp" each process has the whole model, with "fsdp" a part of it (`parts`).

**Hogwild!**  The processes of a client step on one model in shared memory, without a lock and without waiting.

    each of P processes, until its share of the batches is done:
        g  <-  the gradient of its next batch, at the present model
        model  <-  model - rate * g          in place, while the others read and write it

If two processes write an element at the same time, one update is lost: rare for sparse examples, common for dense
models.  Runs are not reproducible to the bit.  `train.count_lost` counts lost updates: each process counts its writes,
and increments a shared counter per element with the same race; the deficit is the number.

Source: F. Niu, B. Recht, C. Re, S. Wright, Hogwild!: a lock-free approach to parallelizing stochastic gradient descent,
NIPS 2011.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import Objective
from fedgossip.data.ragged import parts_of
from fedgossip.learning.many_nodes.stacked_engine import Outcome, State
from fedgossip.learning.models import models
from fedgossip.learning.one_model import module_engine
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.module_engine import PERSONAL, Assignment, Done, Sums
from fedgossip.learning.one_model.scoring import Scoring, Tally
from fedgossip.learning.one_model.sharing import GpuSharing
from fedgossip.learning.processes import processes
from fedgossip.learning.processes.ipc import (
    COUNTER,
    LINE,
    STATE,
    ArrayPlace,
    Evaluated,
    EvaluateOrder,
    Setup,
    Shapes,
    TrainOrder,
    TrainReply,
    race_of,
)
from fedgossip.learning.processes.processes import Group, StandingGroup
from fedgossip.learning.settings import BF16, HOGWILD, TrainSettings

if TYPE_CHECKING:
    from fedgossip.learning.processes.step_costs import ProcessMemory


@dataclass(frozen=True, slots=True)
class Source:
    """The sources of the processes' model, as arguments of `models.build`."""

    name: str
    base: Path | None
    seed: int
    objective: Objective


class ProcessesLoop(ABC):
    """Evaluates any torch module in settings.processes processes; subclasses define their common training."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        train: Dataset,
        test: Dataset,
        settings: TrainSettings,
        *,
        source: Source,
        device: torch.device,
        scoring: Scoring,
        sharing: GpuSharing,
    ) -> None:
        self.memory: Sequence[ProcessMemory] = ()
        if settings.mesh.expert == 1:
            models.check_whole(module, source.name, f"with train.processes = {settings.processes}")
        if settings.compression == BF16 and device.type != "cuda":
            text = f'compression = "{BF16}" on {device.type}: torch adds 16 bits up over NCCL alone, of CUDA GPUs'
            raise ConfigError(text, 'Use "powersgd:2", or leave it out.')
        if settings.in_parts:
            from fedgossip.learning.processes.plans import (
                plan_of,  # only here: they load much of torch
                stages_of,
            )
            from fedgossip.learning.processes.step_costs import memory_of

            number = settings.mesh.pipeline
            stages = [module] if number == 1 else stages_of(module, source.name, source.base, number)
            plan = plan_of(module, source.name, source.base, settings.mesh, train.shape)
            self.memory = memory_of(module, stages, plan, settings, train.shape[0])
        self._scoring = scoring
        self.width = settings.examples_per_step
        self.trained = Layout.personal_of(module, settings.stays).length + layout.parameters
        self.layout, self._sharing = layout, sharing
        self._remembers = module_engine.remembered(module, layout, settings)
        rows = {"train.x": train.x, "train.y": train.y, "test.x": test.x, "test.y": test.y}
        examples = {part: array for name, one in rows.items() for part, array in parts_of(one, name).items()}
        setup = Setup(
            rank=0,
            size=settings.processes,
            device=device.type,
            store="",
            source=source.name,
            base=None if source.base is None else str(source.base),
            seed=source.seed,
            classes=train.classes,
            kind=source.objective.kind,
            loss=source.objective.loss,
            metrics=source.objective.metrics,
            label_scale=(train.label_mean, train.label_deviation),
            vocabulary=train.vocabulary,
            settings=asdict(settings),
            examples=[],
            silence=processes.SILENT_SECONDS,
        )
        self.standing = StandingGroup(setup, examples)

    @abstractmethod
    def train_one(self, job: Assignment) -> Outcome:
        """Train one job, as `ModuleLoop` does.  Raises TrainingError for a failure in a process."""

    @abstractmethod
    def gradient_one(self, job: Assignment) -> Outcome:
        """Return the mean gradient, as `ModuleLoop` does.  Raises TrainingError as `train_one` does."""

    def evaluate(self, vectors: Sequence[Vector]) -> list[dict[str, float]]:
        """Return the mean loss and the metrics on the test set, per vector."""
        return [self._evaluate(vector, None) for vector in vectors]

    def evaluate_own(self, vector: Vector, state: State) -> dict[str, float]:
        """The same for one node: with its personal layers and local buffers."""
        return self._evaluate(vector, state)

    def order(
        self,
        group: Group,
        job: Assignment,
        found: list[ArrayPlace],
        state: Mapping[str, npt.NDArray[Any]],
        *,
        gradient: bool = False,
    ) -> TrainOrder:
        """Write the inputs of a job, with the node's state, and return the order to run it."""
        given = {"vector": job.vector, "indices": job.plan.indices, "counts": job.plan.counts, **state}
        if job.terms is not None and job.terms.correction is not None:
            given["correction"] = job.terms.correction
        return TrainOrder(
            *job.name,
            lr=job.lr,
            pull=None if job.terms is None else job.terms.pull,
            pieces=self._sharing.pieces,
            given=group.given.lay(given),
            found=found,
            gradient=gradient,
        )

    def _evaluate(self, vector: Vector, state: State | None) -> dict[str, float]:
        with self.standing.working() as group:
            given = group.given.lay({"vector": vector, **_name_state(state or {})})
            answers = group.ask(EvaluateOrder(state is not None, self._sharing.pieces, given))
        parts = [
            Sums(one.loss, one.predicted, [Tally([np.array(sums) for sums in one.sums], None)] if one.predicted else [])
            for one in answers
            if isinstance(one, Evaluated)
        ]
        return module_engine.means(parts, self._scoring)


class DistributedLoop(ProcessesLoop):
    """Trains in processes that take every step together; the interface is that of `ModuleLoop`."""

    def train_one(self, job: Assignment) -> Outcome:
        with self.standing.working() as group:
            found, reply = self._done(group, job, {f"{STATE}{n}": shape for n, shape in self._remembers.items()})
            return self._outcome(found, job.vector, job.state, Done(reply.loss, reply.skipped))

    def gradient_one(self, job: Assignment) -> Outcome:
        with self.standing.working() as group:
            found, reply = self._done(group, job, {}, gradient=True)
            gradient = found["vector"].copy()
            return Outcome(frozen(gradient), reply.loss, bool(np.isfinite(gradient.sum())))

    def _done(
        self, group: Group, job: Assignment, shapes: Shapes, *, gradient: bool = False
    ) -> tuple[dict[str, npt.NDArray[Any]], TrainReply]:
        """Run a job in the group; return its results, the vector and arrays, and its reply."""
        found = group.found.room({"vector": ("float32", (self.layout.length,)), **shapes})
        order = self.order(group, job, found, _name_state(job.state), gradient=gradient)
        reply = group.ask(order)[0]
        assert isinstance(reply, TrainReply)
        return group.found.views(order.found), reply

    def _outcome(self, found: Mapping[str, npt.NDArray[Any]], vector: Vector, state: State, done: Done) -> Outcome:
        trained = empty(self.layout.length, np.float32)
        trained[:] = found["vector"]
        state.update({name: found[f"{STATE}{name}"].copy() for name in self._remembers})
        return module_engine.outcome(vector, trained, done)


def _name_state(state: State) -> dict[str, npt.NDArray[Any]]:
    return {f"{STATE}{name}": np.asarray(array) for name, array in state.items()}


class HogwildLoop(ProcessesLoop):
    """Trains in processes that all step on one line of shared memory: personal parameters, then the vector."""

    def __init__(
        self, module: nn.Module, layout: Layout, train: Dataset, test: Dataset, settings: TrainSettings, **how: Any
    ) -> None:
        super().__init__(module, layout, train, test, settings, **how)
        self._fresh = Layout.personal_of(module, settings.stays).read(module)
        self._shapes: dict[str, tuple[str, tuple[int, ...]]] = {LINE: ("float32", (len(self._fresh) + layout.length,))}
        if settings.count_lost:
            self._shapes[COUNTER] = ("int32", (self.trained,))

    def train_one(self, job: Assignment) -> Outcome:
        p = len(self._fresh)
        with self.standing.working() as group:
            found = group.found.room(self._shapes)
            views = group.found.views(found)
            self._lay(job, views)
            answers = group.ask(self.order(group, job, found, {}))
            race = race_of([one for one in answers if isinstance(one, TrainReply)], views)
            line = views[LINE].copy()
        if p:
            job.state[PERSONAL] = line[:p].copy()
        outcome = module_engine.outcome(job.vector, line[p:].copy(), Done(race.loss, 0))
        return outcome._replace(logged=race.logged)

    def gradient_one(self, job: Assignment) -> Outcome:  # noqa: ARG002
        """Raise ConfigError: its processes take steps, and a gradient needs none."""
        advice = 'Use parallel = "ddp", or a method whose participants train: gossip, [coordinator], parallel.outer.'
        raise ConfigError(f'parallel = "{HOGWILD}": its processes take steps, and a gradient takes none', advice)

    def _lay(self, job: Assignment, views: Mapping[str, npt.NDArray[Any]]) -> None:
        p = len(self._fresh)
        views[LINE][:p] = job.state.get(PERSONAL, self._fresh)
        views[LINE][p:] = job.vector
        if COUNTER in views:
            views[COUNTER][:] = 0
