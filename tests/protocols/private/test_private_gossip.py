"""Private gossip: the machine alone, all of them under random schedules, and in virtual time and over real sockets."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, cast

import numpy as np
import pytest
from by_hand import Hand, reports
from hypothesis import given, settings
from hypothesis import strategies as st
from over_sockets import run_over_sockets

from fedgossip import load_experiment, simulate
from fedgossip.algorithms.gossip.dsgd import CombineThenAdapt
from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError, ProtocolError, TrainingError
from fedgossip.base.vectors import Vector, digest, frozen
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    Finish,
    Fired,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    Rostered,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.core.messages import CHECK_WORDS, Expected, Leaving, Masked, Model, RunKey, RunKeys
from fedgossip.core.wire import Assembler, FrameError, frames
from fedgossip.core.wire import chunks as chunks_of
from fedgossip.drivers.members import check_open
from fedgossip.net.identity import Identity, raw
from fedgossip.plans import compose
from fedgossip.protocols import private_gossip
from fedgossip.protocols.gossip.awaited_round import SyncSettings
from fedgossip.protocols.private_gossip import MODEL, PrivateGossip
from fedgossip.secure.fixed_point import Words
from fedgossip.secure.pairs import LIMIT, AgreedPairs, Grid, Other, Own, Pairs, SeededPairs, masked, opened, run_of
from fedgossip.secure.primitives import public_of
from fedgossip.topology import Mixing, build, resolve
from fedgossip.topology.exposure import check_private

SCHEMA = "s"
GRID = Grid(8.0)


def vector(*values: float) -> Vector:
    return frozen(np.array(values, np.float64))


def machine(
    node: int = 0, graph: str = "complete", n: int = 4, rounds: int = 3, seed: int = 1, **keys: Any
) -> PrivateGossip:
    mixing = build(resolve(graph, n), "metropolis")
    start = vector(node, 0.1 * node, -node / 3)
    pairs = keys.pop("pairs", SeededPairs(node, seed))
    return PrivateGossip(node, mixing, start, SCHEMA, SyncSettings(rounds), GRID, pairs, **keys)


def training(node: int = 0, **keys: Any) -> PrivateGossip:
    """A machine whose links are all up, in training."""
    m = machine(node, **keys)
    m.handle(Started(), 0)
    for partner in m.company.partners:
        m.handle(PeerJoined(partner), 0)
    assert m.phase == "training"
    return m


def waiting(node: int = 0, **keys: Any) -> PrivateGossip:
    """A machine that has sent its parts of its first round."""
    m = training(node, **keys)
    m.handle(Trained(m.round, None), 0)
    assert m.phase == "waiting"
    return m


def sends(effects: Sequence[Effect]) -> dict[int, Any]:
    return {effect.to: effect.message for effect in effects if isinstance(effect, Send)}


def parts_for(receiver: int, round: int = 0, **keys: Any) -> dict[int, Masked]:
    """What the neighbours of `receiver` send to it in `round`, nothing trained."""
    resumed = {"resumed": Checkpoint(round, {MODEL: vector(1, 2, 3)})} if round else {}
    senders = machine(receiver, **keys).company.partners
    return {s: sends(training(s, **keys, **resumed).handle(Trained(round, None), 0))[receiver] for s in senders}


def words_of(message: Masked) -> Words:
    return message.vectors[0].view(np.uint32)


def deliver(m: PrivateGossip, parts: dict[int, Masked]) -> list[Effect]:
    return [effect for sender, part in parts.items() for effect in m.handle(Received(sender, part), 0)]


# --- one machine ------------------------------------------------------------------------------------------------------


def test_training_begins_when_every_link_is_up() -> None:
    m = machine(0)
    assert [type(e) for e in m.handle(Started(), 0)] == [SetTimer, SetTimer]
    assert m.handle(PeerJoined(1), 0) == [] == m.handle(PeerJoined(2), 0)
    (train,) = m.handle(PeerJoined(3), 0)
    assert isinstance(train, Train) and train.job == 0


def test_every_neighbour_gets_a_part_of_its_own_and_none_sees_the_model() -> None:
    effects = training(1).handle(Trained(0, vector(1, 1, 1)), 0)
    parts = sends(effects)
    assert list(parts) == [0, 2, 3] and all(isinstance(part, Masked) for part in parts.values())
    contents = {words_of(part).tobytes() for part in parts.values()}
    assert len(contents) == 3 and {words_of(part).size for part in parts.values()} == {3 + CHECK_WORDS}
    bare = GRID.quantise(vector(2, 1.1, 1 - 1 / 3), 0.25)
    assert not any(np.any(words_of(part)[:3] == bare) for part in parts.values())


def test_in_the_other_order_the_model_before_the_training_goes_out_and_the_update_is_added_to_what_is_mixed() -> None:
    """Also where nothing opens: the checkpoint before the parts leave has the update, which would be lost otherwise."""
    update = vector(1, 1, 1)
    m = training(1, algorithm=CombineThenAdapt())
    effects = m.handle(Trained(0, update), 0)
    start = vector(1, 0.1, -1 / 3)
    assert np.array_equal(m.given, GRID.quantise(start, 0.25) * np.uint32(3))
    kept = next(effect for effect in effects if isinstance(effect, Checkpoint))
    assert np.array_equal(kept.vectors[MODEL], start + update)
    deliver(m, parts_for(1))
    mixed = np.mean([(v, 0.1 * v, -v / 3) for v in range(4)], axis=0)
    assert m.round == 1 and np.allclose(m.learner.model, mixed + update, atol=4 * GRID.unit)


def test_before_a_part_leaves_it_is_said_that_its_round_is_used() -> None:
    effects = training(1).handle(Trained(0, vector(1, 1, 1)), 0)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Checkpoint) < kinds.index(Send)
    kept = next(effect for effect in effects if isinstance(effect, Checkpoint))
    assert kept.round == 1 and np.array_equal(kept.vectors[MODEL], vector(2, 1.1, 1 - 1 / 3))


def test_a_round_mixes_as_the_weights_say() -> None:
    """x_1 <- sum_j W_1j x_j, each of the 2 d integers off by half a unit at most."""
    m = waiting(1)
    effects = deliver(m, parts_for(1))
    expected = np.mean([machine(node).learner.model for node in range(4)], axis=0)
    mixed = cast(Vector, reports(effects)["round_done"])
    assert np.abs(mixed - expected).max() <= 3 * GRID.unit
    assert isinstance(effects[-1], Train) and effects[-1].job == 1 and "skipped_mix" not in reports(effects)


def test_parts_in_any_order_give_the_same_bits() -> None:
    parts = parts_for(0)
    found = set()
    for order in ([1, 2, 3], [3, 1, 2], [2, 3, 1]):
        m = waiting(0)
        deliver(m, {sender: parts[sender] for sender in order})
        found.add(m.learner.model.tobytes())
    assert len(found) == 1


def test_a_part_that_came_over_a_link_is_added_to_in_place_and_one_with_other_readers_is_not() -> None:
    parts = parts_for(0)
    owned = Masked(0, SCHEMA, (parts[1].vectors[0].copy(),))
    m = waiting(0)
    m.handle(Received(1, owned), 0)
    assert m.sums.of[0].total.base is owned.vectors[0] or m.sums.of[0].total is owned.vectors[0]
    before = parts[2].vectors[0].copy()
    m = waiting(0)
    deliver(m, {2: parts[2], 3: parts[3]})
    assert np.array_equal(parts[2].vectors[0], before)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_without_one_part_a_peer_keeps_its_own_model(missing: int) -> None:
    m = waiting(0)
    parts = parts_for(0)
    deliver(m, {sender: part for sender, part in parts.items() if sender != missing})
    assert m.phase == "waiting"
    effects = m.handle(Fired(("deadline", 0)), 10**9)
    assert reports(effects)["skipped_mix"] == {"missing": [missing]}
    assert np.array_equal(m.learner.model, machine(0).learner.model) and m.round == 1
    assert reports(m.handle(Received(missing, parts[missing]), 0)) == {"late": {"peer": missing, "round": 0}}
    assert np.array_equal(m.learner.model, machine(0).learner.model)


def test_one_that_is_gone_is_not_waited_for() -> None:
    m = waiting(0)
    parts = parts_for(0)
    deliver(m, {1: parts[1], 2: parts[2]})
    assert reports(m.handle(PeerGone(3), 0))["skipped_mix"] == {"missing": [3]}


def test_one_that_has_gone_on_to_a_later_round_is_not_waited_for() -> None:
    """Links keep the order: what it said before is lost."""
    m = waiting(0)
    parts = parts_for(0)
    deliver(m, {1: parts[1], 2: parts[2]})
    effects = m.handle(Received(3, parts_for(0, round=1)[3]), 0)
    assert reports(effects)["skipped_mix"] == {"missing": [3]}


def test_one_that_begins_a_new_life_may_be_in_an_earlier_round() -> None:
    m = waiting(0)
    m.handle(Received(3, part(2)), 0)
    m.handle(PeerJoined(3, incarnation=1), 0)
    parts = parts_for(0)
    deliver(m, {1: parts[1], 2: parts[2]})
    assert m.phase == "waiting" and m.sources.missing == {3}
    assert "skipped_mix" not in reports(deliver(m, {3: parts[3]}))


def test_an_early_part_waits_for_its_round_and_a_repeated_one_counts_once() -> None:
    m = waiting(0)
    first, second = parts_for(0), parts_for(0, round=1)
    deliver(m, {1: first[1], 2: first[2]})
    assert reports(m.handle(Received(1, first[1]), 0)) == {"repeated": {"peer": 1, "round": 0}}
    assert m.handle(Received(1, second[1]), 0) == []
    deliver(m, {3: first[3]})
    m.handle(Trained(1, None), 0)
    effects = deliver(m, {2: second[2], 3: second[3]})
    assert "round_done" in reports(effects) and "skipped_mix" not in reports(effects)


def test_with_masks_of_another_run_nothing_is_mixed() -> None:
    """One of the senders has other keys: what is left in the sum is noise, and the words after the model show it."""
    parts = parts_for(0)
    parts[2] = parts_for(0, seed=2)[2]
    m = waiting(0)
    effects = deliver(m, parts)
    assert reports(effects)["skipped_mix"] == {"garbled": [1, 2, 3]}
    assert np.array_equal(m.learner.model, machine(0).learner.model)


def test_nothing_is_sent_to_one_with_fewer_than_three_neighbours() -> None:
    effects = training(0, graph="ring", n=5).handle(Trained(0, None), 0)
    assert sends(effects) == {}
    withheld = [e.value for e in effects if isinstance(e, Report) and e.name == "withheld"]
    assert withheld == [{"peer": 1, "senders": 2}, {"peer": 4, "senders": 2}]


@pytest.mark.parametrize("values", [(8.5, 0, 0), (0, -9, 0), (0, 0, np.nan), (np.inf, 0, 0), (0, -np.inf, 0)])
def test_a_model_beyond_the_bound_stops_the_peer_and_is_not_clipped(values: tuple[float, ...]) -> None:
    m = training(0)
    with pytest.raises(TrainingError, match=r"node 0, round 0: .*algorithm.bound = 8"):
        m.handle(Trained(0, vector(*values)), 0)
    assert m.phase == "training"


def part(round: int = 0, schema: str = SCHEMA, length: int = 3 + CHECK_WORDS, dtype: str = "uint32") -> Masked:
    return Masked(round, schema, (np.zeros(length, dtype),))


@pytest.mark.parametrize(
    "message",
    [
        part(schema="other"),
        part(length=3),
        part(dtype="int32"),
        part(dtype="float32"),
        part(round=3),
        part(round=-1),
        Masked(0, SCHEMA, ()),
        Model(0, SCHEMA, (vector(1, 2, 3),)),
    ],
)
def test_another_layout_round_or_kind_is_refused_and_changes_nothing(message: Any) -> None:
    m = waiting(0)
    with pytest.raises(ProtocolError):
        m.handle(Received(1, message), 0)
    assert m.sums.of == {} and m.sources.missing == {1, 2, 3}
    assert "round_done" in reports(deliver(m, parts_for(0)))


def test_strangers_and_new_rosters_are_refused() -> None:
    m = waiting(0, graph="torus:4x4", n=16)
    with pytest.raises(ProtocolError, match="no neighbour"):
        m.handle(Received(10, part()), 0)
    with pytest.raises(ProtocolError, match="fixed before it begins"):
        m.handle(Rostered(m.schedule), 0)


def test_one_neighbour_moves_nobody_to_another_round_and_two_do() -> None:
    for ahead, reached in (((1,), 0), ((1, 2), 7)):
        m = training(0, rounds=20)
        for sender in ahead:
            m.handle(Received(sender, part(7)), 0)
        effects = m.handle(Trained(0, None), 0)
        assert m.round == reached
        assert {s.round for s in sends(effects).values()} == {reached}


def test_parts_of_rounds_far_ahead_take_no_memory() -> None:
    m = training(0, rounds=10**6)
    for round in range(2, 5000, 7):
        m.handle(Received(1, part(round)), 0)
    assert m.sums.of == {}


def test_a_part_that_came_too_early_to_be_kept_is_not_waited_for() -> None:
    m = training(0)
    m.handle(Received(3, part(2)), 0)
    assert m.sums.of == {}
    for round in range(3):
        m.handle(Trained(round, None), 0)
        effects = deliver(m, {s: p for s, p in parts_for(0, round=round).items() if s != 3})
        assert reports(effects)["skipped_mix"] == {"missing": [3]}


def test_a_new_life_masks_nothing_again() -> None:
    """It goes on from what was said before the parts left."""
    before = training(1)
    effects = before.handle(Trained(0, None), 0)
    kept = [effect for effect in effects if isinstance(effect, Checkpoint)][-1]
    after = training(1, resumed=kept)
    assert after.round == 1
    again = sends(after.handle(Trained(1, None), 0))
    assert {message.round for message in again.values()} == {1}


def test_peers_leave_together() -> None:
    """A goodbye is answered, and who has had its answer from all is done."""
    m = waiting(0, rounds=1)
    effects = deliver(m, parts_for(0, rounds=1))
    assert sends(effects) == {to: Leaving(1) for to in (1, 2, 3)}
    assert sends(m.handle(Received(1, Leaving(1)), 0)) == {1: Leaving(1, done=True)}
    assert sends(m.handle(Fired(("again",)), 0)) == {1: Leaving(1, done=True), 2: Leaving(1), 3: Leaving(1)}
    for sender in (1, 2):
        m.handle(Received(sender, Leaving(1, done=True)), 0)
    assert isinstance(m.handle(Received(3, Leaving(1, done=True)), 0)[-1], Finish)
    assert m.handle(Received(1, Leaving(1)), 0) == []


def test_who_stops_says_goodbye() -> None:
    effects = waiting(0).handle(Stopping(), 0)
    assert set(sends(effects)) == {1, 2, 3} and isinstance(effects[-1], Finish)


def test_a_peer_that_nobody_meets_ends() -> None:
    m = machine(0)
    m.handle(Started(), 0)
    effects = m.handle(Fired(("start",)), 0)
    assert reports(effects) == {"nobody_came": [1, 2, 3]} and isinstance(effects[-1], Finish)


# --- the integers -----------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["float32", "float64"]), st.integers(1, 40_000))
def test_all_nodes_at_once_give_the_bits_of_one_after_the_other(seed: int, dtype: str, length: int) -> None:
    length = length if seed % 8 == 0 else 1 + length % 300  # now and then more than a block
    mixing = build(resolve("barbell-5"), "metropolis")
    stacked = seeds.stream(seed, "stacked").uniform(-8, 8, (10, length)).astype(dtype)
    out = np.empty_like(stacked)
    GRID.moved_rows(mixing.rows_by_degree(), stacked, out)
    for node in range(10):
        come, gone = np.zeros((2, length), np.uint32)
        for other, weight in mixing.row(node).items():
            if other != node:
                come += GRID.quantise(stacked[other], weight)
                gone += GRID.quantise(stacked[node], weight)
        assert GRID.moved(stacked[node], come, gone).tobytes() == out[node].tobytes()


def test_the_largest_sums_do_not_wrap_around() -> None:
    """Everybody at one end of the range and the receiver at the other: the difference is twice the bound."""
    n, low, high = 9, np.full(5, -8.0), np.full(5, 8.0)
    come, gone = np.zeros((2, 5), np.uint32)
    for _ in range(n - 1):
        come += GRID.quantise(high, 1 / (n - 1))
        gone += GRID.quantise(low, 1 / (n - 1))
    assert np.abs(GRID.moved(low, come, gone) - high).max() <= (n - 1) * GRID.unit
    assert 2 * LIMIT + 1000 < 2**31


@pytest.mark.parametrize("bound", [0.0, -1.0, np.inf, np.nan])
def test_a_bound_that_is_none_is_refused(bound: float) -> None:
    with pytest.raises(ConfigError):
        Grid(bound)


def test_equal_models_stay_equal_to_the_last_bit() -> None:
    x = seeds.stream(1, "x").uniform(-8, 8, 1000).astype(np.float32)
    stacked = np.stack([x] * 16)
    out = np.empty_like(stacked)
    GRID.moved_rows(build(resolve("torus:4x4", 16), "metropolis").rows_by_degree(), stacked, out)
    assert np.array_equal(out, stacked)


# --- what a receiver sees ---------------------------------------------------------------------------------------------


def test_what_a_receiver_sees_is_uniform_but_for_the_sum() -> None:
    """All models are zero.  Of each proper subset of the parts the 256 values of the bytes are equally frequent: chi^2
    with 255 degrees of freedom lies within 255 +- 6 sqrt(510) but for a chance of 10^-8.  The sum of all is zero."""
    length = 50_000
    parts = [
        masked(np.zeros(length, np.uint32), *_keys(node, [other for other in range(4) if other != node]))[:length]
        for node in range(4)
    ]
    for size in (1, 2, 3):
        for subset in combinations(parts, size):
            counts = np.bincount(_sum(subset).view(np.uint8), minlength=256)
            chi2 = ((counts - 4 * length / 256) ** 2 / (4 * length / 256)).sum()
            assert abs(chi2 - 255) < 6 * np.sqrt(510)
    assert not _sum(parts).any()


def _keys(node: int, others: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
    keys = {other: SeededPairs(node, 1).key(other, 9, 0, 4) for other in others}
    return [k for o, k in keys.items() if o > node], [k for o, k in keys.items() if o < node]


def _sum(parts: Sequence[Words]) -> Words:
    return np.sum(parts, axis=0, dtype=np.uint32)


def test_noise_is_not_taken_for_a_sum() -> None:
    noise = seeds.stream(1, "noise").integers(0, 2**32, 10 + CHECK_WORDS, dtype=np.uint32)
    assert opened(noise, 3) is None
    noise[10:] = 3
    assert opened(noise, 3) is not None
    noise[-1] += 1
    assert opened(noise, 3) is None


# --- keys -------------------------------------------------------------------------------------------------------------


def other(identity: Identity) -> Other:
    return Other(raw(identity.public), bytes.fromhex(identity.verify))


def pairs_of(identities: Sequence[Identity], node: int, run: str = "a", life: int = 0) -> AgreedPairs:
    """What makes the masks of one life of a peer."""
    own = Own(node, life, raw(identities[node].secret), identities[node].sign_bytes, os.urandom)
    others = {o: other(identity) for o, identity in enumerate(identities) if o != node}
    return AgreedPairs(own, others, run_of(run))


def introduced(pairs: Sequence[AgreedPairs]) -> list[AgreedPairs]:
    """Everybody has heard the key of everybody."""
    for one in pairs:
        for told in (key for two in pairs for key in two.keys_for(())):
            if one.news(told):
                one.take(told)
    return list(pairs)


def agreed(n: int, run: str = "a") -> list[AgreedPairs]:
    identities = [Identity.new() for _ in range(n)]
    return introduced([pairs_of(identities, node, run) for node in range(n)])


@pytest.mark.parametrize("make", [lambda: agreed(3), lambda: [SeededPairs(node, 1) for node in range(3)]])
def test_both_ends_of_a_pair_have_the_same_keys_and_no_two_masks_share_one(make: Callable[[], list[Pairs]]) -> None:
    pairs, found = make(), set()
    for u, v in combinations(range(3), 2):
        for receiver in range(4):
            for round in range(4):
                for words in (1, 10):
                    key = pairs[u].key(v, receiver, round, words)
                    assert key == pairs[v].key(u, receiver, round, words) and len(key) == 32
                    found.add(key)
    assert len(found) == 3 * 4 * 4 * 2


def test_who_has_the_long_term_keys_makes_no_mask_of_a_life_that_is_over() -> None:
    """Two peers with the same long-term keys, in the same run and round, make other masks in every life."""
    identities = [Identity.new(), Identity.new()]
    keys = {introduced([pairs_of(identities, 0), pairs_of(identities, 1)])[0].key(1, 2, 3, 4) for _ in range(3)}
    assert len(keys) == 3


def test_keys_of_another_run_or_another_owner_are_refused_and_older_ones_are_no_news() -> None:
    identities = [Identity.new() for _ in range(3)]
    mine = pairs_of(identities, 0)
    (key,), (foreign,) = pairs_of(identities, 1, life=4).keys_for(()), pairs_of(identities, 1, "b").keys_for(())
    others = [{"node": 2}, {"node": 9}, {"incarnation": 5}, {"signature": "zz"}, {"signature": ""}, {"public": "00"}]
    for lie in [foreign, *(replace(key, **fields) for fields in others)]:
        with pytest.raises(ProtocolError):
            mine.news(lie)
    assert not mine.knows(1) and mine.news(key)
    mine.take(key)
    assert mine.knows(1) and not mine.news(key)
    for life, news in ((3, False), (4, False), (5, True)):
        assert mine.news(pairs_of(identities, 1, life=life).keys_for(())[0]) is news


def test_a_key_with_which_everybody_agrees_is_refused_though_it_is_signed() -> None:
    identities = [Identity.new(), Identity.new()]
    unsigned = RunKey(1, 0, bytes(32).hex())
    mine = pairs_of(identities, 0)
    with pytest.raises(ProtocolError, match="none"):
        mine.news(replace(unsigned, signature=identities[1].sign_bytes(mine._content(unsigned)).hex()))


def test_keys_go_over_a_receiver_to_all_that_send_to_it_and_then_it_begins() -> None:
    """On a 4 x 4 torus the senders to one receiver are no neighbours of each other."""
    identities = [Identity.new() for _ in range(16)]
    machines = [machine(k, "torus:4x4", 16, pairs=pairs_of(identities, k)) for k in range(16)]
    queue: deque[tuple[int, int, RunKeys]] = deque()
    begun: set[int] = set()

    def tell(node: int, event: Event) -> None:
        for effect in machines[node].handle(event, 0):
            if isinstance(effect, Send):
                assert isinstance(effect.message, RunKeys)
                queue.append((node, effect.to, effect.message))
            elif isinstance(effect, Train):
                begun.add(node)

    for node in range(16):
        tell(node, Started())
        for partner in machines[node].company.partners:
            tell(node, PeerJoined(partner))
    assert not begun, "nobody begins without the keys of those it must mask with"
    sent = 0
    while queue:
        sender, to, message = queue.popleft()
        sent += 1
        tell(to, Received(sender, message))
    assert begun == set(range(16)) and sent <= 16 * 4 * (1 + 3 + 1)
    for receiver in range(16):
        partners = machines[receiver].company.partners
        for u, v in combinations(partners, 2):
            keys = [machines[a].book.pairs.key(b, receiver, 0, 5) for a, b in ((u, v), (v, u))]
            assert keys[0] == keys[1]


def test_a_key_that_is_told_wrongly_changes_nothing() -> None:
    identities = [Identity.new() for _ in range(4)]
    m = machine(0, pairs=pairs_of(identities, 0))
    m.handle(Started(), 0)
    for partner in m.company.partners:
        m.handle(PeerJoined(partner), 0)
    good, bad = pairs_of(identities, 1).keys_for(()), pairs_of(identities, 2, "b").keys_for(())
    with pytest.raises(ProtocolError) as caught:
        m.handle(Received(1, RunKeys((*good, *bad))), 0)
    assert caught.value.peer == 1 and not m.book.pairs.knows(1)


def test_where_a_key_is_not_here_in_time_nothing_is_sent_that_would_be_noise() -> None:
    identities = [Identity.new() for _ in range(4)]
    m = machine(0, pairs=pairs_of(identities, 0))
    m.handle(Started(), 0)
    for partner in m.company.partners:
        m.handle(PeerJoined(partner), 0)
    for node in (1, 2):
        m.handle(Received(node, RunKeys(tuple(pairs_of(identities, node).keys_for(())))), 0)
    (started, train) = m.handle(Fired(("start",)), 0)
    assert isinstance(started, Report) and started.value == [3] and isinstance(train, Train)
    effects = m.handle(Trained(0, None), 0)
    withheld = [e.value for e in effects if isinstance(e, Report) and e.name == "withheld"]
    assert withheld == [{"peer": 1, "keys": [3]}, {"peer": 2, "keys": [3]}] and list(sends(effects)) == [3]


def test_the_keys_of_links_are_x25519_keys() -> None:
    identity = Identity.new()
    assert public_of(raw(identity.secret)) == raw(identity.public)


def test_a_public_key_with_which_everybody_agrees_is_refused() -> None:
    with pytest.raises(ConfigError, match="peer 5"):
        own = Own(0, 0, raw(Identity.new().secret), Identity.new().sign_bytes, os.urandom)
        AgreedPairs(own, {5: Other(bytes(32), bytes(32))}, run_of("a"))


def test_no_secret_is_in_what_a_machine_says_of_itself() -> None:
    identities = [Identity.new(), Identity.new()]
    (pairs, _) = introduced([pairs_of(identities, 0), pairs_of(identities, 1)])
    shown = repr(pairs) + repr(vars(pairs)) + repr(machine(0, pairs=pairs)) + repr(SeededPairs(0, 123456))
    for secret in (raw(identities[0].secret), pairs._shared[1].read(), pairs._lasting[1].read()):
        assert secret.hex() not in shown and repr(secret)[2:-1] not in shown
    assert identities[0].secret not in shown and "123456" not in shown


# --- on the wire ------------------------------------------------------------------------------------------------------


def assembled(message: Masked, expected: Expected) -> Any:
    assembler = Assembler(expected)
    for mark, body in frames(message, 7, chunks_of(message)):
        target = assembler.mark(mark)
        if target is None:
            assembler.header(bytes(body))
        else:
            target[:] = body
            arrived = assembler.landed(len(body))
    return arrived


@pytest.mark.parametrize("length", [1, 1000, 200_000])
def test_a_masked_model_arrives_with_the_same_bits(length: int) -> None:
    words = seeds.stream(length, "words").integers(0, 2**32, length + CHECK_WORDS, dtype=np.uint32)
    arrived = assembled(Masked(3, SCHEMA, (cast(Vector, words),)), Expected(SCHEMA, "float64", length))
    assert arrived.round == 3 and arrived.vectors[0].dtype == np.uint32
    assert np.array_equal(arrived.vectors[0], words) and arrived.vectors[0].flags.writeable


@pytest.mark.parametrize(("length", "dtype"), [(100, "uint32"), (103, "uint32"), (104, "float32"), (104, "int32")])
def test_a_masked_model_of_another_size_is_refused_before_memory_is_taken(length: int, dtype: str) -> None:
    with pytest.raises(FrameError):
        assembled(Masked(0, SCHEMA, (np.zeros(length, dtype),)), Expected(SCHEMA, "float32", 100))


# --- all of them, under random schedules ------------------------------------------------------------------------------


class Used:
    """Notes every key that masks, and fails where one is used for a second time at one end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: dict[tuple[bytes, str], bytes] = {}
        monkeypatch.setattr(private_gossip, "masked", self)

    def __call__(self, whole: Words, added: Sequence[bytes], subtracted: Sequence[bytes]) -> Words:
        for sign, keys in (("+", added), ("-", subtracted)):
            for key in keys:
                assert (key, sign) not in self.keys, "a key masks a second vector"
                self.keys[key, sign] = hashlib.sha256(whole.tobytes()).digest()
        return masked(whole, added, subtracted)


