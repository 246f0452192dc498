"""Applies a fault script to real processes: kills and restarts, suspends and wakes them.

Each action is a row of the record.  Faults of messages and trainings happen inside the processes, see net/faulty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from fedgossip.base import signals
from fedgossip.core.machine import NodeId
from fedgossip.faults import MOST_IN_VAIN, FaultScript, Happening, RunProgress, Strike, Turn


class Processes(Protocol):
    """The operations on peers' processes that faults need."""

    @property
    def exited(self) -> Mapping[int, int | None]: ...
    def start(self, spec: dict[str, Any]) -> None: ...
    def signal(self, node: NodeId, number: int) -> None: ...


class Striker:
    """Call `act` often.  `specs[i]` starts peer i; `note(name, peer, value)` receives each action."""

    def __init__(
        self,
        script: FaultScript,
        processes: Processes,
        specs: Mapping[NodeId, dict[str, Any]],
        note: Callable[[str, NodeId, object], None],
    ) -> None:
        self.processes, self.specs, self.note = processes, specs, note
        self._happenings = script.happenings()
        self._upcoming: Happening | None = next(self._happenings, None)
        self._killed: dict[NodeId, int | None] = {}  # time of the restart; None: never
        self._asleep: dict[NodeId, int] = {}  # until when
        self._dying: set[NodeId] = set()  # killed, exit not seen yet
        self._progress = RunProgress(len(specs))
        self.restarted: set[NodeId] = set()
        """Peers that were started again."""

    @property
    def away(self) -> Collection[NodeId]:
        """Absent peers that will return."""
        return {node for node, back in self._killed.items() if back is not None} | self._asleep.keys()

    def act(self, now_ns: int, rounds: Sequence[int]) -> None:
        """Apply the faults due at `now_ns` of the run; `rounds`: completed rounds of each participant."""
        for node, round in enumerate(rounds):
            self._progress.reached(node, round)
        while self._upcoming is not None and self._upcoming.at_ns <= now_ns:
            self._apply(self._upcoming)
            self._upcoming = next(self._happenings, None)
        for node in sorted(self._dying & self.processes.exited.keys()):
            self._note_exit(node)
        for node, until_ns in list(self._asleep.items()):
            if until_ns <= now_ns:
                del self._asleep[node]
                self.processes.signal(node, signals.GO_ON)
                self.note("awake", node, None)
        for node, back_ns in list(self._killed.items()):
            if back_ns is not None and back_ns <= now_ns and node in self.processes.exited:
                self._restart(node)

    def _apply(self, happening: Happening) -> None:
        match happening:
            case Turn(_, name, peer, value):
                self.note(name, peer, value)
            case Strike(_, _, node) if node in self.processes.exited or node in self._killed:
                return  # it has finished, or is dead already
            case Strike(endless=True) if 0 in self.processes.exited.values():
                return  # the remaining peers could be struck for ever while they leave
            case Strike(of_series=True) if self._progress.over:
                return
            case Strike(_, kind, node, back_ns, of_series):
                self._sleep(node, back_ns) if kind == "sleep" else self._kill(node, back_ns)
                if of_series and self._progress.struck():
                    self.note("struck_in_vain", node, MOST_IN_VAIN)

    def _sleep(self, node: NodeId, back_ns: int | None) -> None:
        if node not in self._asleep and back_ns is not None:
            self._asleep[node] = back_ns
            self.processes.signal(node, signals.SUSPEND)
            self.note("asleep", node, None)

    def _kill(self, node: NodeId, back_ns: int | None) -> None:
        self._asleep.pop(node, None)
        self._killed[node] = back_ns
        self._dying.add(node)
        self.processes.signal(node, signals.KILL)

    def _note_exit(self, node: NodeId) -> None:
        self._dying.discard(node)
        if self.processes.exited[node] == -signals.KILL:
            self.note("crashed", node, None)
        else:  # it finished before the signal arrived
            del self._killed[node]

    def _restart(self, node: NodeId) -> None:
        del self._killed[node]
        self.restarted.add(node)
        self.processes.start({**self.specs[node], "resume": True})  # it counts its lives itself, in its folder
        self.note("restarted", node, None)
