"""The runs whose schedules are all explored (`exploring`), and what must hold in each of their states."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import msgspec
import numpy as np
from exploring import Observe, View, World
from members import SECOND, membership
from server_seeds import BASE, Counters

from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    Finish,
    Log,
    Machine,
    NodeId,
    Outgoing,
    Received,
    Report,
    Send,
    Train,
    Trained,
)
from fedgossip.core.messages import Invite, MaskedInput, Secured
from fedgossip.core.task import Job
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.secure.frames import SIGNATURE, Downward, Reveal, Upward, body_hash

SCHEMA = "s"


def world_of(content: Mapping[str, Any], initial: Callable[[NodeId], Vector], answer: Any = None, **more: Any) -> World:
    """The machines that the plan of an experiment makes, as in every driver."""
    plan: Any = compose.plan(load_experiment(dict(content)))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    plan = plan.with_segments(getattr(task, "segments", ())) if hasattr(task, "segments") else plan

    def make(node: NodeId, life: int, saved: Checkpoint | None, log: Sequence[Any]) -> Machine:
        own = plan.simulated(node, life, log)
        return plan.machine(node, initial(node), SCHEMA, saved, incarnation=life, own=own)  # type: ignore[no-any-return]

    known = [plan, *plan.externals.values()]
    if hasattr(plan, "_drawn"):  # the keys of a simulation's clients
        members, roster = plan._drawn
        known += [members, roster, *(members.keys(node)[1] for node in range(plan.n))]
    given = {"answer": answer} if answer else {}
    return World(
        make, [plan.partners(node) for node in range(plan.n)], known=known, experiment=content, **given, **more
    )


# --- gossip: the mean is kept, and an edge counts at both ends or neither ---------------------------------------------


def start(node: NodeId) -> Vector:
    """Powers of two far apart, so that no two ways to count a model have one sum."""
    return frozen(np.array([float(64**node)]))


def _gossip(peers: int, rounds: int, judge: Any, settled: Any, observe: Observe, ghost: Any, **algorithm: Any) -> World:
    """Pure averaging: nothing is trained, so the mean is that of the start, whatever happens."""
    content = {
        "rounds": rounds,
        "topology": {"graph": "complete", "n": peers},
        "task": {"kind": "averaging", "dim": 1, "dtype": "float64"},
        "algorithm": {"start_timeout": 2.0, "deadline": 1.0, "least_deadline": 1.0, **algorithm},
    }
    asynchronous = algorithm.get("mode") == "async"  # partners are drawn by number
    equal = () if asynchronous else list(permutations(range(peers)))
    return world_of(content, start, judge=judge, settled=settled, observe=observe, ghost=ghost, equal=equal)


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


# --- all-reduce and parameter servers: every gradient counts once, and all end with one vector ------------------------


def _counted(content: dict[str, Any], workers: int, dim: int, equal: Sequence[tuple[NodeId, ...]]) -> World:
    """Worker k's gradient is -BASE^k in every element: the digits of a model are how often each has counted."""
    task, rounds = Counters(dim), int(content["rounds"])
    content |= {"task": {"kind": "quadratic", "dim": dim, "dtype": "float64"}, "train": {"lr": 1.0}}

    def answer(node: NodeId, asked: Train) -> Trained:
        (update,) = task.gradients([Job.from_train(node, asked)])
        return Trained(asked.job, update.difference, update.examples, update.metrics)

    def settled(view: View) -> str:
        results = {bytes(one.ghost) for node, one in enumerate(view.nodes[:workers]) if one.machine and one.ghost}
        if len(results) > 1 and not view.spent.crashes:
            return "workers end with different vectors"
        due = task.mean(rounds, workers).tobytes()
        short = any(view.spent)
        return "" if short or results == {due} else "the end is not the sum of all means"

    def judged(view: View) -> str:
        """No element has more of a worker than its rounds, at any worker that has ended.

        A mean over m that are left has 1 / m of each, so a multiple of all m is whole.
        """
        whole = math.lcm(*range(1, workers + 1))
        most = rounds * (whole if view.spent.crashes or view.spent.hastes else whole // workers)
        for one in view.nodes[:workers]:
            if one.ghost:
                digits = (np.rint(np.frombuffer(one.ghost) * whole)).astype(np.int64)
                for worker in range(workers):
                    if (digits // BASE**worker % BASE > most).any():
                        return f"a gradient of worker {worker} counts twice"
        return ""

    more = {"observe": _result, "judge": judged, "settled": settled, "ghost": b"", "equal": equal}
    return world_of(content, task.initial, answer, **more)


def _result(_node: NodeId, ghost: Any, _event: Event, _machine: Machine, effects: Sequence[Effect]) -> Any:
    return next(
        (effect.result.tobytes() for effect in effects if isinstance(effect, Finish) and not effect.failure), ghost
    )


def ring(workers: int, rounds: int, method: str = "ring") -> World:
    parallel = {"workers": workers, "method": method, "bucket": 0, "deadline": 1.0, "least_deadline": 1.0}
    turned = [tuple((node + by) % workers for node in range(workers)) for by in range(workers)]
    return _counted({"rounds": rounds, "parallel": {**parallel, "start_timeout": 2.0}}, workers, workers, turned)


def servers(workers: int, servers: int, rounds: int, **server: Any) -> World:
    parallel = {"workers": workers, "method": "parameter-server", "deadline": 1.0, "least_deadline": 1.0}
    parallel |= {"start_timeout": 2.0, "server": {"servers": servers, "virtual_nodes": 1, **server}}
    equal = [(*moved, *range(workers, workers + servers)) for moved in permutations(range(workers))]
    return _counted({"rounds": rounds, "parallel": parallel}, workers, 2 * servers, equal)


# --- secure sums: one signature a stage, one sum a round, and no sum of fewer can be opened ---------------------------

LEAST = 3


def _frames(_node: NodeId, ghost: Any, event: Event, _machine: Machine, effects: Sequence[Effect]) -> Any:
    """Keep what was signed, (session, stage, hash of the frame); revealed shares; sums; and each round's models."""
    seen = set(ghost)
    for effect in effects:
        if isinstance(effect, Send) and isinstance(effect.message, MaskedInput):
            seen.add(("signed", effect.message.session, -1, body_hash(effect.message.frame)))
        elif isinstance(effect, Send) and isinstance(effect.message, Invite):
            seen.add(("invited", effect.message.round, effect.message.vectors[0].tobytes()))
        elif isinstance(effect, Send) and isinstance(effect.message, Secured):
            seen.add(("signed", effect.message.session, effect.message.stage, body_hash(effect.message.frame)))
        elif isinstance(effect, Log) and effect.kind == "sum":
            seen.add(("sum", effect.facts["round"], effect.facts["session"], effect.facts["clients"]))
    if isinstance(event, Received) and isinstance(event.message, Secured):
        frame = msgspec.msgpack.decode(event.message.frame[SIGNATURE:], type=Upward | Downward)
        if isinstance(frame, Reveal):
            shares = ((frame.sid, owner, own, event.sender) for owner, own, _ in frame.shares)
            seen |= {("share", *share) for share in shares}
    return frozenset(seen)


def _hidden(view: View) -> str:
    """What a coordinator can open from the frames that it has: a mask falls with two shares of its seed or key.

    A sum over a set opens with the seeds of all in it and the keys of all others; both of one client open it alone.
    """
    *clients, coordinator = (one.ghost for one in view.nodes)
    for node, ghost in enumerate(clients):
        signed = Counter(one[1:3] for one in ghost if one[0] == "signed")
        if twice := [place for place, times in signed.items() if times > 1]:
            return f"{node} signs two frames of one stage of a session: {twice}"
    rounds = Counter(one[1] for one in coordinator if one[0] == "sum")
    if any(times > 1 for times in rounds.values()) or any(one[0] == "sum" and one[3] < LEAST for one in coordinator):
        return f"two sums of a round, or one of fewer than {LEAST}: {sorted(rounds.items())}"
    models = Counter(one[1] for one in coordinator if one[0] == "invited")
    if any(times > 1 for times in models.values()):
        return f"two models of a round are sent out: {sorted(models.items())}"
    shares = Counter(one[1:4] for one in coordinator if one[0] == "share")
    fallen = {place for place, times in shares.items() if times >= 2}
    for sid in {place[0] for place in fallen}:
        seeds = {owner for of, owner, own in fallen if of == sid and own}
        keys = {owner for of, owner, own in fallen if of == sid and not own}
        if seeds & keys or 0 < len(seeds) < LEAST:
            return f"the coordinator can open a sum of {sorted(seeds)} with the keys of {sorted(keys)}"
    return ""


def secure(clients: int, rounds: int) -> World:
    section = {"clients": clients, "min_clients": LEAST, "deadline": 1.0, "least_deadline": 1.0, "start_timeout": 2.0}
    content = {
        "rounds": rounds,
        "task": {"kind": "quadratic", "dim": 1},
        "coordinator": {**section, "return_timeout": 1.0, "silence": 4.0},
    }

    def answer(_node: NodeId, asked: Train) -> Trained:
        update = frozen(np.ones(asked.vector.shape, asked.vector.dtype))
        return Trained(asked.job, update, 1, {"loss": 0.0, "steps": 1, "rate": 1.0})

    def zero(_node: NodeId) -> Vector:
        return frozen(np.zeros(1, np.float32))

    equal = [(*moved, clients) for moved in permutations(range(clients))]
    return world_of(content, zero, answer, observe=_frames, judge=_hidden, ghost=frozenset(), equal=equal)


# --- members: nobody is taken for dead without a loss -----------------------------------------------------------------


def _buried(node: NodeId, ghost: Any, _event: Event, _machine: Machine, effects: Sequence[Effect]) -> Any:
    told = [effect for effect in effects if isinstance(effect, Report) and effect.name in ("gone", "suspected")]
    return ghost | {(effect.name, node, effect.value["node"]) for effect in told}  # type: ignore[index]


def members(n: int, seconds: float) -> World:
    """`seconds` of a network of n founders: a drop or a haste may raise a suspicion, but no verdict."""

    def make(node: NodeId, life: int, saved: Checkpoint | None, log: Sequence[Any]) -> Machine:
        return membership(node, n, life=life + 1)

    def judge(view: View) -> str:
        told = sorted(one for each in view.nodes for one in each.ghost)
        wrong = [one for one in told if one[0] == "gone" or not any(view.spent)]
        return f"taken for dead, or suspected without a fault: {wrong}" if wrong and not view.spent.crashes else ""

    links = [[other for other in range(n) if other != node] for node in range(n)]
    until_ns = int(seconds * SECOND)
    return World(make, links, observe=_buried, judge=judge, ghost=frozenset(), until_ns=until_ns)
