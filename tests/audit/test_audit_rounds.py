"""A transcript of a round can be verified without a secret; what does not fit is named, and no share is at rest."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from audit_kit import Kept, forged, kept
from forging import (
    gone,
    gone_outlines,
    instead,
    outline,
    outline_of,
    outlined,
    redescribed,
    resigned,
    said,
    whole,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from secure_kit import Room, drawn, public, roster_of, signer
from test_secure_frames import forms, recorded

from fedgossip.audit import transcript as transcript_module
from fedgossip.audit.entries import AuditError, Owner
from fedgossip.audit.log import AuditLog
from fedgossip.audit.records import KEPT, Announced, AnyRecord, Begun, Sealed, WholeFrame, packed, records
from fedgossip.audit.transcript import Transcript
from fedgossip.audit.verify import Verification, as_csv, as_json, verify_log
from fedgossip.audit.verify_round import coordinator_of, verify_transcript, verify_transcripts
from fedgossip.base.errors import NotWrittenError
from fedgossip.core.run_format import AUDIT_LOG
from fedgossip.net import endpoints
from fedgossip.net.identity import Identity
from fedgossip.secure import frames
from fedgossip.secure.session import Descriptor

N = 6
"""Clients; t = 5 of a share group of 6."""


def judged(found: Kept, path: Path | None = None) -> Verification:
    return verify_transcript(path or found.path, found.room.roster, public(-1))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A round of six clients of whom one drops after it has shared."""
    return kept(tmp_path_factory.mktemp("plain"), Room(N), drops={5: 2})


@pytest.mark.parametrize(
    ("role", "addressed", "found"),
    [
        ("leaf coordinator", {1, 2}, 1),
        ("leaf coordinator", set(), 1),
        ("leaf coordinator", {2}, 2),
        ("client", {1, 2}, 2),
    ],
)
def test_transcripts_are_those_of_the_log_beside_them_if_it_is_a_coordinator_s(
    role: str, addressed: set[int], found: int, tmp_path: Path
) -> None:
    """A client cannot pass for a coordinator where these have addresses; nobody has one in a run by folder."""
    keys = [Identity.new() for _ in range(3)]
    everybody = endpoints.roster_of(
        {node: endpoints.signed(key, "tcp://h:1" if node in addressed else "") for node, key in enumerate(keys)}
    )
    log = AuditLog(
        tmp_path / AUDIT_LOG, Owner(1, role, bytes.fromhex(keys[1].verify), "r", "v"), keys[1].sign_bytes, int
    )
    log.close()
    assert coordinator_of(tmp_path / "rounds", everybody).hex() == keys[found].verify
    assert coordinator_of(tmp_path / "none" / "rounds", everybody).hex() == keys[2].verify


# --- sound ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drops", [{}, {5: 0}, {5: 1}, {5: 2}, {5: 3}, {5: 4}])
def test_a_round_that_went_as_it_should_is_sound(tmp_path: Path, drops: dict[int, int]) -> None:
    found = kept(tmp_path, drops=drops)
    verdict = judged(found)
    assert verdict.sound, verdict.faults
    summed = found.course.summed
    assert summed is not None
    assert verdict.facts["sid"] == summed.sid.hex()
    assert verdict.facts["survivors"] == len(summed.survivors)
    assert verdict.facts["sum"] == hashlib.sha256(summed.total.tobytes()).hexdigest()
    stages = ["keys", "shares", "vector", "consent", "reveal"]
    assert verdict.facts["dropped"] == {stage: [v for v in drops if stages[drops[v]] == stage] for stage in stages}
    assert verdict.facts["file"] == hashlib.sha256(found.path.read_bytes()).hexdigest()


