"""A coordinator that attacks: honest clients abandon the session, each time, with the reason (docs/privacy/attacks.md).

The coordinator holds its own key and signs whatever it likes; where the story needs it, some clients are corrupt too.
After every attack all that honest clients have revealed is looked through: no client has given both shares of another,
and the shares of no client reach the threshold in both kinds.
"""

from __future__ import annotations

import copy
import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from secure_kit import MODEL, Course, Room, drawn, entropy_of, numbers, public, roster_of, run, signer

from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.secure import frames
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.client import Revealed, SecAggClient
from fedgossip.secure.primitives import Secret
from fedgossip.secure.secrets import SharePairs
from fedgossip.secure.server import invite
from fedgossip.secure.session import Descriptor, ParticipantRoster, Policy, model_hash, session_of
from fedgossip.secure.session_history import Past

VICTIM = 1
N = 6
"""Clients; t = 5 of a share group of 6."""


def down(message: frames.Frame) -> bytes:
    return frames.pack(message, frames.COORDINATOR, signer(-1))


def opened(frame: bytes) -> Any:
    return frames.from_coordinator(frame, public(-1))


def changed(frame: bytes, **fields: Any) -> bytes:
    """The coordinator's own frame with other fields, signed by it."""
    return down(structs.replace(opened(frame), **fields))


Attack = Callable[[bytes, Course], bytes]


def attacked(stage: str, attack: Attack, victims: tuple[int, ...] = (VICTIM,), **more: Any) -> tuple[Course, list[Any]]:
    """Run a session in which the frame of `stage` for the victims is the attacker's; return it, and all reveals."""
    room, course, reveals = more.pop("room", None) or Room(N), Course(), []

    def lie(at: str, client: int, frame: bytes) -> bytes:
        return attack(frame, course) if at == stage and client in victims else frame

    def listen(at: str, client: int, frame: bytes) -> bytes:
        if at == "reveal":
            reveals.append((client, frames.from_client(frame, client, public(client))))
        return frame

    try:
        run(room, down=lie, up=listen, course=course, **more)
    except RoundAbandoned:
        assert course.client_aborts
    nobody_is_unmasked(reveals, room.proposal().t)
    return course, reveals


def nobody_is_unmasked(reveals: list[tuple[int, Any]], t: int) -> None:
    given: dict[tuple[int, int], set[bool]] = defaultdict(set)
    for holder, message in reveals:
        for owner, alive, _ in message.shares:
            given[holder, owner].add(alive)
    assert all(len(kinds) == 1 for kinds in given.values())
    counts = Counter((owner, kind) for (_, owner), kinds in given.items() for kind in kinds)
    assert not any(counts[owner, True] >= t and counts[owner, False] >= t for _, owner in given)


# --- S0: the session that it proposes ---------------------------------------------------------------------------------


def other(**fields: Any) -> Callable[[Descriptor], Descriptor]:
    return lambda d: structs.replace(d, **fields)


PROPOSALS: dict[str, tuple[Callable[[Descriptor], Descriptor], Reason]] = {
    "a threshold of one": (other(t=1), Reason.POLICY),
    "a threshold of two thirds, not more": (other(t=4), Reason.POLICY),
    "a threshold that no group has": (other(t=7), Reason.POLICY),
    "a smaller minimum": (other(n_min=2), Reason.POLICY),
    "a cohort of one": (other(cohort=(VICTIM,), k=0, t=3), Reason.TOO_FEW),
    "a cohort of two": (other(cohort=(0, VICTIM), k=1, t=3), Reason.TOO_FEW),
    "a cohort from outside the roster": (other(cohort=(*range(N), 77), k=N), Reason.ROSTER),
    "a member twice": (other(cohort=(0, 1, 1, 2, 3, 4)), Reason.ROSTER),
    "a cohort out of order": (other(cohort=(1, 0, 2, 3, 4, 5)), Reason.ROSTER),
    "a cohort without the client": (other(cohort=(0, 2, 3, 4, 5), k=4), Reason.ROSTER),
    "a thin graph for few": (other(graph="harary", k=2, t=3), Reason.POLICY),
    "a graph that nobody knows": (other(graph="star"), Reason.POLICY),
    "fewer neighbours than all": (other(k=2, t=3), Reason.POLICY),
    "another roster": (other(roster_hash=bytes(32)), Reason.ROSTER),
    "a looser clip": (other(clip_l2=1e9), Reason.POLICY),
    "a clip that is not a number": (other(clip_inf=float("nan")), Reason.POLICY),
    "more bits": (other(q_bits=24), Reason.POLICY),
    "another weight": (other(weight_max=1), Reason.POLICY),
    "another layout": (other(schema_hash=bytes(32)), Reason.SCHEMA),
    "a model of its own for one client": (other(model_hash=model_hash(b"crafted")), Reason.MODEL_HASH),
    "a smaller ring": (other(ring_bits=16), Reason.POLICY),
    "another protocol": (other(proto="fedgossip/secagg/0"), Reason.POLICY),
    "another task": (other(task_id="other"), Reason.POLICY),
    "noise that nobody adds": (other(dp={"sigma": 1.0}), Reason.POLICY),
}


