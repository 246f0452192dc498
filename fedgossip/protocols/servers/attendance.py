"""The workers that a server waits for: present ones, except those that are silent while others wait.

A worker is silent when it has made no progress, a push begun or a reply taken, for the longest deadline; without a
link, for its own deadline, which follows the time of its gradients: one that is ten times slower is waited for ten
times longer.  The others then go on without it, and it takes part again when it pushes or pulls.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedgossip.core.machine import NodeId
from fedgossip.protocols.gossip.deadlines import Deadline


class Attendance:
    """Invariant: `absent` and `left` are disjoint, and none of them is waited for.  Times in nanoseconds."""

    def __init__(self, workers: Sequence[NodeId], longest_ns: int, least_ns: int, start_ns: int) -> None:
        self.workers, self.start_ns, self.longest_ns = tuple(workers), start_ns, longest_ns
        self.linked: set[NodeId] = set()
        self.left: set[NodeId] = set()
        self.absent: set[NodeId] = set()
        self._heard_ns: dict[NodeId, int] = {}
        self._paces = {worker: Deadline(longest_ns, min(least_ns, longest_ns)) for worker in workers}

    @property
    def present(self) -> list[NodeId]:
        """The workers that are waited for, ascending."""
        return [worker for worker in self.workers if worker not in self.absent and worker not in self.left]

    @property
    def over(self) -> bool:
        """Whether no worker needs the server any more: a silent linked one does until another has left."""
        lost = self.absent if self.left else self.absent - self.linked
        return all(worker in self.left or worker in lost for worker in self.workers)

    def note_progress(self, worker: NodeId, now_ns: int) -> bool:
        """Record progress of a worker; return whether the others had gone on without it."""
        self._heard_ns[worker] = now_ns
        back = worker in self.absent
        self.absent.discard(worker)
        return back

    def pushed(self, worker: NodeId, now_ns: int) -> None:
        """Record the first piece of a gradient: it took the time since the worker's last message."""
        if worker in self._heard_ns:
            self._paces[worker].record(now_ns - self._heard_ns[worker])

    def leave(self, worker: NodeId) -> None:
        """Record a worker's goodbye."""
        self.absent.discard(worker)
        self.left.add(worker)

    def due_ns(self, worker: NodeId) -> int:
        """Return the time at which a worker without a message counts as silent."""
        if worker not in self._heard_ns:
            return self.start_ns
        patience = self.longest_ns if worker in self.linked else self._paces[worker].now_ns()
        return self._heard_ns[worker] + patience

    def lose_silent(self, of: Collection[NodeId], now_ns: int) -> list[NodeId]:
        """Mark the silent ones of these workers as absent; return them."""
        silent = [worker for worker in self.present if worker in of and self.due_ns(worker) <= now_ns]
        self.absent.update(silent)
        return silent