def test_a_round_on_a_harary_graph_is_sound(tmp_path: Path) -> None:
    found = kept(tmp_path, Room(66, k=12), drops={3: 0, 11: 1, 20: 2, 41: 3, 60: 4})
    verdict = judged(found)
    assert verdict.sound, verdict.faults
    assert (verdict.facts["graph"], verdict.facts["survivors"], verdict.facts["revealed"]) == ("harary", 63, 61)
    assert found.path.stat().st_size < 4096 * 66


def test_frames_that_are_said_again_are_no_second_ones(plain: Kept, tmp_path: Path) -> None:
    """A connection that breaks and comes back hears the same frame, which the file holds once."""
    path = tmp_path / plain.path.name
    path.write_bytes(plain.path.read_bytes())
    size = path.stat().st_size

    def again(found: list[AnyRecord]) -> list[AnyRecord]:
        return [*found, *(outline_of(record) if isinstance(record, WholeFrame) else record for record in found[1:])]

    assert judged(plain, forged(path, again)).sound
    assert path.stat().st_size < 1.8 * size


def test_a_round_that_was_given_up_is_sound_as_far_as_it_went(tmp_path: Path) -> None:
    for stage in range(5):
        folder = tmp_path / str(stage)
        folder.mkdir()
        verdict = judged(kept(folder, drops=dict.fromkeys((0, 1), stage)))
        assert verdict.sound, verdict.faults
        assert (verdict.facts["outcome"], verdict.facts["sum"]) == ("TOO_FEW", "")


def chain(folder: Path, rounds: int = 3) -> Room:
    """Rounds of which each brings the keys for the next; client 0 has dropped in the second and says its keys anew."""
    room, ahead, summed = Room(N), {}, None
    for number in range(rounds):
        previous = summed.sid if summed else bytes(32)
        inputs = {v: drawn(room.fixed.words, number, v) for v in range(N)}
        found = kept(
            folder, room, descriptor=room.proposal(number, previous=previous), inputs=inputs, ahead=ahead,
            summed_before=summed, drops={0: 2} if number == 1 else {},
        )  # fmt: skip
        summed = found.course.summed
        ahead = {v: step.ahead for v, step in found.course.masked.items()}
    return room


def test_rounds_whose_keys_were_announced_before_are_a_chain(tmp_path: Path) -> None:
    room = chain(tmp_path)
    verdicts = verify_transcripts(tmp_path / "rounds", room.roster, public(-1))
    assert [verdict.faults for verdict in verdicts] == [(), (), ()]
    assert [verdict.facts["keys announced"] for verdict in verdicts] == [0, N, N - 1]


def test_a_round_that_is_gone_or_was_written_again_is_missed_by_the_next(tmp_path: Path) -> None:
    room = chain(tmp_path)
    second = tmp_path / "rounds" / "000001.transcript"
    content = second.read_bytes()
    forged(second, lambda found: [*found, found[1]])  # a frame repeated: harmless, but another file
    verdicts = verify_transcripts(tmp_path / "rounds", room.roster, public(-1))
    assert [verdict.sound for verdict in verdicts] == [True, True, False]
    assert "does not follow 000001.transcript" in verdicts[2].faults[0].what
    second.unlink()
    assert "does not follow 000000" in verify_transcripts(second.parent, room.roster, public(-1))[1].faults[0].what
    second.write_bytes(content)
    (tmp_path / "rounds" / "000000.transcript").unlink()
    first, last = verify_transcripts(second.parent, room.roster, public(-1))
    assert first.sound and "is not here" in first.remarks[0] and last.sound


def test_keys_announced_in_a_session_that_is_not_here_are_named(tmp_path: Path) -> None:
    """The rounds before are there and a chain, but none of them is the one whose masked messages brought the keys."""
    for name in "ab":
        (tmp_path / name).mkdir()
    elsewhere = kept(tmp_path / "a", Room(N, seed="elsewhere"))
    kept(tmp_path / "b")
    summed = elsewhere.course.summed
    assert summed is not None
    room = elsewhere.room
    inputs = {v: drawn(room.fixed.words, "next", v) for v in range(N)}
    ahead = {v: step.ahead for v, step in elsewhere.course.masked.items()}
    kept(
        tmp_path / "b", room, descriptor=room.proposal(1, previous=summed.sid), inputs=inputs, ahead=ahead,
        summed_before=summed,
    )  # fmt: skip
    verdicts = verify_transcripts(tmp_path / "b" / "rounds", room.roster, public(-1))
    assert [verdict.sound for verdict in verdicts] == [True, False]
    assert "announced in a session that no file before it is of" in verdicts[1].faults[0].what