def test_a_client_below_one_of_several_coordinators_is_in_sums_of_its_own_company_alone() -> None:
    room = Room(N)
    room.policy = replace(room.policy, company=frozenset(range(N - 1)))
    client = SecAggClient(VICTIM, room.roster, room.policy, signer(VICTIM), entropy_of("victim"))
    with pytest.raises(RoundAbandoned, match=f"a cohort with {N - 1}, whose coordinator is another") as caught:
        client.join(down(frames.SessionInvite(room.proposal())), MODEL)
    assert caught.value.reason is Reason.ROSTER


@pytest.mark.parametrize("name", PROPOSALS)
def test_a_client_refuses(name: str) -> None:
    change, reason = PROPOSALS[name]
    room = Room(N)
    client = room.clients[VICTIM]
    crafted = change(room.proposal())
    if isinstance(crafted.dp, dict):
        crafted = structs.replace(crafted, dp=type(room.proposal().dp)(**crafted.dp))
    with pytest.raises(RoundAbandoned) as caught:
        client.join(down(frames.SessionInvite(crafted)), MODEL)
    assert caught.value.reason is reason
    client.join(down(frames.SessionInvite(room.proposal())), MODEL)  # nothing has changed


def test_a_round_is_joined_once_and_never_an_earlier_one() -> None:
    room = Room(N)
    client = room.clients[VICTIM]
    client.join(down(frames.SessionInvite(room.proposal(7))), MODEL)
    for round in (7, 6, 0):
        with pytest.raises(RoundAbandoned) as caught:
            client.join(down(frames.SessionInvite(room.proposal(round))), MODEL)
        assert caught.value.reason is Reason.REPLAY
    past = Past()
    past.joined(9)
    late = SecAggClient(VICTIM, room.roster, room.policy, signer(VICTIM), entropy_of("late"), past)
    with pytest.raises(RoundAbandoned):
        late.join(down(frames.SessionInvite(room.proposal(9))), MODEL)


@pytest.mark.parametrize(
    ("cohort", "joins"), [(range(6), True), (range(5), False), (range(7), False), (range(4), True)]
)
def test_a_cohort_that_differs_by_one_from_any_before_is_refused(cohort: range, joins: bool) -> None:
    """The difference of two sums would be one client's input; sessions between the two change nothing."""
    room = Room(N, members=8)
    client = room.clients[VICTIM]
    run(room)
    client.join(down(frames.SessionInvite(room.proposal(1, cohort=range(4)))), MODEL)  # in which it masks nothing
    invite = down(frames.SessionInvite(room.proposal(2, cohort=cohort)))
    if joins:
        client.join(invite, MODEL)
        return
    with pytest.raises(RoundAbandoned) as caught:
        client.join(invite, MODEL)
    assert caught.value.reason is Reason.POLICY


def test_a_client_masks_once_in_a_round_of_the_run() -> None:
    """A later life of the coordinator has another number for the session, and the same batches."""
    room = Room(N)
    run(room, room.proposal(session_of(0, 4)))
    client = room.clients[VICTIM]
    for life, round in ((1, 4), (1, 0), (7, 3)):
        with pytest.raises(RoundAbandoned) as caught:
            client.join(down(frames.SessionInvite(room.proposal(session_of(life, round)))), MODEL)
        assert caught.value.reason is Reason.REPLAY
    assert run(room, room.proposal(session_of(1, 5)), inputs=other_inputs(room)).summed is not None


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [((0, 4), (1, 4), Reason.REPLAY), ((0, 5), (1, 4), Reason.POLICY), ((0, 4), (1, 5), Reason.REPLAY)],
)
def test_of_two_sessions_that_are_open_at_once_one_is_masked_in(first: Any, second: Any, reason: Reason) -> None:
    """Joined before anything was masked in either: the steps themselves must not mask both."""
    room, course = Room(N), Course()
    with pytest.raises(RoundAbandoned):
        run(room, room.proposal(session_of(*first)), course=course, drops=dict.fromkeys(range(N), 2))
    later = Course()
    cohort = range(N - 1)
    run(room, room.proposal(session_of(*second), cohort=cohort), course=later, inputs=other_inputs(room))
    deliver, step = course.server[-1].frame_for(VICTIM), course.shared[VICTIM]
    with pytest.raises(RoundAbandoned) as caught:
        step.mask(deliver, drawn(room.fixed.words, "a third time"))
    assert caught.value.reason is reason