def crowd(n: int, seed: int, rounds: int, **keys: Any) -> tuple[Hand, Vector]:
    mixing = build(resolve("regular:4", n, seed=seed), "metropolis")
    start = seeds.stream(seed, "start").uniform(-1, 1, n)
    limits = SyncSettings(rounds)
    machines = [
        PrivateGossip(i, mixing, vector(start[i]), SCHEMA, limits, GRID, SeededPairs(i, seed)) for i in range(n)
    ]
    return Hand(machines, [mixing.partners(i) for i in range(n)], seed, **keys), start


@pytest.mark.parametrize("seed", range(25))
def test_whatever_is_lost_a_peer_has_an_average_of_models_and_never_noise(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost, repeated, overtaken, links that break: every model stays between the least and the largest first one."""
    used = Used(monkeypatch)
    hand, start = crowd(8, seed, rounds=6, wild=600)
    hand.loss, hand.twice, hand.breaks = 0.15 * (seed % 3), 0.1, 0.01 * (seed % 2)
    hand.begin()
    hand.run()
    results = np.array([hand.results[node][0] for node in range(8)])
    assert start.min() - 1e-6 <= results.min() and results.max() <= start.max() + 1e-6
    assert used.keys
    if hand.reports["skipped_mix"] == 0:
        assert abs(results.mean() - start.mean()) < 1e-15


# --- in virtual time --------------------------------------------------------------------------------------------------


def private(graph: str = "regular:4", n: int | None = 16, **more: Any) -> dict[str, Any]:
    algorithm = {"private": True, "deadline": 1e5, **more.pop("algorithm", {})}
    return {"seed": 3, "rounds": 12, "topology": {"graph": graph, "n": n}, "algorithm": algorithm, **more}


AVERAGING = {"kind": "averaging", "dim": 40, "dtype": "float64"}
SMALL = {**AVERAGING, "dim": 5}
MODEL_RUN = {
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.5, "min_size": 10}},
    "model": {"source": "mlp:64-16-10"},
    "train": {"momentum": 0.9, "local_steps": 3, "device": "cpu"},
}


@pytest.mark.sockets
@pytest.mark.parametrize(("graph", "n"), [("regular:4", 8), ("barbell-5", 10), ("el-oracle:3", 8)])
def test_one_digest_in_the_simulator_on_stacked_arrays_and_over_sockets(graph: str, n: int) -> None:
    experiment = private(graph, n, rounds=4, **MODEL_RUN)
    expected = simulate(experiment, engine="stacked").digest
    for wild in ({}, {"jitter": 0.3, "training_jitter": 2.0, "speed_spread": 1.0}):
        assert simulate({**experiment, "simulation": wild}).digest == expected
    plan = compose.plan(load_experiment(experiment))
    task, _ = compose.task_of(plan.experiment, plan.n)
    vectors, rows = run_over_sockets(plan, task)
    assert digest(vectors) == expected
    assert not [row for row in rows if getattr(row, "name", "") == "skipped_mix"]


@pytest.mark.parametrize(("dtype", "drift"), [("float64", 1e-14), ("float32", 1e-6)])
def test_the_mean_is_kept_over_many_rounds(dtype: str, drift: float) -> None:
    """What one end of an edge gains the other loses, in whole numbers: only the vectors' own rounding is left."""
    task = {**AVERAGING, "dtype": dtype}
    begun = [compose.task_of(load_experiment(private(task=task)), 16)[0].initial(node) for node in range(16)]
    run = simulate(private(task=task, rounds=300), engine="stacked")
    ended = np.stack([cast(Vector, one) for one in run.vectors])
    assert np.abs(ended.mean(0, np.float64) - np.mean(begun, 0, np.float64)).max() < drift
    assert run.summary["consensus_distance"] < 1e-5


def test_private_and_plain_gossip_agree_to_the_integers_rounding() -> None:
    """Each of 2 d integers is off by half a unit in a round, and mixing amplifies nothing: R d units after R rounds."""
    plain = simulate(private(task=AVERAGING, algorithm={"private": False}))
    hidden = simulate(private(task=AVERAGING))
    for a, b in zip(plain.vectors, hidden.vectors, strict=True):
        assert np.abs(cast(Vector, a) - cast(Vector, b)).max() <= 12 * 4 * Grid(64.0).unit
    assert plain.digest != hidden.digest


def test_training_learns_as_well_as_in_clear() -> None:
    runs = [simulate(private(n=8, **MODEL_RUN, algorithm={"private": on})) for on in (True, False)]
    hidden, plain = (run.summary["score"]["averaged"] for run in runs)
    assert abs(hidden - plain) < 0.01 and plain > 0.7


TROUBLE = {
    "loss": [{"kind": "drop", "probability": 0.05}],
    "disorder": [{"kind": "reorder", "probability": 0.2, "seconds": 0.2}, {"kind": "duplicate", "probability": 0.2}],
    "crashes": [{"kind": "crash", "every": 0.1, "after": 0.12, "start": 0.1, "stop": 1.5}],
    "sleep": [{"kind": "sleep", "peers": [3], "start": 0.3, "seconds": 3.0}],
    "parted": [{"kind": "partition", "groups": [[0, 1, 2]], "start": 0.5, "stop": 3.0}],
    "gone": [{"kind": "crash", "peers": [3], "start": 0.5}],
}


@pytest.mark.parametrize("name", TROUBLE)
def test_in_trouble_no_key_masks_twice_and_no_model_is_noise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = Used(monkeypatch)
    what = private(n=8, rounds=30, task=SMALL, faults=TROUBLE[name], algorithm={"deadline": 2.0})
    begun = [compose.task_of(load_experiment(what), 8)[0].initial(node) for node in range(8)]
    run = simulate({**what, "simulation": {"jitter": 0.01}})
    there = [vector for vector in run.vectors if vector is not None]
    assert len(there) == 8 - (name == "gone") and len(used.keys) > 1000
    assert np.abs(there).max() <= np.abs(begun).max() + 1e-6
    assert run.summary["events"]["skipped_mix"] > 0
    assert "skipped_mix" in {getattr(row, "name", "") for row in run.rows}


def test_after_trouble_all_learn_together_again() -> None:
    """The last skipped mix is soon after the peers are back: nobody stays a round ahead or behind for good."""
    for name in ("crashes", "sleep", "parted"):
        soon = {"deadline": 2.0, "least_deadline": 0.2}
        run = simulate(private(n=8, rounds=80, task=SMALL, faults=TROUBLE[name], algorithm=soon))
        skipped = [row.round for row in run.rows if getattr(row, "name", "") == "skipped_mix"]
        assert skipped and max(skipped) < 65, name
        assert run.summary["consensus_distance"] < 1e-3, name


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "n", "more", "why"),
    [
        ("ring", 8, {}, "3 neighbours or more"),
        ("star", 8, {}, "nodes 1, 2, 3, 4, 5, ... have fewer"),
        ("base:1", 8, {}, "round 0"),
        ("random-matching", 8, {}, "3 neighbours or more"),
        ("directed-exponential", 16, {}, "directed"),
        ("el-local:4", 8, {}, "directed"),
        ("regular:4", 8, {"mode": "async"}, "async mode"),
        ("regular:4", 8, {"name": "push-sum"}, "push-sum"),
        ("window-doubling", 8, {"name": "window-doubling"}, "window-doubling"),
        ("regular:4", 8, {"bound": 0}, "bound"),
    ],
)
def test_what_cannot_be_private_is_refused_and_says_why(graph: str, n: int, more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        compose.plan(load_experiment(private(graph, n, algorithm=more)))


def test_weights_that_would_wrap_or_differ_between_the_ends_are_refused() -> None:
    lopsided = {"graph": "small-world:4,0.2", "n": 16, "weights": "best-constant"}
    with pytest.raises(ConfigError, match="weighs itself"):
        compose.plan(load_experiment({**private(), "topology": lopsided}))


def test_members_cannot_come_and_go() -> None:
    with pytest.raises(ConfigError, match="fixed neighbours"):
        check_open(compose.plan(load_experiment(private())))


def test_a_peer_without_keys_is_refused() -> None:
    plan = compose.plan(load_experiment(private()))
    with pytest.raises(ConfigError, match="no keys for its masks"):
        plan.machine(0, vector(1), SCHEMA)


def test_a_row_of_zeros_hides_nothing() -> None:
    """Four neighbours, one of which has no weight in the sum: three are left, and of three one is too few."""
    weights = np.full((4, 4), 0.25)
    weights[0, 1] = weights[1, 0] = 0.0
    weights[0, 0] = weights[1, 1] = 0.5
    schedule = Mixing.from_matrix(weights, resolve("complete", 4))
    with pytest.raises(ConfigError, match="nodes 0, 1 have fewer"):
        check_private(schedule, 1)