# --- forged -----------------------------------------------------------------------------------------------------------


def consent_of_another(found: list[AnyRecord]) -> list[AnyRecord]:
    place, _ = whole(found, frames.Consent, 2)
    return instead(found, place, structs.replace(found[whole(found, frames.Consent, 3)[0]], client=2))


def consent_to_other_survivors(found: list[AnyRecord]) -> list[AnyRecord]:
    """A client that signs, in good form, another list."""
    place, message = whole(found, frames.Consent, 2)
    content = frames.consent_content(message.sid, frames.hash_of_ids((0, 1, 2, 3)))
    return instead(found, place, said(frames.Consent(message.sid, signer(2)(content)), 2, by=2))


def two_lists(found: list[AnyRecord]) -> list[AnyRecord]:
    place, message = whole(found, frames.Survivors)
    return [*found[: place + 1], said(frames.Survivors(message.sid, (0, 1, 2, 3))), *found[place + 1 :]]


def own_keys(found: list[AnyRecord]) -> list[AnyRecord]:
    """The coordinator puts its key in the place of a client's, and the client signs the frame but not the keys."""
    place, message = whole(found, frames.Advertise, 1)
    keys = structs.replace(message.keys, s_pk=message.keys.c_pk[::-1])
    return instead(found, place, said(frames.Advertise(message.sid, keys), 1, by=1))


def keys_again(found: list[AnyRecord]) -> list[AnyRecord]:
    _, message = whole(found, frames.Advertise, 1)
    return [*found, Announced(structs.replace(message.keys, signature=bytes(64)))]


def other_keys(**fields: bytes) -> Callable[[list[AnyRecord]], list[AnyRecord]]:
    """Client 1 has signed other keys, in good form."""

    def change(found: list[AnyRecord]) -> list[AnyRecord]:
        place, message = whole(found, frames.Advertise, 1)
        return instead(found, place, said(frames.Advertise(message.sid, good(found, message.keys, fields)), 1, by=1))

    return change


def good(found: list[AnyRecord], keys: frames.Keys, fields: dict[str, bytes]) -> frames.Keys:
    d: Descriptor = whole(found, frames.SessionInvite)[1].descriptor
    unsigned = structs.replace(keys, **fields)
    return structs.replace(unsigned, signature=signer(1)(unsigned.content(d, d.round)))


def keys_of_another(found: list[AnyRecord]) -> list[AnyRecord]:
    """Client 1 says the keys of client 0 again, which are signed."""
    _, message = whole(found, frames.Advertise, 0)
    return instead(found, whole(found, frames.Advertise, 1)[0], said(message, 1, by=1))


def announced_now(found: list[AnyRecord]) -> list[AnyRecord]:
    """Keys of this session as if they were of the one before, which there is not."""
    place, message = whole(found, frames.Advertise, 1)
    return instead(found, place, Announced(message.keys))


def few_consents(found: list[AnyRecord]) -> list[AnyRecord]:
    """Client 2 was shown fewer consents than it takes, all good."""
    place, record = outline(found, "Consents", 2)
    consents = {v: whole(found, frames.Consent, v)[1] for v in record.ids[:3]}
    sid = next(iter(consents.values())).sid
    message = frames.Consents(sid, 2, tuple((v, consent.signature) for v, consent in consents.items()))
    return instead(found, place, structs.replace(outline_of(said(message, 2)), ids=tuple(consents)))