def other_inputs(room: Room) -> dict[int, Any]:
    return {v: drawn(room.fixed.words, "trained again", v) for v in range(N)}


def test_a_sum_that_would_wrap_is_refused() -> None:
    room = Room(N, numbers(q_bits=31))
    crafted = structs.replace(Room(N).proposal(), q_bits=31, schema_hash=room.fixed.schema)
    with pytest.raises(RoundAbandoned) as caught:
        room.clients[VICTIM].join(down(frames.SessionInvite(crafted)), MODEL)
    assert caught.value.reason is Reason.OVERFLOW


def test_a_policy_that_would_allow_too_little_cannot_be_written() -> None:
    for wrong in ({"n_min": 2}, {"n_min": 0}, {"cohort_max": 1001}, {"n_min": 5, "cohort_max": 4}):
        with pytest.raises(ConfigError):
            Policy(public(-1), "task", numbers(), **wrong)


def test_a_roster_whose_members_did_not_sign_is_none() -> None:
    good = roster_of(4).members
    for members in ((*good, replace(good[0], curve="c")), (*good[:3], replace(good[3], endpoint="elsewhere"))):
        with pytest.raises(RoundAbandoned) as caught:
            ParticipantRoster(members)
        assert caught.value.reason is Reason.ROSTER
    assert ParticipantRoster(good[:3]).hash != ParticipantRoster(good).hash != ParticipantRoster(good[::-1]).hash


def test_what_somebody_else_signed_changes_nothing() -> None:
    room = Room(N)
    client = room.clients[VICTIM]
    for sender, key in ((-1, 0), (0, 0), (0, -1)):
        with pytest.raises(ProtocolError):
            client.join(frames.pack(frames.SessionInvite(room.proposal()), sender, signer(key)), MODEL)
    assert client.past.session == -1


# --- S1: keys ---------------------------------------------------------------------------------------------------------


def keys_of(frame: bytes) -> dict[int, frames.Keys]:
    return {keys.client: keys for keys in opened(frame).keys}


def with_keys(frame: bytes, keys: Mapping[int, frames.Keys], **fields: Any) -> bytes:
    """The neighbourhood with these keys and their right hash."""
    found = dict(keys)
    return changed(frame, keys=tuple(found.values()), h1=frames.hash_of_keys(found), **fields)


def signed_keys(frame: bytes, client: int, **fields: Any) -> bytes:
    """Other keys of a corrupt client, signed by it."""
    keys = keys_of(frame)
    d = Room(N).proposal()
    unsigned = structs.replace(keys[client], **fields)
    keys[client] = structs.replace(unsigned, signature=signer(client)(unsigned.content(d, d.round)))
    return with_keys(frame, keys)


def keys_in_the_middle(frame: bytes, course: Course) -> bytes:
    keys = keys_of(frame)
    keys[2] = structs.replace(keys[2], c_pk=b"\x09" + bytes(31))
    return with_keys(frame, keys)


def mask_keys_in_the_middle(frame: bytes, course: Course) -> bytes:
    keys = keys_of(frame)
    keys[2] = structs.replace(keys[2], s_pk=b"\x09" + bytes(31), signature=signer(-1)(b"mine"))
    return with_keys(frame, keys)


def own_keys_of_before(frame: bytes, course: Course) -> bytes:
    return signed_keys(frame, VICTIM, c_pk=b"\x09" + bytes(31))


def without(frame: bytes, *gone: int) -> bytes:
    return with_keys(frame, {v: keys for v, keys in keys_of(frame).items() if v not in gone})


def one_key_for_two(frame: bytes, course: Course) -> bytes:
    return signed_keys(frame, 3, c_pk=keys_of(frame)[2].c_pk)


def a_client_twice(frame: bytes, course: Course) -> bytes:
    message = opened(frame)
    return changed(frame, keys=(*message.keys[:-1], message.keys[2]))


def a_stranger(frame: bytes, course: Course) -> bytes:
    keys = keys_of(frame)
    keys[40] = structs.replace(keys[5], client=40, c_pk=bytes([7]) * 32, s_pk=bytes([8]) * 32)
    return with_keys(frame, keys)


