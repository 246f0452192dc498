"""Training in virtual time: nothing is computed before its result is due, and then all that is outstanding at once."""

from __future__ import annotations

from fedgossip.core.machine import NodeId, Produced
from fedgossip.core.task import Job, LocalTask, Update, done
from fedgossip.simulation.stretches import stretch_of


class LazyTraining:
    """The jobs that peers have been given, and what came of those that are computed and not yet told."""

    def __init__(self) -> None:
        self._jobs: dict[NodeId, Job] = {}
        self._updates: dict[NodeId, Update] = {}
        self._stretches: dict[NodeId, tuple[int, ...]] = {}  # of the jobs in _updates

    def asked(self, job: Job) -> None:
        """Take a node's job."""
        self._jobs[job.node] = job

    def forget(self, node: NodeId) -> None:
        """Let go of what a node trains: it has died."""
        self._jobs.pop(node, None)
        self._updates.pop(node, None)

    def update(self, task: LocalTask, node: NodeId) -> Update:
        """Return what came of a node's job, once; compute every outstanding one with it."""
        self._compute(task, node)
        return self._updates.pop(node)

    def stretch(self, task: LocalTask, node: NodeId, asked: Produced) -> Produced | None:
        """Return a stretch of a node's gradient; None where it has come to the end of its training."""
        self._compute(task, node)
        update = self._updates[node]
        return None if update.over else stretch_of(update, asked, self._stretches[node])

    def _compute(self, task: LocalTask, node: NodeId) -> None:
        if node in self._updates:
            return
        jobs = [self._jobs[one] for one in sorted(self._jobs)]
        self._jobs.clear()
        self._stretches.update((job.node, job.stretches) for job in jobs if job.stretches)
        self._updates.update(zip((job.node for job in jobs), done(task, jobs), strict=True))
