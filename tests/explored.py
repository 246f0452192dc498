"""The runs whose schedules are all explored (`exploring`), and what must hold in each of their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from exploring import Observe, View, World

from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Checkpoint, Effect, Event, Machine, NodeId, Outgoing, Report
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose

SCHEMA = "s"


def world_of(content: Mapping[str, Any], initial: Callable[[NodeId], Vector], answer: Any = None, **more: Any) -> World:
    """The machines that the plan of an experiment makes, as in every driver."""
    plan: Any = compose.plan(load_experiment(dict(content)))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    plan = plan.with_segments(getattr(task, "segments", ())) if hasattr(task, "segments") else plan

    def make(node: NodeId, life: int, saved: Checkpoint | None, log: Sequence[Any]) -> Machine:
        own = plan.simulated(node, life, log)
        return plan.machine(node, initial(node), SCHEMA, saved, incarnation=life, own=own)  # type: ignore[no-any-return]

    known = [value for value in plan.externals.values() if isinstance(value, object) and value is not None]
    given = {"answer": answer} if answer else {}
    return World(make, [plan.partners(node) for node in range(plan.n)], known=known, **given, **more)


# --- gossip: the mean is kept, and an edge counts at both ends or neither ---------------------------------------------


def start(node: NodeId) -> Vector:
    """Powers of two far apart, so that no two ways to count a model have one sum."""
    return frozen(np.array([float(64**node)]))


def _gossip(peers: int, rounds: int, judge: Any, settled: Any, observe: Observe, ghost: Any, **algorithm: Any) -> World:
    """Pure averaging: nothing is trained, so the mean is that of the start, whatever happens."""
    content = {
        "rounds": rounds,
        "topology": {"graph": "complete", "n": peers},
        "task": {"kind": "quadratic", "dim": 1, "dtype": "float64"},
        "algorithm": {"start_timeout": 2.0, "deadline": 1.0, "least_deadline": 1.0, **algorithm},
    }
    return world_of(content, start, judge=judge, settled=settled, observe=observe, ghost=ghost)


class EdgesSeen(NamedTuple):
    """What one peer of synchronous gossip did: (partner, round) of each model that it mixed at once or later."""

    sent: tuple[tuple[int, float], ...] = ()
    mixed: frozenset[tuple[int, int]] = frozenset()
    unsettled: frozenset[tuple[int, int]] = frozenset()
    wrong: str = ""


def _edges(node: NodeId, ghost: Any, event: Event, machine: Any, effects: Sequence[Effect]) -> EdgesSeen:
    sent, mixed, unsettled, wrong = ghost
    for effect in effects:
        if isinstance(effect, Outgoing):
            sent = (*sent, (effect.round - 1, float(effect.vector[0])))
        elif isinstance(effect, Report) and effect.name in ("repaired", "unsettled"):
            edge = effect.value["peer"], effect.value["round"]  # type: ignore[index]
            if effect.name == "unsettled":
                unsettled |= {edge}
            elif edge in mixed:
                wrong = f"{node} counts twice: {edge}"
            else:
                mixed |= {edge}
    mixed |= {(j, edge.used) for j, edge in machine.ledger.edges.items() if edge.used >= 0}
    return EdgesSeen(sent, mixed, unsettled, wrong)


def _one_sided(view: View) -> list[tuple[int, int, int]]:
    return [
        (i, j, round)
        for i, one in enumerate(view.nodes)
        for j, round in one.ghost.mixed
        if (i, round) not in view.nodes[j].ghost.mixed
    ]


def _edge_mass(view: View) -> str:
    """x_i moves by w (x_j - x_i) for each edge that it has counted; what only one end has counted is the whole gap."""
    if view.spent.crashes:
        return ""
    ghosts = [one.ghost for one in view.nodes]
    if wrong := [ghost.wrong for ghost in ghosts if ghost.wrong]:
        return str(wrong[0])
    gap = -sum(float(start(node)[0]) for node in range(len(ghosts)))
    for one in view.nodes:
        learner = one.machine.learner  # type: ignore[union-attr]
        gap += float(learner.state.x[0]) + sum(float(late[0][0]) for late in learner.corrections)
    sent = [dict(ghost.sent) for ghost in ghosts]
    gap -= sum((sent[j][round] - sent[i][round]) / len(ghosts) for i, j, round in _one_sided(view))
    return "" if abs(gap) < 1e-6 else f"the mean has moved beside every account: by {gap}"


def _edges_settled(view: View) -> str:
    """Where all have ended: both ends or neither, or it is reported; without a loss or haste nothing is open."""
    if view.spent.crashes:
        return ""
    ghosts = [one.ghost for one in view.nodes]
    excused = {(i, j, round) for i, ghost in enumerate(ghosts) for j, round in ghost.unsettled}
    excused |= {(j, i, round) for i, j, round in excused}
    if silent := [edge for edge in _one_sided(view) if edge not in excused]:
        return f"an edge counts at one end, and none reports it: {silent}"
    return f"unsettled without a loss: {excused}" if excused and not any(view.spent) else ""


def sync_gossip(peers: int, rounds: int) -> World:
    return _gossip(peers, rounds, _edge_mass, _edges_settled, _edges, EdgesSeen())


def _nothing(_node: NodeId, ghost: Any, *_: Any) -> Any:
    return ghost


def _exchanged_mass(view: View) -> str:
    """An answer h that its receiver has not taken is under way: it is in the answering peer, and not yet given up."""
    if view.spent.crashes:
        return ""
    gap = 0.0
    for j, one in enumerate(view.nodes):
        machine: Any = one.machine
        gap += float(machine.learner.state.x[0]) - float(start(j)[0])
        gap += sum(float(late[0][0]) for late in machine.learner.corrections)
        for i, given in machine.ledger.answers.items():
            if view.nodes[i].machine.ledger.open.get(j) == given.number:  # type: ignore[union-attr]
                gap -= float(given.vectors[0][0])
    return "" if abs(gap) < 1e-6 else f"the mean has moved beside every exchange: by {gap}"


def _exchanges_settled(view: View) -> str:
    open_ = [i for i, one in enumerate(view.nodes) if one.machine and one.machine.ledger.open]  # type: ignore[attr-defined]
    return f"offers are open at the end without a fault: {open_}" if open_ and not any(view.spent) else ""


def async_gossip(peers: int, rounds: int) -> World:
    return _gossip(peers, rounds, _exchanged_mass, _exchanges_settled, _nothing, (), mode="async")


def _held_mass(machine: Any) -> float:
    """The x of all mass inside one peer; its parcels that are out are counted apart."""
    learner = machine.learner
    mail = getattr(machine, "mail", None)
    if learner.outgoing:
        kept = machine.kept if mail is not None and machine.kept is not None else 1.0
        total = kept * float(learner.outgoing[0][0])
    else:
        total = float(learner.state.x[0])
    total += sum(float(late[0][0]) for late in learner.corrections)
    if mail is not None:
        total += sum(float(share[0][0]) for kept_ in mail.kept.values() for share in kept_.values())
        total += float(mail.late[0][0]) if mail.late else 0.0
    return total


def _pushed_mass(view: View) -> str:
    if view.spent.crashes:
        return ""
    gap = -sum(float(start(node)[0]) for node in range(len(view.nodes)))
    for i, one in enumerate(view.nodes):
        machine: Any = one.machine
        gap += _held_mass(machine)
        for to, parcel in machine.arcs.out.items():
            if parcel.number > view.nodes[to].machine.arcs.taken.get(i, -1):  # type: ignore[union-attr]
                gap += float(parcel.vectors[0][0])
    return "" if abs(gap) < 1e-6 else f"mass is lost or counts twice: {gap}"


def _parcels_settled(view: View) -> str:
    out = [i for i, one in enumerate(view.nodes) if one.machine and one.machine.arcs.out]  # type: ignore[attr-defined]
    return f"parcels are out at the end without a fault: {out}" if out and not any(view.spent) else ""


def push_sum(peers: int, rounds: int, mode: str = "sync") -> World:
    return _gossip(peers, rounds, _pushed_mass, _parcels_settled, _nothing, (), name="push-sum", mode=mode)


def declined_without_count(self: Any, node: NodeId, now_ns: int) -> bool:
    """As `Pairing.declined`, without the count of declines."""
    self._landed(now_ns)
    self.tried.add(node)
    return len(self.tried) < 2