def both_kinds(found: list[AnyRecord]) -> list[AnyRecord]:
    _, record = outline(found, "Reveal", 2)
    return outlined(found, "Reveal", 2, ids=(0, *record.ids), alive=(False, *record.alive))


def share_kept(found: list[AnyRecord]) -> list[AnyRecord]:
    place, _ = outline(found, "Reveal", 2)
    _, message = whole(found, frames.Survivors)
    return instead(found, place, said(frames.Reveal(message.sid, ((0, True, bytes(32)),)), 2, by=2))


def shorter_vector(found: list[AnyRecord]) -> list[AnyRecord]:
    place, message = whole(found, frames.MaskedHeader, 2)
    return instead(found, place, said(structs.replace(message, length=6), 2, by=2))


def of_another_session(found: list[AnyRecord]) -> list[AnyRecord]:
    place, message = whole(found, frames.MaskedHeader, 2)
    return instead(found, place, said(structs.replace(message, sid=bytes(32)), 2, by=2))


def keys_ahead_unsigned(found: list[AnyRecord]) -> list[AnyRecord]:
    place, message = whole(found, frames.MaskedHeader, 2)
    ahead = structs.replace(message.ahead, signature=bytes(64))
    return instead(found, place, said(structs.replace(message, ahead=ahead), 2, by=2))


