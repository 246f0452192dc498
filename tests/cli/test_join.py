"""Whole members in virtual time: they come late through any other, leave, crash, come back, and part and merge."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from by_hand import reports
from members import World, graphs, membership

from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.base.vectors import Vector, digest, frozen
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    Finish,
    Machine,
    NodeId,
    PeerGone,
    PeerJoined,
    Received,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.core.messages import (
    MODEL_CHUNK,
    ChunkRequest,
    Compare,
    MembershipUpdate,
    Model,
    ModelChunk,
    ModelInfo,
    ModelQuery,
    Ping,
    Pong,
)
from fedgossip.drivers.members import check_open
from fedgossip.experiment import checked
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan
from fedgossip.protocols.members.member import Member
from fedgossip.protocols.state_transfer import KEPT_NS, ModelFetch, ModelSource

SCHEMA = "s"
SECOND = 1_000_000_000
SEEDS = range(8)


def vector(node: int) -> Vector:
    return frozen(np.array([node, 1.0, -node], np.float64))


def plan_of(rounds: int, **algorithm: Any) -> Plan:
    section = {"deadline": 5.0, "least_deadline": 5.0, "start_timeout": 60.0, **algorithm}
    topology = {"graph": "complete", "n": 3}
    task = {"kind": "averaging", "dim": 3}
    return compose.plan(checked({"rounds": rounds, "algorithm": section, "topology": topology, "task": task}, "test"))


def member(
    node: NodeId,
    n: int,
    rounds: int = 4000,
    *,
    life: int = 1,
    join: bool = False,
    seed: int = 0,
    resumed: Checkpoint | None = None,
    **algorithm: Any,
) -> Member:
    plan = plan_of(rounds, **algorithm)

    def make(schedule: Any, checkpoint: Checkpoint | None, incarnation: int) -> Machine:
        theirs = replace(plan, schedule=schedule)
        return theirs.machine(node, vector(node), SCHEMA, checkpoint, incarnation=incarnation)

    members = membership(node, n, life=life, since=-1 if node >= n else 0, seed=seed, make=graphs, rounds=rounds)
    take_up = plan.resume_point
    layout, start_ns = (SCHEMA, 3, "float64"), 60 * SECOND
    return Member(members, make, take_up, layout, rounds, join=join, resumed=resumed, start_ns=start_ns)


class Learning(World):
    """Whole members: training takes a tenth of a second and finds nothing to learn, so the mean is what they have."""

    def __init__(self, machines: dict[NodeId, Any], seed: int = 0, **keys: float) -> None:
        self.results: dict[NodeId, Vector] = {}
        super().__init__(machines, seed, **keys)

    def other(self, node: NodeId, effect: Effect | Event) -> None:
        match effect:
            case Train(job, _):
                self.push(0.1, node, Trained(job, None))
            case Finish(result):
                self.results[node] = result

    def rounds(self) -> dict[NodeId, int]:
        return {node: self.machines[node].membership.round for node in self.living}


def learning(n: int, seed: int = 0, **keys: Any) -> Learning:
    return Learning({node: member(node, n, seed=seed, **keys) for node in range(n)}, seed)


def join(w: Learning, node: NodeId, through: NodeId, **keys: Any) -> Member:
    """One that comes later, and is known to `through` first."""
    joiner = member(node, 2, join=True, **({"life": 77} | keys))
    w.start(node, joiner)
    said = joiner.introduction()
    assert said is not None
    w.push(0, through, Received(-1, said))
    return joiner


def mixed_with(w: Learning, node: NodeId, since: float) -> set[NodeId]:
    """Whose models `node` would mix now, and that it really did not miss any lately."""
    machine = w.machines[node]
    assert not [value for at, who, value in w.named("missed") if who == node and at > since]
    return set(machine.membership.schedule().mixing(machine.membership.round).row(node))


@pytest.mark.parametrize("seed", SEEDS)
def test_members_that_stay_learn_as_without_membership(seed: int) -> None:
    w = learning(3 + seed % 3, seed, rounds=30)
    w.run(30)
    n = 3 + seed % 3
    assert set(w.results) == set(range(n)) and not w.named("missed") and not w.named("suspected")
    assert all(np.allclose(result, np.mean([vector(k) for k in range(n)], axis=0)) for result in w.results.values())


@pytest.mark.parametrize("first_dies", [False, True])
def test_a_third_comes_in_through_either_of_two_also_when_the_first_is_dead(first_dies: bool) -> None:
    w = learning(2)
    w.run(10)
    if first_dies:
        w.crash(0, notice=True)
        w.run(12)
    alive = 1
    before = w.rounds()[alive]
    joiner = join(w, 2, through=alive)
    w.run(10)
    assert w.rounds()[2] > before and not joiner.joining
    w.run(5)
    others = {1, 2} if first_dies else {0, 1, 2}
    assert mixed_with(w, 2, w.now - 5) == mixed_with(w, alive, w.now - 5) == others
    fetched = w.named("fetched", [2])
    assert len(fetched) == 1 and fetched[0][2]["model_of_round"] >= before - 1


@pytest.mark.parametrize("pause", [1.0, 30.0], ids=["before the verdict", "after it"])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_was_killed_comes_back_with_the_others_model(seed: int, pause: float) -> None:
    n = 3 + seed % 3
    w = learning(n, seed)
    w.run(8)
    victim = seed % n
    w.crash(victim, notice=True)
    w.run(pause)
    reached = max(w.rounds().values())
    w.start(victim, member(victim, n, life=2, seed=seed))
    w.run(15)
    rounds = w.rounds()
    assert min(rounds.values()) > reached and max(rounds.values()) - min(rounds.values()) <= n
    assert mixed_with(w, victim, w.now - 5) >= {victim} and len(mixed_with(w, victim, w.now - 5)) == min(n, 3)
    models = [w.machines[node].giver.latest[1] for node in w.living]
    assert np.allclose(models[0], models[-1], atol=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_sides_of_a_partition_learn_on_and_merge(seed: int) -> None:
    n = 5
    w = learning(n, seed)
    w.run(8)
    right = {3, 4}
    w.sides = dict.fromkeys(right, 1)
    w.run(30)
    during = w.rounds()
    for node in range(n):
        other = {0, 1, 2} if node in right else right
        assert set().union(*(value["unreachable"] for _, _, value in w.named("partition", [node]))) == other
    w.run(5)
    assert all(w.rounds()[node] > during[node] + 10 for node in range(n))
    w.sides = {}
    w.run(25)
    rounds = w.rounds()
    assert max(rounds.values()) - min(rounds.values()) <= n
    assert {node for _, node, _ in w.named("merged")} == set(range(n))
    assert all(mixed_with(w, node, w.now - 5) for node in range(n))


KINDS: list[dict[str, Any]] = [{"mode": "async"}, {"name": "push-sum"}, {"name": "push-sum", "mode": "async"}]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind.values()))
def test_one_joins_a_run_of_any_kind_with_the_others_model_dies_and_joins_again(kind: dict[str, Any]) -> None:
    w = learning(2, **kind)
    w.run(10)
    before = max(w.rounds().values())
    for life in (77, 78):
        joiner = join(w, 2, through=1, **(kind | {"life": life}))
        w.run(15)
        assert not joiner.joining and joiner.membership.round > before
        models = [w.machines[node].giver.latest[1] for node in range(3)]
        assert np.allclose(models, np.mean([vector(0), vector(1)], axis=0), atol=0.1)
        assert not w.named("unanswered", [2]) and not w.named("unsettled")
        before = max(w.rounds().values())
        w.crash(2, notice=True)
        w.run(10)


@pytest.mark.parametrize("kind", [{}, *KINDS], ids=lambda kind: "-".join(kind.values()) or "sync")
def test_one_that_kept_a_checkpoint_goes_on_from_it_where_it_is_not_far_behind(kind: dict[str, Any]) -> None:
    class Kept(Learning):
        last: Checkpoint

        def other(self, node: NodeId, effect: Effect | Event) -> None:
            if isinstance(effect, Checkpoint) and node == 2:
                self.last = effect
            super().other(node, effect)

    w = Kept({node: member(node, 3, **kind) for node in range(3)})
    w.run(10)
    w.crash(2, notice=True)
    w.run(0.5)
    again = member(2, 3, life=9, resumed=w.last, **kind)
    w.start(2, again)
    w.run(15)
    assert not again.joining and again.membership.round > w.last.round - 1 and not w.named("fetched")
    w.push(0, 2, Stopping())
    w.run(10)
    assert 2 in w.results


def test_one_that_reaches_nobody_ends_after_the_start_timeout_and_says_whom_it_asked() -> None:
    w = Learning({2: member(2, 2, join=True)})
    w.run(59)
    assert not w.results and [value for _, _, value in w.named("asks")] == [[0, 1]]
    w.run(2)
    assert [value for _, _, value in w.named("nobody_came")] == [[0, 1]] and 2 in w.results


def test_one_that_reaches_only_those_that_leave_ends_with_them() -> None:
    w = learning(2)
    w.run(5)
    for node in range(2):
        w.push(0, node, Stopping())
    joiner = member(2, 2, join=True, life=9)
    w.start(2, joiner)
    said = joiner.introduction()
    assert said
    w.push(0, 0, Received(-1, said))
    w.run(0.1)
    joiner.handle(PeerJoined(0), w.now_ns)
    joiner.handle(Received(0, Compare(w.machines[0].membership.roster.summarise())), w.now_ns)
    for page in w.machines[0].membership.roster.newer_than(()):
        joiner.handle(Received(0, MembershipUpdate((page,))), w.now_ns)
    w.run(70)
    assert w.named("stopped_with_the_others", [2]) and 2 in w.results and not w.named("nobody_came")


def test_those_that_wait_for_each_other_alone_end() -> None:
    """Neither has a model to give: the run has died, and no joiner holds another for ever."""
    w = learning(2)
    w.run(5)
    join(w, 2, through=0)
    join(w, 3, through=0)
    w.run(0.3)
    for node in range(2):
        w.crash(node)
    w.run(1)
    assert w.machines[2].membership.contact and not w.named("fetched")
    w.run(200)
    assert {2, 3} <= set(w.results)


def test_one_that_waits_for_a_run_to_begin_goes_on_waiting() -> None:
    w = Learning({1: member(1, 2, start_timeout=600.0)})  # it waits for 0, and has no model to give
    w.run(1)
    joiner = join(w, 2, through=1)
    w.run(100)
    assert joiner.joining and 2 not in w.results


def test_nobody_can_join_where_the_peers_are_counted() -> None:
    section = {"name": "window-doubling"}
    plan = compose.plan(checked({"algorithm": section, "topology": {"graph": "window-doubling", "n": 4}}, "test"))
    with pytest.raises(ConfigError, match="window-doubling counts its peers"):
        check_open(plan)


class Bending(Learning):
    """What node 1 sends to node 2 is not what it should be."""

    kinds: type | tuple[type, ...] = Model
    bent: Mapping[str, Any]

    def perform(self, node: NodeId, effect: Effect | Event) -> None:
        match effect:
            case Send(2, message) if node == 1 and isinstance(message, self.kinds):
                effect = Send(2, replace(message, **self.bent))
        super().perform(node, effect)


@pytest.mark.parametrize("bent", [{"schema": "other"}, {"round": 2**40}], ids=lambda bent: next(iter(bent)))
def test_a_refused_early_model_does_not_keep_a_joiner_from_beginning(bent: Mapping[str, Any]) -> None:
    w = Bending({node: member(node, 2) for node in range(2)})
    w.bent = bent
    w.run(10)
    joiner = join(w, 2, through=0)
    w.run(20)
    assert joiner.since and not joiner.joining and joiner.membership.round > joiner.since
    assert w.named("refused", [2]) and all(value["from"] == 1 for _, _, value in w.named("refused", [2]))


def test_a_round_that_the_run_has_not_does_not_end_a_joiner() -> None:
    w = Bending({node: member(node, 2) for node in range(2)})
    w.kinds, w.bent = (Ping, Pong, ModelInfo), {"round": 2**40}
    w.run(10)
    joiner = join(w, 2, through=0)
    w.run(20)
    assert joiner.since and not joiner.joining and joiner.membership.round > joiner.since
    assert {value["reason"] for _, _, value in w.named("refused", [2])} == {"far_ahead"}


def test_what_membership_did_with_a_refused_message_stays_done() -> None:
    m = member(0, 3)
    m.handle(Started(), 0)
    m.handle(PeerJoined(1), 0)
    effects = m.handle(Received(1, Model(0, "other", (vector(1),))), 60 * SECOND)
    assert reports(effects).keys() == {"slept", "refused"}
    assert any(isinstance(effect, Send) and isinstance(effect.message, Ping) for effect in effects)


def test_one_that_leaves_is_not_missed() -> None:
    w = learning(4)
    w.run(8)
    w.push(0, 2, Stopping())
    w.run(1)
    assert 2 in w.results
    w.crash(2)
    w.run(20)
    assert not w.named("suspected") and not w.named("gone", [0, 1, 3])
    assert w.machines[0].membership.roster.participants(w.rounds()[0]) == (0, 1, 3)


def test_one_that_comes_after_the_last_round_is_told_so() -> None:
    w = learning(2, rounds=100)
    w.run(9.5)
    assert 60 < w.rounds()[0] < 92
    w.machines[2] = late = member(2, 2, rounds=w.rounds()[0] + 6, join=True, life=9)
    w.start(2, late)
    said = late.introduction()
    assert said
    w.push(0, 0, Received(-1, said))
    w.run(3)
    assert w.named("too_late", [2]) and 2 in w.results


# --- the transfer -----------------------------------------------------------------------------------------------------

BIG = frozen(np.arange(2 * MODEL_CHUNK + 7, dtype=np.float32))


def giver(round: int = 5, model: Vector = BIG) -> ModelSource:
    made = ModelSource(SCHEMA)
    made.latest = round, model
    return made


def pump(taker: ModelFetch, givers: dict[NodeId, ModelSource], effects: list[Effect], pieces: int = 99) -> list[Effect]:
    """Move messages by hand until `pieces` pieces came or nothing is left; return what was not moved."""
    queue = list(effects)
    while queue:
        effect = queue.pop(0)
        if isinstance(effect, SetTimer) and effect.key == ("transfer", "gather"):
            queue += taker.fired(["gather"])
        if not isinstance(effect, Send):
            continue
        for answer in givers[effect.to].handle(effect.to, effect.message, 0):  # type: ignore[arg-type]
            assert isinstance(answer, Send)
            if isinstance(answer.message, ModelChunk):
                if pieces == 0:
                    return [effect]
                pieces -= 1
            queue += taker.handle(effect.to, answer.message)  # type: ignore[arg-type]
    return []


def test_the_newest_model_is_fetched_whole() -> None:
    taker = ModelFetch(SCHEMA, BIG.size, "float32")
    pump(taker, {1: giver(4, frozen(BIG + 1)), 2: giver(5)}, taker.begin([1, 2]))
    assert taker.model is not None and taker.model[0] == 5
    assert np.array_equal(taker.model[1], BIG) and not taker.model[1].flags.writeable


def test_after_a_broken_link_it_goes_on_where_it_was() -> None:
    taker, givers = ModelFetch(SCHEMA, BIG.size, "float32"), {1: giver()}
    pump(taker, givers, taker.begin([1]), pieces=1)
    assert taker.handle_lost_link(1) == [] and taker.start == MODEL_CHUNK
    again = taker.joined(1)
    assert isinstance(again[0], Send) and again[0].message == ChunkRequest(5, digest([BIG]), MODEL_CHUNK)
    pump(taker, givers, again)
    assert taker.model is not None and np.array_equal(taker.model[1], BIG)


def test_another_with_the_same_model_goes_on_where_the_first_stopped() -> None:
    taker, givers = ModelFetch(SCHEMA, BIG.size, "float32"), {1: giver(), 2: giver()}
    pump(taker, givers, taker.begin([1, 2]), pieces=1)
    assert taker.source == 1
    effects = taker.handle_lost_link(1)
    assert isinstance(effects[0], Send) and effects[0].to == 2
    assert isinstance(effects[0].message, ChunkRequest) and effects[0].message.start == MODEL_CHUNK
    pump(taker, givers, effects)
    assert taker.model is not None and np.array_equal(taker.model[1], BIG)


def test_one_that_does_not_answer_is_given_up_for_the_next_best() -> None:
    taker, givers = ModelFetch(SCHEMA, BIG.size, "float32"), {1: giver(9), 2: giver(5)}
    pump(taker, givers, taker.begin([1, 2]), pieces=0)
    assert taker.source == 1
    pump(taker, givers, taker.fired(["piece", 1, 0]))
    assert taker.model is not None and taker.model[0] == 5


def test_a_model_that_is_not_what_was_promised_is_refused_and_the_next_one_taken() -> None:
    class Liar(ModelSource):
        def handle(self, sender: NodeId, message: ModelQuery | ChunkRequest, now_ns: int) -> list[Effect]:
            if isinstance(message, ModelQuery):
                return [Send(sender, ModelInfo(9, "f" * 64))]
            part = BIG[message.start : message.start + MODEL_CHUNK]
            return [Send(sender, ModelChunk(9, "f" * 64, message.start, SCHEMA, (part,)))]

    taker = ModelFetch(SCHEMA, BIG.size, "float32")
    pump(taker, {1: Liar(SCHEMA), 2: giver()}, taker.begin([1, 2]))
    assert taker.model is not None and taker.model[0] == 5


def test_what_nobody_asked_for_changes_nothing() -> None:
    taker = ModelFetch(SCHEMA, BIG.size, "float32")
    pump(taker, {1: giver()}, taker.begin([1]), pieces=1)
    for piece in (
        ModelChunk(5, digest([BIG]), 0, SCHEMA, (BIG[:MODEL_CHUNK],)),
        ModelChunk(5, "x", MODEL_CHUNK, SCHEMA, (BIG[:MODEL_CHUNK],)),
    ):
        assert taker.handle(1, piece) == [] and taker.start == MODEL_CHUNK
    assert taker.handle(2, ModelChunk(5, digest([BIG]), MODEL_CHUNK, SCHEMA, (BIG[:MODEL_CHUNK],))) == []
    with pytest.raises(ProtocolError):
        taker.handle(1, ModelChunk(5, digest([BIG]), MODEL_CHUNK, SCHEMA, (BIG[:9],)))
    assert taker.start == MODEL_CHUNK


def test_an_offered_model_is_kept_for_a_while_and_not_for_ever() -> None:
    member = giver()
    (have,) = member.handle(7, ModelQuery(), 0)
    assert isinstance(have, Send) and isinstance(have.message, ModelInfo)
    member.latest = 6, frozen(BIG + 1)
    fetch = ChunkRequest(have.message.round, have.message.digest, 0)
    (piece,) = member.handle(7, fetch, KEPT_NS)
    assert isinstance(piece, Send) and isinstance(piece.message, ModelChunk)
    (other,) = member.handle(7, fetch, 3 * KEPT_NS)
    assert isinstance(other, Send) and other.message == ModelInfo(6, digest([member.latest[1]]))


def test_links_are_told_to_the_gossip_machine_by_membership_alone() -> None:
    m = member(0, 2)
    seen: list[Event] = []

    class Ears:
        def handle(self, event: Event, now_ns: int) -> list[Effect]:
            seen.append(event)
            return []

    m.gossip = Ears()
    m.handle(PeerJoined(1, 3), 0)
    m.handle(PeerGone(1), 1)
    assert seen == [PeerJoined(1, 3), PeerGone(1)]


# --- one that lies to joiners -----------------------------------------------------------------------------------------


class Boasting(ModelSource):
    """Offers a model of the round `round`, again and again another one, and gives what `give` says."""

    def __init__(self, round: int, give: Callable[[ChunkRequest], list[Effect]] = lambda _: []) -> None:
        super().__init__(SCHEMA)
        self.round, self.give, self.offers = round, give, 0

    def handle(self, sender: NodeId, message: ModelQuery | ChunkRequest, now_ns: int) -> list[Effect]:
        if isinstance(message, ChunkRequest) and (given := self.give(message)):
            return given
        self.offers += 1
        return [Send(sender, ModelInfo(self.round, f"{self.offers:064x}"))]


def timed(taker: ModelFetch, givers: dict[NodeId, ModelSource], effects: list[Effect], seconds: float) -> float:
    """Move messages by hand, and let time pass where nothing else is left; return when the model was here."""
    now, timers = 0.0, list[tuple[float, int, Any]]()
    queue = list(effects)
    for step in range(10_000):
        if taker.model is not None or now > seconds:
            return now
        if not queue:
            now, _, key = heapq.heappop(timers)
            queue += taker.fired(key[1:])
            continue
        effect = queue.pop(0)
        if isinstance(effect, SetTimer):
            heapq.heappush(timers, (now + effect.after_ns / SECOND, step, effect.key))
        elif isinstance(effect, Send):
            for answer in givers[effect.to].handle(9, effect.message, int(now * SECOND)):  # type: ignore[arg-type]
                assert isinstance(answer, Send)
                queue += taker.handle(effect.to, answer.message)  # type: ignore[arg-type]
    return seconds + 1


def not_a_number(asked: ChunkRequest) -> list[Effect]:
    part = np.full_like(BIG[asked.start : asked.start + MODEL_CHUNK], np.nan)
    return [Send(9, ModelChunk(asked.round, asked.digest, asked.start, SCHEMA, (part,)))]


@pytest.mark.parametrize("ahead", [0, 3, 1000], ids=["as the others", "a little ahead", "far ahead"])
@pytest.mark.parametrize("give", [lambda _: [], not_a_number], ids=["nothing", "nonsense"])
def test_one_that_offers_what_it_does_not_give_delays_a_joiner_once_at_most(
    ahead: int, give: Callable[[ChunkRequest], list[Effect]]
) -> None:
    taker = ModelFetch(SCHEMA, BIG.size, "float32")
    givers = {1: Boasting(500 + ahead, give), 2: giver(500), 3: giver(499, frozen(BIG + 1))}
    took = timed(taker, givers, taker.begin([1, 2, 3]), 60)
    assert taker.model is not None and taker.model[0] in (499, 500)
    assert took < (21 if ahead < 1000 else 1)


def test_models_that_are_no_numbers_are_not_begun_with() -> None:
    bad = np.array([1.0, np.inf, 3.0], np.float32)
    taker = ModelFetch(SCHEMA, 3, "float32")
    givers = {1: giver(6, bad), 2: giver(5, frozen(np.ones(3, np.float32)))}
    timed(taker, givers, taker.begin([1, 2]), 60)
    assert taker.model is not None and taker.model[0] == 5


@pytest.mark.parametrize("claimed", [3999, 0], ids=["the last round", "the first round"])
def test_one_that_lies_about_its_round_does_not_keep_joiners_out(claimed: int) -> None:
    class Lying(Learning):
        def perform(self, node: NodeId, effect: Effect | Event) -> None:
            match effect:
                case Send(to, Ping() | Pong() as said) if node == 1:
                    effect = Send(to, replace(said, round=claimed))
                case Send(to, ModelInfo(round, digest)) if node == 1:
                    effect = Send(to, ModelInfo(max(claimed, round), digest))
            super().perform(node, effect)

    w = Lying({node: member(node, 3) for node in range(3)})
    w.run(10)
    joiner = member(3, 3, join=True, life=77)
    w.start(3, joiner)
    said = joiner.introduction()
    assert said is not None
    w.push(0, 1, Received(-1, said))
    w.run(25)
    assert not w.named("too_late") and not joiner.joining and 3 not in w.results
    assert abs(joiner.membership.round - w.rounds()[0]) <= 4