S1: dict[str, tuple[Attack, Reason]] = {
    "encryption keys in the middle": (keys_in_the_middle, Reason.SIG),
    "mask keys in the middle": (mask_keys_in_the_middle, Reason.SIG),
    "other keys in its own name": (own_keys_of_before, Reason.REPLAY),
    "without its own keys": (lambda frame, course: without(frame, VICTIM), Reason.ROSTER),
    "one key for two clients": (one_key_for_two, Reason.DUPKEY),
    "a client twice": (a_client_twice, Reason.DUPKEY),
    "one key for both uses": (lambda f, c: signed_keys(f, 3, c_pk=keys_of(f)[3].s_pk), Reason.DUPKEY),
    "an encryption key of small order": (lambda f, c: signed_keys(f, 3, c_pk=bytes(32)), Reason.DUPKEY),
    "a mask key of small order": (lambda f, c: signed_keys(f, 3, s_pk=(1).to_bytes(32, "little")), Reason.DUPKEY),
    "keys of another session": (lambda f, c: signed_keys(f, 3, origin=bytes([9]) * 32), Reason.REPLAY),
    "keys of no session": (lambda f, c: signed_keys(f, 3, origin=bytes(32)), Reason.REPLAY),
    "too few neighbours": (lambda f, c: without(f, 0, 2), Reason.TOO_FEW),
    "a neighbour from outside": (a_stranger, Reason.ROSTER),
    "a hash of other keys": (lambda f, c: changed(f, h1=bytes(32)), Reason.SIG),
}


@pytest.mark.parametrize("name", S1)
def test_a_client_does_not_share_with(name: str) -> None:
    attack, reason = S1[name]
    course, _ = attacked("neighbourhood", attack)
    assert course.client_aborts[VICTIM].reason is reason
    assert VICTIM not in course.shared


def test_clients_that_see_other_keys_are_in_no_session_together() -> None:
    """One client is not shown another's keys: its session is another one, and what it seals opens for nobody."""

    def passed_on(stage: str, client: int, frame: bytes) -> bytes:
        if stage != "shares" or client != VICTIM:
            return frame
        message: Any = frames.from_client(frame, client, public(client))
        shares = frames.Shares(course.server[-1].session.sid, (*message.sealed, (5, bytes(80))))
        return frames.pack(shares, client, signer(client))

    def left_out(stage: str, client: int, frame: bytes) -> bytes:
        return without(frame, 5) if stage == "neighbourhood" and client == VICTIM else frame

    course = Course()
    with pytest.raises(RoundAbandoned):
        run(Room(N), up=passed_on, down=left_out, course=course, drops={VICTIM: 2})
    aborts = {v: (error.reason, error.peer) for v, error in course.client_aborts.items()}
    assert aborts == {v: (Reason.AEAD, VICTIM) for v in range(N) if v != VICTIM}
    assert VICTIM not in course.masked


# --- S2: sealed shares ------------------------------------------------------------------------------------------------


def sealed_of(frame: bytes) -> dict[int, bytes]:
    return dict(opened(frame).sealed)


def with_sealed(frame: bytes, sealed: Mapping[int, bytes]) -> bytes:
    return changed(frame, sealed=tuple(sealed.items()))


def a_flipped_bit(frame: bytes, course: Course) -> bytes:
    sealed = sealed_of(frame)
    return with_sealed(frame, {**sealed, 3: bytes([sealed[3][0] ^ 1]) + sealed[3][1:]})


def swapped(frame: bytes, course: Course) -> bytes:
    sealed = sealed_of(frame)
    return with_sealed(frame, {**sealed, 2: sealed[3], 3: sealed[2]})


def reflected(frame: bytes, course: Course) -> bytes:
    """What the victim sealed for 3, back to it as of 3."""
    own = frames.from_client(course.shared[VICTIM].frame, VICTIM, public(VICTIM))
    return with_sealed(frame, {**sealed_of(frame), 3: dict(own.sealed)[3]})  # type: ignore[union-attr]


def for_somebody_else(frame: bytes, course: Course) -> bytes:
    theirs = frames.from_client(course.shared[3].frame, 3, public(3))
    return with_sealed(frame, {**sealed_of(frame), 3: dict(theirs.sealed)[2]})  # type: ignore[union-attr]


def shares_twice(frame: bytes, course: Course) -> bytes:
    message = opened(frame)
    return changed(frame, sealed=(*message.sealed, message.sealed[0]))