FORGERIES: dict[str, tuple[Callable[[list[AnyRecord]], list[AnyRecord]], str]] = {
    "a frame under another name": (consent_of_another, "client 2: a frame that it did not sign"),
    "a share outline under another name": (
        lambda found: outlined(found, "Shares", 2, client=3), "a Shares that client 3 did not sign"
    ),
    "a consent to another list": (consent_to_other_survivors, "client 2 consents to another list"),
    "two lists of survivors": (two_lists, "a second, different Survivors of the coordinator"),
    "another list of survivors": (
        lambda found: resigned(found, frames.Survivors, ids=(0, 1, 2, 3)), "client 0 consents to another list"
    ),
    "a survivor without a vector": (
        lambda found: resigned(found, frames.Survivors, ids=(0, 1, 2, 3, 4, 5)), "survivors 5 sent no vector"
    ),
    "too few survivors": (
        lambda found: resigned(found, frames.Survivors, ids=(0, 1)), "2 survivors; 3 are needed"
    ),
    "survivors out of order": (
        lambda found: resigned(found, frames.Survivors, ids=(1, 0, 2, 3, 4)), "not in ascending order"
    ),
    "the coordinator's keys for a client's": (own_keys, "keys that client 1 did not sign"),
    "both kinds of shares of one client": (both_kinds, "client 2 gave two shares of client 0"),
    "the wrong kind of share": (
        lambda found: outlined(found, "Reveal", 2, alive=(False, True, True, True, True, False)),
        "shares of 1-4; 0,5; by this list of survivors due were 0-4; 5",
    ),
    "a share too many": (
        lambda found: outlined(found, "Reveal", 2, alive=(True,) * 7), "client 2 gave shares of"
    ),
    "a share at rest": (share_kept, "its content does not belong here"),
    "a shorter vector": (shorter_vector, "client 2 masked 6 words, others 7"),
    "a vector of another session": (of_another_session, "a Masked of client 2 of another session"),
    "keys for the next round that nobody signed": (keys_ahead_unsigned, "client 2 did not sign"),
    "keys of small order": (other_keys(s_pk=bytes(32)), "twice, or is of small order"),
    "keys of another session": (other_keys(origin=bytes(32)), "keys of another client or session"),
    "keys of another client": (keys_of_another, "keys of another client or session, from client 1"),
    "keys as if announced": (announced_now, "that were not announced for this session"),
    "shares for others": (
        lambda found: outlined(found, "Shares", 2, ids=(0, 1, 2, 3, 4)), "client 2 sealed shares for 0, 1, 2, 3, 4"
    ),
    "shares of another length": (
        lambda found: outlined(found, "Shares", 2, size=479 + 1), "which its outline is not of"
    ),
    "a reveal of another length": (
        lambda found: outlined(found, "Reveal", 2, size=281 + 32), "a Reveal of 313 bytes"
    ),
    "too few consents shown": (few_consents, "client 2 was shown consents of 0, 1, 3; 4 others"),
    "survivors of another session": (
        lambda found: resigned(found, frames.Survivors, sid=bytes(32)), "survivors of another session"
    ),
    "a result of another session": (
        lambda found: resigned(found, frames.Result, sid=bytes(32)), "or of another session"
    ),
    "no keys of one": (gone(frames.Advertise, 1), "is not the keys of its neighbours"),
    "no shares of one": (gone_outlines("Shares", 1), "got seals of"),
    "no vector of one": (gone(frames.MaskedHeader, 1), "survivors 1 sent no vector"),
    "no list": (gone(frames.Survivors, None), "who is no survivor"),
    "no consent of one": (gone(frames.Consent, 1), "was shown consents of"),
    "no consents to one": (gone_outlines("Consents", 1), "a Reveal of client 1, who was shown no consents"),
    "too few reveals": (gone_outlines("Reveal", 1), "a result with 4 shares of client 0; 5 are needed"),
    "no result": (gone(frames.Result, None), "there is no result"),
    "a result of others": (
        lambda found: resigned(found, frames.Result, survivors=frames.hash_of_ids((0, 1, 2, 3))), "of other survivors"
    ),
    "two results": (
        lambda found: [*found, said(structs.replace(whole(found, frames.Result)[1], digest=bytes(32)))],
        "a second, different Result",
    ),
    "a threshold of one": (lambda found: redescribed(found, t=1), "threshold 1 of 6"),
    "another round": (lambda found: redescribed(found, round=9), "session 9 in the transcript of session 0"),
    "another model": (lambda found: redescribed(found, model_hash=bytes(32)), "of another session"),
    "nobody invited": (gone(frames.SessionInvite, None), "nobody was invited"),
    "another beginning": (lambda found: [*found, found[0]], "begins with its owner, once"),
    "no beginning": (lambda found: found[1:], "begins with its owner, once"),
    "a stranger": (lambda found: [*found, structs.replace(found[-1], client=77)], "client 77 is not in the roster"),
    "keys from nowhere": (keys_again, "keys of client 1 that are not those it sent"),
    "a message that is none": (lambda found: outlined(found, "Shares", 2, message="Secret"), "is no message"),
    "an outline in place of a frame": (
        lambda found: instead(found, at := whole(found, frames.MaskedHeader, 1)[0], outline_of(found[at])),
        "of a Masked only the outline is here",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_what_the_coordinator_forges_is_named(plain: Kept, tmp_path: Path, name: str) -> None:
    """It seals what it has written, with its own key."""
    change, what = FORGERIES[name]
    path = tmp_path / plain.path.name
    path.write_bytes(plain.path.read_bytes())
    verdict = judged(plain, forged(path, change))
    assert len(verdict.faults) == 1 and what in verdict.faults[0].what, verdict.faults


def test_without_a_change_the_forger_writes_the_same_file(plain: Kept, tmp_path: Path) -> None:
    path = tmp_path / plain.path.name
    path.write_bytes(plain.path.read_bytes())
    assert forged(path, lambda found: found).read_bytes() == plain.path.read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_others_change_is_found(plain: Kept, data: st.DataObject) -> None:
    content = bytearray(plain.path.read_bytes())
    at = data.draw(st.integers(len(transcript_module.MAGIC), len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path = plain.folder / "changed.transcript"
    path.write_bytes(content)
    assert not judged(plain, path).sound


def test_a_transcript_that_was_cut_is_not_sound(plain: Kept) -> None:
    path = plain.folder / "cut.transcript"
    sizes = itertools.accumulate(len(data) for _, data in records(plain.path))
    ends = [len(transcript_module.MAGIC) + size for size in sizes]
    for end in ends[:-1:3]:
        path.write_bytes(plain.path.read_bytes()[:end])
        assert "no end" in judged(plain, path).faults[0].what
        path.write_bytes(plain.path.read_bytes()[: end + 3])
        assert "cut short" in judged(plain, path).faults[0].what
    path.write_bytes(plain.path.read_bytes() + packed(next(records(plain.path))[0]))
    assert "something after the end" in judged(plain, path).faults[0].what


def test_a_transcript_is_of_one_roster_and_one_coordinator(plain: Kept) -> None:
    assert "another roster" in verify_transcript(plain.path, roster_of(7), public(-1)).faults[0].what
    assert "another coordinator" in verify_transcript(plain.path, plain.room.roster, public(0)).faults[0].what


def test_a_record_has_one_encoding(plain: Kept) -> None:
    """A map with its keys in another order says the same and is refused: it would have another hash."""
    (begun, data), *_ = records(plain.path)
    assert isinstance(begun, Begun)
    fields = msgspec.msgpack.decode(data[4:])
    other = msgspec.msgpack.encode(dict(reversed(fields.items())))
    path = plain.folder / "order.transcript"
    path.write_bytes(transcript_module.MAGIC + len(other).to_bytes(4, "little") + other)
    assert "not in the canonical form" in judged(plain, path).faults[0].what


# --- nothing secret, and files ----------------------------------------------------------------------------------------


def test_no_key_byte_is_in_a_transcript_a_log_or_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = recorded(monkeypatch)
    found = kept(tmp_path, Room(N, seed="audited"), drops={5: 2}, logged=range(N))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == N + 2 and len(secrets) > 190
    exports = [write(verify_log(path)) for path in files if path.suffix == ".jsonl" for write in (as_csv, as_json)]
    raw = b"\n".join(path.read_bytes() for path in files) + "\n".join(exports).encode()
    text = raw.decode("latin-1") + "\n".join(map(repr, (judged(found), *map(next, map(records, [found.path])))))
    assert not [secret for secret in secrets if secret[:16] in raw or any(form in text for form in forms(secret))]


def test_the_search_finds_a_share_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = recorded(monkeypatch)
    monkeypatch.setattr(transcript_module, "KEPT", (*KEPT, frames.Reveal))
    raw = kept(tmp_path, Room(N, seed="kept")).path.read_bytes()
    assert any(secret[:16] in raw for secret in secrets)


def test_a_round_is_written_once(plain: Kept) -> None:
    with pytest.raises(AuditError, match="a transcript of this session exists"):
        Transcript(plain.path.parent, 0, plain.room.roster, public(-1), signer(-1))


def test_a_full_disk_leaves_a_transcript_of_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(N)
    transcript = Transcript(tmp_path, 0, room.roster, public(-1), signer(-1))
    before = transcript.path.read_bytes()
    frame = frames.pack(frames.SessionInvite(room.proposal()), -1, signer(-1))
    monkeypatch.setattr(transcript_module, "TRANSCRIPT_BYTES_MAX", 300)
    with pytest.raises(NotWrittenError, match="longer than 300 bytes"):
        transcript.sent(None, frame)
    assert transcript.path.read_bytes() == before
    with pytest.raises(AuditError, match="closed"):
        transcript.sent(None, frame)


def test_a_sealed_transcript_takes_nothing_more(tmp_path: Path) -> None:
    room = Room(N)
    transcript = Transcript(tmp_path, 7, room.roster, public(-1), signer(-1))
    digest = transcript.close("TOO_FEW")
    assert hashlib.sha256(transcript.path.read_bytes()).digest() == digest
    assert [type(record) for record, _ in records(transcript.path)] == [Begun, Sealed]
    with pytest.raises(AuditError, match="closed"):
        transcript.close()
