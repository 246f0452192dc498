"""The sum is exact for whoever survives, whenever the others drop, or the session is abandoned with a reason.

Long form (`--long`): 10 000 drawn sessions instead of 1 000.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import product

import pytest
import secure_kit
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_kit import NEVER, Course, Room, drawn, numbers, plain_sum, run, upload

from fedgossip.base.errors import ProtocolError
from fedgossip.secure import frames
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.server import LANES, invite


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        secure_kit.quick(patch)
        yield


def outcome(room: Room, drops: dict[int, int]) -> Course | RoundAbandoned:
    try:
        return run(room, drops=drops)
    except RoundAbandoned as error:
        return error


# --- exactness --------------------------------------------------------------------------------------------------------


def check_drawn(n: int, length: int, drops: list[int], seed: int) -> None:
    """A session with drop-outs: the plain sum of the survivors in the ring, or too few; never another sum."""
    room = Room(n, numbers(length), seed=n)
    inputs = {v: drawn(room.fixed.words, seed, v) for v in range(n)}
    try:
        summed = run(room, drops=dict(enumerate(drops)), inputs=inputs).summed
    except RoundAbandoned as error:
        assert error.reason is Reason.TOO_FEW
        return
    assert summed is not None
    assert summed.survivors == tuple(v for v in range(n) if drops[v] > 2)
    assert (summed.total == plain_sum(inputs, summed.survivors)).all()


@st.composite
def sessions(draw: st.DrawFn) -> tuple[int, int, list[int], int]:
    n = draw(st.integers(3, 7))
    dropping = st.sampled_from([NEVER] * 8 + list(range(5)))
    drops = draw(st.lists(dropping, min_size=n, max_size=n))
    return n, draw(st.integers(1, 40)), drops, draw(st.integers(0, 2**32))


@settings(max_examples=1000, deadline=None)
@given(sessions())
def test_a_sum_is_the_plain_sum_or_no_sum(quick: None, session: tuple[int, int, list[int], int]) -> None:
    check_drawn(*session)


@pytest.mark.long
@pytest.mark.timeout(900)
@settings(max_examples=10_000, deadline=None)
@given(sessions())
def test_ten_thousand_sums_are_the_plain_sum_or_no_sum(quick: None, session: tuple[int, int, list[int], int]) -> None:
    check_drawn(*session)


# --- the matrix of drop-outs ------------------------------------------------------------------------------------------


def check_pattern(pattern: tuple[int, ...]) -> None:
    """Five clients, t = 4 of 5: exact if four answer to the end, too few if not; who sent a vector is in the sum."""
    found = outcome(Room(5), dict(enumerate(pattern)))
    if sum(stage == NEVER for stage in pattern) >= 4:
        assert isinstance(found, Course), f"{pattern}: {found}"
        assert found.summed is not None
        assert found.summed.survivors == tuple(v for v, stage in enumerate(pattern) if stage > 2)
        assert (found.summed.total == plain_sum(Room(5).inputs(), found.summed.survivors)).all(), pattern
        assert not found.client_aborts and not found.summed.culprits
    else:
        assert isinstance(found, RoundAbandoned) and found.reason is Reason.TOO_FEW, f"{pattern}: {found}"


PATTERNS = list(product(range(NEVER + 1), repeat=5))


@pytest.mark.long
def test_every_fifth_pattern_of_five_clients_ends_right(quick: None) -> None:
    """Five and the six stages have no common divisor: each stage of each client is met."""
    for pattern in PATTERNS[::5]:
        check_pattern(pattern)


@pytest.mark.long
def test_all_7776_patterns_of_five_clients_end_right(quick: None) -> None:
    assert len(PATTERNS) == 7776
    for pattern in PATTERNS:
        check_pattern(pattern)


@pytest.mark.parametrize("stage", range(5))
def test_a_third_may_drop_at_any_stage(quick: None, stage: int) -> None:
    room = Room(10)
    course = run(room, drops=dict.fromkeys((1, 4, 9), stage))
    assert course.summed is not None and not course.client_aborts
    assert len(course.summed.survivors) == (7 if stage <= 2 else 10)
    assert (course.summed.total == plain_sum(room.inputs(), course.summed.survivors)).all()


def test_with_real_signatures_the_sum_is_the_same() -> None:
    room = Room(5, members=9)
    course = run(room, room.proposal(cohort=[0, 1, 2, 3, 4]), drops={2: 2})
    assert course.summed is not None
    assert (course.summed.total == plain_sum(room.inputs(), (0, 1, 3, 4))).all()


# --- more clients -----------------------------------------------------------------------------------------------------


def test_above_64_clients_a_harary_graph_gives_the_exact_sum(quick: None) -> None:
    room = Room(80, k=30)
    d = room.proposal()
    assert (d.graph, d.k, d.t) == ("harary", 30, 21)
    course = run(room, d, drops={3: 0, 11: 1, 20: 2, 41: 3, 60: 4})
    assert course.summed is not None and not course.client_aborts
    assert len(course.summed.survivors) == 77
    assert (course.summed.total == plain_sum(room.inputs(), course.summed.survivors)).all()


def test_the_graph_is_complete_up_to_64_and_thinner_above() -> None:
    assert Room(64).proposal().graph == "complete"
    d = Room(100).proposal()
    assert d.graph == "harary" and d.k < 99 and d.t > 2 * (d.k + 1) / 3


def test_more_masks_than_streams_of_one_pass_cancel(quick: None) -> None:
    room = Room(70, k=69)
    course = run(room, drops={0: 2, 69: 2, 35: 4})
    assert course.summed is not None
    assert (course.summed.total == plain_sum(room.inputs(), course.summed.survivors)).all()


# --- many rounds ------------------------------------------------------------------------------------------------------


def test_each_round_has_fresh_keys_that_the_round_before_has_announced(quick: None) -> None:
    room = Room(5)
    seen: set[bytes] = set()
    before, ahead = None, {}
    for round in range(4):
        d = room.proposal(round, previous=before.sid if before else bytes(32))
        inputs = {v: drawn(room.fixed.words, round, v) for v in range(5)}
        course = run(room, d, drops={round: 4}, inputs=inputs, ahead=ahead, summed_before=before)
        assert course.summed is not None and not course.client_aborts
        assert (course.summed.total == plain_sum(inputs, course.summed.survivors)).all()
        asked = [v for v, step in course.advertised.items() if step.frame]
        assert asked == ([] if round else [0, 1, 2, 3, 4])  # from the second round on stage 0 costs no message
        keys = {key for k in course.server[1].session.keys.values() for key in (k.c_pk, k.s_pk, k.commitment)}
        assert len(keys) == 15 and not keys & seen
        seen |= keys
        before, ahead = course.summed, {v: masked.ahead for v, masked in course.masked.items()}


def test_keys_announced_for_another_session_are_not_used(quick: None) -> None:
    room = Room(5)
    first = run(room)
    assert first.summed is not None
    ahead = {v: masked.ahead for v, masked in first.masked.items()}
    second = run(room, room.proposal(1, previous=bytes([1]) * 32), inputs=drawn_for(room, 1), ahead=ahead)
    assert all(step.frame for step in second.advertised.values())
    assert all(keys.public is None for keys in ahead.values())  # erased
    assert second.summed is not None


def drawn_for(room: Room, round: int) -> dict[int, object]:
    return {v: drawn(room.fixed.words, round, v) for v in range(room.n)}  # type: ignore[return-value]


def test_a_newcomer_without_announced_keys_joins_beside_those_with(quick: None) -> None:
    room = Room(7, members=7)
    first = run(room, room.proposal(cohort=range(5)))
    assert first.summed is not None
    d = room.proposal(1, cohort=range(7), previous=first.summed.sid)
    ahead = {v: masked.ahead for v, masked in first.masked.items()}
    inputs = {v: drawn(room.fixed.words, 1, v) for v in range(7)}
    second = run(room, d, inputs=inputs, ahead=ahead, summed_before=first.summed)
    assert [v for v, step in second.advertised.items() if step.frame] == [5, 6]
    assert second.summed is not None
    assert (second.summed.total == plain_sum(inputs, range(7))).all()


# --- the coordinator's step objects -----------------------------------------------------------------------------------


def at_summing(room: Room) -> Course:
    """A session whose masked vectors are ready; the coordinator has taken none of them."""
    course, inputs = Course(), room.inputs()
    inviting = invite(room.roster, room.proposal(), room.fixed, secure_kit.signer(-1))
    for v, client in room.clients.items():
        course.advertised[v] = client.join(inviting.frame, secure_kit.MODEL)
        inviting.take(v, course.advertised[v].frame)
    distributing = inviting.close()
    for v, step in course.advertised.items():
        course.shared[v] = step.share(distributing.frame_for(v))
        distributing.take(v, course.shared[v].frame)
    summing = distributing.close()
    for v, shared in course.shared.items():
        course.masked[v] = shared.mask(summing.frame_for(v), inputs[v])
    course.server = [inviting, distributing, summing]
    return course


def test_memory_of_the_sum_does_not_grow_with_the_clients(quick: None) -> None:
    def peak(n: int) -> int:
        course = at_summing(Room(n, numbers(100_000), seed="memory"))
        summing = course.server[2]
        tracemalloc.start()
        for v, masked in course.masked.items():
            upload(summing, v, masked)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(12) < peak(4) + 100_000  # a vector has 400 000 bytes


def test_vectors_on_their_way_are_limited_and_may_begin_again(quick: None) -> None:
    course = at_summing(Room(6))
    summing = course.server[2]
    intakes = [summing.take(v, course.masked[v].frame) for v in range(LANES)]
    assert summing.full
    with pytest.raises(ProtocolError, match="on their way"):
        summing.take(LANES, course.masked[LANES].frame)
    upload(summing, 0, course.masked[0])  # again from its beginning
    with pytest.raises(ProtocolError, match="given up"):
        intakes[0].chunk(b"1234")
    assert summing.waiting == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("how", ["changed", "short", "longer", "empty"])
def test_a_vector_that_is_not_the_signed_one_is_not_added(quick: None, how: str) -> None:
    course = at_summing(Room(5))
    summing = course.server[2]
    whole = b"".join(course.masked[0].chunks())
    wrong = {"changed": whole[:-1] + b"?", "short": whole[:-4], "longer": whole + b"more", "empty": b""}[how]
    intake = summing.take(0, course.masked[0].frame)
    with pytest.raises(ProtocolError):
        intake.chunk(wrong)
        intake.done()
    assert not summing.full and 0 in summing.waiting
    assert not summing._total.any()
    upload(summing, 0, course.masked[0])
    with pytest.raises(ProtocolError, match="second"):
        summing.take(0, course.masked[0].frame)


def test_steps_of_the_coordinator_are_used_once_and_in_order(quick: None) -> None:
    room = Room(5)
    course = run(room)
    for step in course.server:
        with pytest.raises(ProtocolError, match="over"):
            step.close()
        with pytest.raises(ProtocolError, match="over"):
            step.take(0, course.advertised[0].frame)


def test_wrong_shares_at_the_end_are_named_and_the_sum_is_right(quick: None) -> None:
    room = Room(7)  # t = 5

    def lie(stage: str, client: int, frame: bytes) -> bytes:
        if stage != "reveal" or client != 2:
            return frame
        message = frames.from_client(frame, 2, secure_kit.public(2))
        assert isinstance(message, frames.Reveal)
        shares = tuple((v, alive, bytes(32)) for v, alive, _ in message.shares)
        return frames.pack(frames.Reveal(message.sid, shares), 2, secure_kit.signer(2))

    course = run(room, drops={6: 2}, up=lie)
    assert course.summed is not None
    assert {holder for _, holder in course.summed.culprits} == {2}
    assert (course.summed.total == plain_sum(room.inputs(), course.summed.survivors)).all()


def test_shares_that_give_no_secret_end_the_round_with_whose_it_is(quick: None) -> None:
    def lie(stage: str, client: int, frame: bytes) -> bytes:
        if stage != "reveal":
            return frame
        message = frames.from_client(frame, client, secure_kit.public(client))
        assert isinstance(message, frames.Reveal)
        shares = tuple((v, alive, bytes(32) if v == 3 else share) for v, alive, share in message.shares)
        return frames.pack(frames.Reveal(message.sid, shares), client, secure_kit.signer(client))

    with pytest.raises(RoundAbandoned) as caught:
        run(Room(5), up=lie)
    assert (caught.value.reason, caught.value.peer) == (Reason.SHARE_INVALID, 3)