S2: dict[str, tuple[Attack, Reason]] = {
    "a flipped bit": (a_flipped_bit, Reason.AEAD),
    "two senders exchanged": (swapped, Reason.AEAD),
    "its own seal, reflected": (reflected, Reason.AEAD),
    "a seal for somebody else": (for_somebody_else, Reason.AEAD),
    "zeros": (lambda f, c: with_sealed(f, {**sealed_of(f), 3: bytes(80)}), Reason.AEAD),
    "a sender twice": (shares_twice, Reason.TWICE),
    "shares in its own name": (lambda f, c: with_sealed(f, {**sealed_of(f), VICTIM: bytes(80)}), Reason.ROSTER),
    "shares of a stranger": (lambda f, c: with_sealed(f, {**sealed_of(f), 40: bytes(80)}), Reason.ROSTER),
    "too few shares": (lambda f, c: with_sealed(f, {0: sealed_of(f)[0]}), Reason.TOO_FEW),
    "no shares": (lambda f, c: with_sealed(f, {}), Reason.TOO_FEW),
}


@pytest.mark.parametrize("name", S2)
def test_a_client_masks_nothing_for(name: str) -> None:
    attack, reason = S2[name]
    course, _ = attacked("delivery", attack)
    assert course.client_aborts[VICTIM].reason is reason
    assert VICTIM not in course.masked
    if reason is Reason.AEAD:
        assert course.client_aborts[VICTIM].peer in (2, 3)


# --- S3: survivors ----------------------------------------------------------------------------------------------------

S3: dict[str, tuple[Attack, Reason]] = {
    "lists that leave it out": (lambda f, c: changed(f, ids=(0, 2, 3, 4, 5)), Reason.INCONSISTENT_U3),
    "lists of one": (lambda f, c: changed(f, ids=(VICTIM,)), Reason.TOO_FEW),
    "lists below the minimum": (lambda f, c: changed(f, ids=(VICTIM, 2)), Reason.TOO_FEW),
    "lists below the threshold": (lambda f, c: changed(f, ids=(VICTIM, 2, 3, 4)), Reason.TOO_FEW),
    "lists with a stranger": (lambda f, c: changed(f, ids=(*range(N), 40)), Reason.ROSTER),
    "lists out of order": (lambda f, c: changed(f, ids=(1, 0, 2, 3, 4, 5)), Reason.INCONSISTENT_U3),
    "lists with one twice": (lambda f, c: changed(f, ids=(0, 1, 1, 2, 3, 4, 5)), Reason.INCONSISTENT_U3),
}


@pytest.mark.parametrize("name", S3)
def test_a_client_does_not_sign(name: str) -> None:
    attack, reason = S3[name]
    course, reveals = attacked("survivors", attack)
    assert course.client_aborts[VICTIM].reason is reason
    assert VICTIM not in course.consented and VICTIM not in dict(reveals)


def test_a_client_counts_the_survivors_also_where_the_threshold_would_do() -> None:
    room = Room(N, n_min=6)  # t = 5
    course, reveals = attacked("survivors", lambda f, c: changed(f, ids=(0, 1, 2, 3, 4)), room=room)
    abort = course.client_aborts[VICTIM]
    assert (abort.reason, abort.have, abort.need) == (Reason.TOO_FEW, 5, 6)
    assert VICTIM not in dict(reveals)


def test_an_honest_coordinator_counts_them_too() -> None:
    with pytest.raises(RoundAbandoned) as caught:
        run(Room(N, n_min=6), drops={5: 2})
    assert (caught.value.reason, caught.value.have, caught.value.need) == (Reason.TOO_FEW, 5, 6)
    course = run(Room(N, n_min=6), drops={5: 3})  # who has sent its vector counts, though it is gone
    assert course.summed is not None and len(course.summed.survivors) == N


def test_who_never_shared_does_not_survive() -> None:
    course, _ = attacked("survivors", lambda f, c: changed(f, ids=tuple(range(N))), drops={5: 1})
    assert course.client_aborts[VICTIM].reason is Reason.INCONSISTENT_U3


def test_a_second_list_ends_the_session_of_who_signed_the_first() -> None:
    course, reveals = attacked("consents", lambda f, c: changed_survivors(c, (0, 1, 2, 3, 4)))
    assert course.client_aborts[VICTIM].reason is Reason.INCONSISTENT_U3
    assert VICTIM not in dict(reveals)


def changed_survivors(course: Course, ids: tuple[int, ...]) -> bytes:
    return down(frames.Survivors(course.server[-1].session.sid, ids))


