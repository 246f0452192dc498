"""The thread of a host that trains and evaluates, one job after the other, while its links continue."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedgossip.base.errors import FedgossipError, TrainingError
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import (
    Checkpoint,
    ChooseRows,
    MeasureModel,
    ModelMeasured,
    NodeId,
    Produced,
    Report,
    RowsChosen,
    Stopping,
    Train,
    Trained,
)
from fedgossip.core.meter import Meter
from fedgossip.core.records import PeerRow
from fedgossip.core.task import Job, LocalTask, ReportingTask, choose_rows, update_in_stretches
from fedgossip.net.host_ports import ALONE, SharedParts


@dataclass(frozen=True, slots=True, eq=False)
class Evaluate:
    """A job: `row` is written when it is done, before the next training."""

    vector: Vector
    row: PeerRow


WorkerJob = Train | ChooseRows | Evaluate | MeasureModel | Checkpoint
WorkerAnswer = Produced | Trained | RowsChosen | ModelMeasured | Stopping | Report | PeerRow
"""Requests to the thread, and its replies."""


@dataclass(frozen=True, slots=True)
class WorkerPorts:
    """The thread's connections to its host."""

    clock: Callable[[], int]
    round: Callable[[], int]
    """Returns the last closed round, for the report of a failure."""
    mixed: Callable[[PeerRow, Vector], float | None]
    checkpoint: Callable[[Checkpoint], None]
    wake: Callable[[], None]
    """Called from the answering thread when there is an answer."""
    first_work: Callable[[], None] = lambda: None
    begin: Callable[[Job], None] = lambda _job: None
    measure: Callable[[int, Vector], float | None] = lambda _round, _model: None
    shared: SharedParts = ALONE
    """This and the three before: see `Ports`."""


class TrainingThread:
    """The thread of one host, which `put`s jobs and takes their `answers`; the `meter` receives their durations."""

    def __init__(self, node: NodeId, task: LocalTask, meter: Meter, ports: WorkerPorts) -> None:
        self.node, self._task, self._meter, self._ports = node, task, meter, ports
        self._working = False
        self._put = self._ended = 0  # jobs
        self._jobs: queue.SimpleQueue[WorkerJob | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[WorkerAnswer | FedgossipError] = queue.SimpleQueue()
        if isinstance(task, ReportingTask):
            task.report_to(self._answers.put)
        self._thread = guarded_thread(self._work, f"training-{node}")

    def start(self) -> None:
        self._thread.start()

    def put(self, job: WorkerJob) -> None:
        """Queue a job; jobs are done in order."""
        self._put += 1
        self._jobs.put(job)

    @property
    def idle(self) -> bool:
        """Whether every job is done, and every answer was taken."""
        return self._put == self._ended and self._answers.empty()

    def answers(self) -> Iterator[WorkerAnswer | FedgossipError]:
        """Yield the answers since the last call."""
        while not self._answers.empty():
            yield self._answers.get()

    def end(self) -> None:
        """Start no job after the queued ones."""
        self._jobs.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the last job for at most `seconds`."""
        self._thread.join(seconds)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                with self._ports.shared.turn:
                    answer = self._done(job)
            except FedgossipError as error:
                self._answers.put(error)
            except BaseException as error:  # the user's own function, SystemExit too: name it, do not hang
                where = f"node {self.node}, round {self._ports.round()}"
                text = f"{where}: training raised {type(error).__name__}: {error}"
                failure = TrainingError(text, "Run it with --on sim to see it alone.")
                failure.__cause__ = error
                self._answers.put(failure)
            else:
                if answer is not None:
                    self._answers.put(answer)
                del answer
            del job  # release a model: the next may be long in coming
            self._ended += 1
            self._ports.wake()

    def _done(self, job: WorkerJob) -> WorkerAnswer | None:
        if not self._working and isinstance(job, Train | ChooseRows):
            self._ports.first_work()
            self._working = True
        match job:
            case Train():
                return self._train(job)
            case ChooseRows():
                return choose_rows(self._task, self.node, job)
            case Evaluate():
                return self._evaluate(job)
            case MeasureModel(round, model):
                return ModelMeasured(round, self._ports.measure(round, model))
            case Checkpoint():  # here: the task's memory belongs to it until the next training
                self._ports.checkpoint(job)
                return None

    def _train(self, asked: Train) -> Trained | Stopping:
        began = self._ports.clock()
        self._meter.train_began(began)  # now: the round may close meanwhile, and this is not waiting time
        job = Job.from_train(self.node, asked)
        self._ports.begin(job)
        update = update_in_stretches(self._task, job, self._pass_stretch)
        if update.over:
            self._meter.broke_off(self._ports.clock())
            return Stopping(over=True)
        self._meter.train_ended(self._ports.clock(), asked.job, update.metrics, update.logged)
        return Trained(asked.job, update.difference, update.examples, update.metrics, update.extra)

    def _pass_stretch(self, stretch: Produced) -> None:
        self._answers.put(stretch)
        self._ports.wake()

    def _evaluate(self, asked: Evaluate) -> PeerRow:
        began = self._ports.clock()
        asked.row.score = self._ports.mixed(asked.row, asked.vector)
        self._meter.occupied(began, self._ports.clock())
        return asked.row