def test_a_split_view_gets_nothing_even_with_a_third_corrupt() -> None:
    """Nine clients, three of them corrupt and signing everything; half the honest hear that 0 survives, half that it
    does not.  No list gets the seven signatures that a reply takes.
    """
    room, course, reveals = Room(9), Course(), []
    corrupt, told_alive = {6, 7, 8}, {0, 1, 2}
    lists = {True: tuple(range(9)), False: tuple(range(1, 9))}

    def lie(stage: str, client: int, frame: bytes) -> bytes:
        if stage == "survivors":
            return changed(frame, ids=lists[client in told_alive])
        if stage != "consents" or client in corrupt:
            return frame
        sid, ids = opened(frame).sid, lists[client in told_alive]
        honest = {v for v in range(6) if (v in told_alive) == (client in told_alive)} - {client}
        content = frames.consent_content(sid, frames.hash_of_ids(ids))
        return changed(frame, signatures=tuple((v, signer(v)(content)) for v in sorted(honest | corrupt)))

    def sign_for_all(stage: str, client: int, frame: bytes) -> bytes:
        """The coordinator takes any signature: its own server must not mind."""
        if stage == "consent":
            content = frames.consent_content(course.server[-1].session.sid, frames.hash_of_ids(tuple(range(9))))
            return frames.pack(
                frames.Consent(course.server[-1].session.sid, signer(client)(content)), client, signer(client)
            )
        if stage == "reveal":
            reveals.append((client, frames.from_client(frame, client, public(client))))
        return frame

    with pytest.raises(RoundAbandoned):
        run(room, down=lie, up=sign_for_all, course=course)
    assert {v: course.client_aborts[v].reason for v in range(6)} == dict.fromkeys(range(6), Reason.TOO_FEW)
    assert not {v for v, _ in reveals} & set(range(6))


# --- S4: reveals ------------------------------------------------------------------------------------------------------


def signatures_of(frame: bytes) -> tuple[tuple[int, bytes], ...]:
    return opened(frame).signatures  # type: ignore[no-any-return]


def of_another_session(frame: bytes, course: Course) -> bytes:
    content = frames.consent_content(bytes(32), frames.hash_of_ids(tuple(range(N))))
    return changed(frame, signatures=tuple((v, signer(v)(content)) for v, _ in signatures_of(frame)))


def forged(frame: bytes, course: Course) -> bytes:
    (first, _), *rest = signatures_of(frame)
    return changed(frame, signatures=((first, bytes(64)), *rest))


def exchanged(frame: bytes, course: Course) -> bytes:
    (a, x), (b, y), *rest = signatures_of(frame)
    return changed(frame, signatures=((a, y), (b, x), *rest))


S4: dict[str, tuple[Attack, Reason]] = {
    "too few signatures": (lambda f, c: changed(f, signatures=signatures_of(f)[:-1]), Reason.TOO_FEW),
    "no signatures": (lambda f, c: changed(f, signatures=()), Reason.TOO_FEW),
    "one signature many times": (lambda f, c: changed(f, signatures=signatures_of(f)[:1] * 5), Reason.TWICE),
    "a forged signature": (forged, Reason.SIG),
    "signatures in each other's name": (exchanged, Reason.SIG),
    "signatures of another session": (of_another_session, Reason.SIG),
    "its own signature as another's": (
        lambda f, c: changed(f, signatures=(*signatures_of(f), (VICTIM, bytes(64)))),
        Reason.ROSTER,
    ),
    "a stranger's signature": (lambda f, c: changed(f, signatures=((40, bytes(64)),)), Reason.ROSTER),
}


@pytest.mark.parametrize("name", S4)
def test_a_client_reveals_nothing_for(name: str) -> None:
    attack, reason = S4[name]
    course, reveals = attacked("consents", attack)
    assert course.client_aborts[VICTIM].reason is reason
    assert VICTIM not in dict(reveals)


def test_who_dropped_does_not_sign() -> None:
    def with_the_dead(frame: bytes, course: Course) -> bytes:
        return changed(frame, signatures=(*signatures_of(frame), (5, bytes(64))))

    course, _ = attacked("consents", with_the_dead, drops={5: 2})
    assert course.client_aborts[VICTIM].reason is Reason.ROSTER


def test_a_client_reveals_once() -> None:
    course = run(Room(N))
    again = changed(course.server[-1].frame_for(VICTIM), signatures=())
    with pytest.raises(RoundAbandoned) as caught:
        course.consented[VICTIM].reveal(again)
    assert caught.value.reason is Reason.TWICE


def test_no_call_gives_both_shares_of_one_client() -> None:
    for first, second in (({4}, set()), (set(), {4}), ({4}, {4})):
        pairs = SharePairs((7, 4), (b"K" * 32 + b"B" * 32, b"k" * 32 + b"b" * 32))
        assert pairs.give(first) == ((4, True, b"b" * 32) if first else (4, False, b"k" * 32), (7, False, b"K" * 32))
        with pytest.raises(ValueError, match="erased"):
            pairs.give(second)


# --- steps, inputs, results -------------------------------------------------------------------------------------------


def test_every_step_is_used_once_and_cannot_be_copied() -> None:
    course = run(Room(N))
    frame = down(frames.Survivors(bytes(32), ()))
    words = course.summed.total if course.summed else None
    uses: list[Callable[[], Any]] = [
        lambda: course.advertised[VICTIM].share(frame),
        lambda: course.shared[VICTIM].mask(frame, drawn(7)),
        lambda: course.masked[VICTIM].consent(frame),
        lambda: course.consented[VICTIM].reveal(frame),
        lambda: course.revealed[VICTIM].finish(frame, words),  # type: ignore[arg-type]
    ]
    for use in uses:
        with pytest.raises(RoundAbandoned) as caught:
            use()
        assert caught.value.reason is Reason.TWICE
    for steps in (course.advertised, course.shared, course.masked, course.consented, course.revealed, course.server):
        step = steps[VICTIM]  # type: ignore[index]
        for escape in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                escape(step)


def test_a_step_given_up_is_erased_and_of_no_more_use() -> None:
    room, course = Room(N), Course()
    run(room, course=course, drops={VICTIM: 1})
    step = course.advertised[VICTIM]
    held = step._held
    assert step.abandon().reason is Reason.DEADLINE
    assert held.c.erased and held.s.erased and held.b.erased
    with pytest.raises(RoundAbandoned):
        step.share(course.server[1].frame_for(VICTIM))


@pytest.mark.parametrize("stage", ["neighbourhood", "delivery", "survivors", "consents"])
def test_an_aborted_session_leaves_no_secret(stage: str) -> None:
    attack = {"neighbourhood": S1["a hash of other keys"], "delivery": S2["zeros"], "survivors": S3["lists of one"]}
    course, _ = attacked(stage, attack.get(stage, S4["a forged signature"])[0])
    steps: dict[str, Any] = {
        "neighbourhood": course.advertised, "delivery": course.shared, "survivors": course.masked,
        "consents": course.consented,
    }  # fmt: skip
    assert not list(live_secrets(steps[stage][VICTIM]._held))


SIGNED = ("its keys", "their frame", "shares", "the next keys", "the masked vector", "survivors", "consent", "reveal")
"""What a client signs in a session, in this order."""


@pytest.mark.parametrize("fails", SIGNED)
def test_a_signature_that_fails_leaves_no_secret(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those either that the step has drawn and that nobody holds yet: an agent of keys may be gone at any time."""
    room, made, acting, signed = Room(N), list[Secret](), [False], list[bytes]()
    plain = Secret.__init__

    def noted(self: Secret, value: bytes) -> None:
        plain(self, value)
        made.extend([self] * acting[0])

    def sign(data: bytes) -> bytes:
        signed.append(data)
        if len(signed) > SIGNED.index(fails):
            raise OSError("the agent is gone")
        return signer(VICTIM)(data)

    def acts(_stage: str, client: int, frame: bytes) -> bytes:
        acting[0] = client == VICTIM
        return frame

    monkeypatch.setattr(Secret, "__init__", noted)
    room.clients[VICTIM] = SecAggClient(VICTIM, room.roster, room.policy, sign, entropy_of("victim"))
    with pytest.raises(OSError, match="agent"):
        run(room, down=acts)
    later = {*SIGNED[5:]}  # the keys for the next round are with whoever drives the client by then
    left = [secret for secret in made if not secret.erased]
    assert made and len(left) == (3 if fails in later else 0)


def live_secrets(held: Any) -> Any:
    """Every secret below `held` that is not erased."""
    if isinstance(held, Secret):
        if not held.erased:
            yield held
    elif isinstance(held, dict):
        for value in held.values():
            yield from live_secrets(value)
    elif hasattr(held, "__slots__"):
        for name in held.__slots__:
            yield from live_secrets(getattr(held, name))


def test_a_finished_session_leaves_no_secret_but_the_next_keys() -> None:
    course = run(Room(N), drops={5: 2})
    for steps in (course.advertised, course.shared, course.masked, course.consented, course.revealed):
        for v, step in steps.items():
            assert v == 5 or not list(live_secrets(step._held))


def test_an_input_without_a_result_is_summed_for_the_same_survivors_alone() -> None:
    """All have consented, two have not revealed: the coordinator claims to have no sum, and may have one."""
    room = Room(N)
    inputs = room.inputs()
    with pytest.raises(RoundAbandoned):
        run(room, drops={0: 4, 2: 4}, inputs=inputs)
    for round, gone in ((1, VICTIM), (2, 0)):
        course = Course()
        with pytest.raises(RoundAbandoned):
            run(room, room.proposal(round), drops={gone: 2}, inputs=inputs, course=course)
        assert {error.reason for error in course.client_aborts.values()} == {Reason.TWICE}
        assert len(course.client_aborts) == N - 1
    assert run(room, room.proposal(3), inputs=inputs).summed is not None, "the same clients: the same sum"
    assert run(room, room.proposal(4), drops={0: 2}, inputs=inputs).summed is not None  # that session had a result


def test_an_input_that_nobody_consented_to_sum_may_be_masked_again_with_any_survivors() -> None:
    room = Room(N)
    inputs = room.inputs()
    with pytest.raises(RoundAbandoned):
        run(room, drops=dict.fromkeys(range(N), 3), inputs=inputs)
    assert run(room, room.proposal(1), drops={0: 2}, inputs=inputs).summed is not None


def test_one_client_that_has_consented_is_in_every_two_sums_that_differ_by_one() -> None:
    """As few as a sum takes consent to the first one, and the second one, without the victim, lacks them."""
    room = Room(N)
    inputs, t = room.inputs(), room.proposal().t
    victim = N - 1
    first, second = Course(), Course()
    with pytest.raises(RoundAbandoned):
        run(room, drops=dict.fromkeys(range(t, N), 3) | {0: 4}, inputs=inputs, course=first)
    assert len(first.consented) == t
    with pytest.raises(RoundAbandoned):
        run(room, room.proposal(1), drops={victim: 2}, inputs=inputs, course=second)
    assert {error.reason for error in second.client_aborts.values()} == {Reason.TWICE}
    assert set(second.client_aborts) == set(range(t)) and len(second.consented) == N - 1 - t < t


def test_rounding_again_does_not_make_another_input() -> None:
    fixed = numbers(100)
    one, two = (fixed.encode(np.full(100, 0.1), 3, {}, entropy_of(i)) for i in range(2))
    assert one.fingerprint == two.fingerprint and (one.values != two.values).any()


@pytest.mark.parametrize("values", [np.zeros(6, np.uint32), np.zeros(8, np.uint32), np.zeros(7, np.int32)])
def test_words_of_another_length_or_type_are_not_masked(values: Any) -> None:
    room = Room(N)
    inputs = {**room.inputs(), VICTIM: replace(drawn(7), values=values)}
    course = run(room, inputs=inputs)
    assert course.client_aborts[VICTIM].reason is Reason.SCHEMA
    assert course.summed is not None and VICTIM not in course.summed.survivors


@pytest.mark.parametrize("how", ["words", "survivors", "length"])
def test_a_result_that_is_not_the_agreed_sum_is_refused(how: str) -> None:
    finish = Revealed.finish
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Revealed, "finish", lambda self, frame, words: words)
        course = run(Room(N))
    assert course.summed is not None
    words, frame = course.summed.total, course.summed.frame
    lies = {
        "words": (frame, words + np.uint32(1), Reason.SCHEMA),
        "survivors": (changed(frame, survivors=bytes(32)), words, Reason.INCONSISTENT_U3),
        "length": (frame, words[:-1], Reason.SCHEMA),
    }
    with pytest.raises(RoundAbandoned) as caught:
        finish(course.revealed[VICTIM], *lies[how][:2])
    assert caught.value.reason is lies[how][2]


# --- what an honest coordinator refuses -------------------------------------------------------------------------------


def test_an_honest_coordinator_opens_no_session_that_clients_would_refuse() -> None:
    room = Room(N)
    for change in (other(t=1), other(k=2), other(roster_hash=bytes(32)), other(cohort=(0, 1))):
        with pytest.raises(RoundAbandoned):
            invite(room.roster, change(room.proposal()), room.fixed, signer(-1))


@pytest.mark.parametrize("field", ["c_pk", "s_pk"])
@pytest.mark.parametrize("key", [bytes(32), (1).to_bytes(32, "little")])
def test_an_honest_coordinator_takes_no_key_of_small_order(field: str, key: bytes) -> None:
    def weak(stage: str, client: int, frame: bytes) -> bytes:
        if stage != "keys" or client != VICTIM:
            return frame
        message: Any = frames.from_client(frame, client, public(client))
        d = Room(N).proposal()
        unsigned = structs.replace(message.keys, **{field: key})
        keys = structs.replace(unsigned, signature=signer(client)(unsigned.content(d, d.round)))
        return frames.pack(frames.Advertise(message.sid, keys), client, signer(client))

    with pytest.raises(ProtocolError, match="small order"):
        run(Room(N), up=weak)
