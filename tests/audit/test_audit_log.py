"""A log is as it was written, or what was changed is named; it goes on after a crash, and only for its owner."""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from audit_kit import START_NS, log_of, owner, ticking
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_kit import public, signer

from fedgossip.audit import log as log_module
from fedgossip.audit.entries import ENTRY_BYTES_MAX, AuditError, LogEntry, entries, moment, stamp, written
from fedgossip.audit.log import AuditLog, read
from fedgossip.audit.verify import Verification, verify_log
from fedgossip.base.errors import NotWrittenError
from fedgossip.core.run_format import AUDIT_LOG

LINES = 9
"""Of the log that is tampered with: opened, seven entries, closed."""


@lru_cache
def plain() -> bytes:
    """A sound log of client 3."""
    with tempfile.TemporaryDirectory() as folder:
        with log_of(Path(folder), 3) as log:
            for round in range(LINES - 2):
                log.append("sent", {"round": round, "message": "Shares", "to": 6, "bytes": 100 * round})
        return (Path(folder) / AUDIT_LOG).read_bytes()


def judged(content: bytes, folder: Path, key: int | None = 3, head: str | None = None) -> Verification:
    path = folder / AUDIT_LOG
    path.write_bytes(content)
    return verify_log(path, None if key is None else public(key), head)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


def kinds(path: Path) -> list[str]:
    return [entry.kind for entry in entries(path)]


# --- as it was written ------------------------------------------------------------------------------------------------


def test_a_log_says_whose_it_is_and_what_left_in_order(tmp_path: Path) -> None:
    with log_of(tmp_path, 3) as log:
        log.append("sent", {"to": 6, "bytes": 10, "share": 0.5, "last": True, "message": "Grüße"})
    first, second, last = entries(tmp_path / AUDIT_LOG)
    assert (first.kind, first.facts["participant"], first.facts["key"]) == ("opened", 3, public(3).hex())
    assert (first.facts["run"], first.facts["version"]) == ("run of the test", "0.1.0")
    assert second.facts == {"to": 6, "bytes": 10, "share": 0.5, "last": True, "message": "Grüße"}
    assert (second.number, second.time, last.kind) == (1, "2026-03-01T08:00:00.250Z", "closed")
    assert second.previous == first.hash and last.previous == second.hash


def test_only_the_owner_can_read_a_log(tmp_path: Path) -> None:
    log_of(tmp_path, 3).close()
    assert stat.S_IMODE((tmp_path / AUDIT_LOG).stat().st_mode) == 0o600


def test_a_sound_log_is_found_sound(room: Path) -> None:
    verdict = judged(plain(), room)
    assert verdict.sound and not verdict.remarks
    assert verdict.facts["entries"] == LINES and verdict.facts["kinds"] == {"closed": 1, "opened": 1, "sent": 7}
    assert verdict.facts["bytes"] == {"sent": sum(100 * round for round in range(7))}


def test_an_entry_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    log = log_of(tmp_path, 3)
    name = log.append("sent", {"to": 6})
    assert [entry.hash for entry in entries(tmp_path / AUDIT_LOG)][-1] == name == log.head
    log.close()


def test_a_synced_log_reaches_the_disk_with_every_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(log_module.os, "fsync", synced.append)
    with AuditLog(tmp_path / AUDIT_LOG, owner(3), signer(3), ticking()) as log:
        before = len(synced)
        log.append("sent", {})
        assert len(synced) == before + 1


@given(st.integers(0, 4_000_000_000_000))
def test_a_time_is_read_as_it_was_written(ms: int) -> None:
    assert moment(stamp(ms * 1_000_000 + 999_999)) == ms


# --- tampered with ----------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(plain()) - 1), st.integers(1, 255))
def test_any_changed_byte_is_found_in_its_line(room: Path, at: int, flip: int) -> None:
    content = bytearray(plain())
    content[at] ^= flip
    verdict = judged(bytes(content), room)
    assert not verdict.sound
    assert verdict.faults[0].place == plain()[:at].count(b"\n") + 1


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, LINES - 2), min_size=1, max_size=3))
def test_lines_cut_out_are_missed_where_they_were(room: Path, cut: set[int]) -> None:
    lines = plain().splitlines(keepends=True)
    verdict = judged(b"".join(line for place, line in enumerate(lines) if place not in cut), room)
    after = next(place for place in range(min(cut), LINES) if place not in cut)
    assert verdict.faults[0].place == after - sum(one < after for one in cut) + 1
    if 0 not in cut:
        assert f"before entry {after}" in verdict.faults[0].what


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, LINES - 1), min_size=2, max_size=2, unique=True))
def test_lines_that_changed_places_are_found(room: Path, places: list[int]) -> None:
    lines = plain().splitlines(keepends=True)
    first, second = sorted(places)
    lines[first], lines[second] = lines[second], lines[first]
    verdict = judged(b"".join(lines), room)
    assert verdict.faults[0].place == first + 1
    assert any("moved from its place" in fault.what for fault in verdict.faults)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, LINES - 1), st.integers(1, LINES))
def test_a_line_that_is_there_twice_is_named(room: Path, which: int, at: int) -> None:
    lines = plain().splitlines(keepends=True)
    lines.insert(at, lines[which])
    verdict = judged(b"".join(lines), room)
    if at >= which:
        at = max(at, which + 1)  # beside itself: the second is the copy
        assert [fault.place for fault in verdict.faults] == [at + 1]
        assert f"line {which + 1}, entry {which}, once more" in verdict.faults[0].what
    else:  # the copy stands before: then what it is a copy of comes once more
        assert verdict.faults[0].place == at + 1 and not verdict.sound


@settings(max_examples=50, deadline=None)
@given(st.integers(1, LINES))
def test_a_line_put_in_by_somebody_else_is_named_alone(room: Path, at: int) -> None:
    """With the right number, and the hash of the line before; only the signature cannot be right."""
    lines = plain().splitlines(keepends=True)
    before = json.loads(lines[at - 1])
    line, _ = written(at, START_NS, "sent", {"to": 6}, before["hash"], signer(4))
    verdict = judged(b"".join([*lines[:at], line, *lines[at:]]), room)
    assert [(fault.place, "not signed" in fault.what) for fault in verdict.faults] == [(at + 1, True)]


def test_a_log_rewritten_by_somebody_else_is_not_the_owners(room: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with AuditLog(Path(folder) / AUDIT_LOG, owner(3), signer(4), ticking(), synced=False) as log:
            log.append("sent", {})
        forged = (Path(folder) / AUDIT_LOG).read_bytes()
    assert [fault.place for fault in judged(forged, room).faults] == [1, 2, 3]


def test_a_line_of_a_second_log_of_the_owner_does_not_follow(room: Path, tmp_path: Path) -> None:
    with log_of(tmp_path, 3) as log:
        for _ in range(LINES - 2):
            log.append("sent", {"message": "another life"})
    mixed = plain().splitlines(keepends=True)[:4] + (tmp_path / AUDIT_LOG).read_bytes().splitlines(keepends=True)[4:]
    verdict = judged(b"".join(mixed), room)
    assert [fault.place for fault in verdict.faults] == [5]
    assert "entry 4 follows another entry 3" in verdict.faults[0].what


def test_a_log_is_not_anothers(room: Path) -> None:
    verdict = judged(plain(), room, key=4)
    assert "not of the one that was given" in verdict.faults[0].what


def test_without_a_key_it_is_said_which_was_taken(room: Path) -> None:
    verdict = judged(plain(), room, key=None)
    assert verdict.sound and public(3).hex() in verdict.remarks[0]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, len(plain()) - 1))
def test_a_cut_end_is_torn_or_seen_by_who_was_told_the_head(room: Path, size: int) -> None:
    head = json.loads(plain().splitlines()[-1])["hash"]
    cut = plain()[:size]
    verdict = judged(cut, room)
    if cut.endswith(b"\n"):
        assert verdict.sound and "no end marker" in verdict.remarks[0]
    else:
        assert verdict.faults[-1].place == cut.count(b"\n") + 1 and "cut short" in verdict.faults[-1].what
    told = judged(cut, room, head=head)
    assert "which was given: the end is cut off" in told.faults[-1].what


def test_a_head_that_was_told_earlier_is_still_there(room: Path) -> None:
    told = json.loads(plain().splitlines()[4])["hash"]
    verdict = judged(plain(), room, head=told)
    assert verdict.sound and verdict.remarks == (f"{LINES - 5} entries after the given hash",)


def test_a_line_twice_does_not_hide_one_that_is_gone(room: Path) -> None:
    lines = plain().splitlines(keepends=True)
    verdict = judged(b"".join([*lines[:2], lines[1], *lines[3:]]), room)
    assert [fault.place for fault in verdict.faults] == [3, 4]
    assert "entry 2 is not before entry 3" in verdict.faults[1].what


def test_a_line_in_the_place_of_another_is_named_alone(room: Path) -> None:
    lines = plain().splitlines(keepends=True)
    verdict = judged(b"".join([*lines[:2], b"{}\n", *lines[3:]]), room)
    assert [fault.place for fault in verdict.faults] == [3]


def test_without_a_first_line_only_a_given_key_says_who_signed(room: Path) -> None:
    without = plain().partition(b"\n")[2]
    assert [fault.place for fault in judged(without, room).faults] == [1, 1]
    assert "no signature was verified" in judged(without, room, key=None).faults[-1].what


def test_the_same_facts_in_other_bytes_are_not_as_written(room: Path) -> None:
    """JSON says one thing in many ways; a line has one."""
    lines = plain().splitlines(keepends=True)
    head, _, tail = lines[3].rstrip(b"}\n").partition(b',"hash":')
    name, _, signature = tail.partition(b',"signature":')
    swapped = head + b',"signature":' + signature + b',"hash":' + name + b"}\n"
    for other in (swapped, lines[3].replace(b'{"', b'{ "', 1), lines[3].replace(b"sent", b"\\u0073ent", 1)):
        assert [fault.place for fault in judged(b"".join([*lines[:3], other, *lines[4:]]), room).faults] == [4]


def test_after_many_faults_a_file_is_left(room: Path) -> None:
    verdict = judged(b"{}\n" * 100_000, room)
    assert len(verdict.faults) == 101 and "too many faults" in verdict.faults[-1].what


def test_a_clock_that_was_set_back_is_a_remark(tmp_path: Path) -> None:
    times = iter([START_NS, START_NS + 10**10, START_NS, START_NS])
    log = AuditLog(tmp_path / AUDIT_LOG, owner(3), signer(3), lambda: next(times), synced=False)
    log.append("sent", {})
    log.append("sent", {})
    log.close()
    verdict = verify_log(tmp_path / AUDIT_LOG, public(3))
    assert verdict.sound and [remark.split(":")[0] for remark in verdict.remarks] == ["line 3"]


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"\xff\xfe\n", b"x" * 100_000, b"x" * 100_000 + b"\n"])
def test_what_is_no_log_is_not_sound(room: Path, content: bytes) -> None:
    assert not judged(content, room).sound
    assert not judged(plain() + content, room).sound or not content


# --- many lives -------------------------------------------------------------------------------------------------------


def test_a_next_life_reads_what_those_before_have_put_down(tmp_path: Path) -> None:
    with log_of(tmp_path, 3) as log:
        assert log.past == ()
        log.append("joined", {"round": 1, "cohort": "0 1 2 3"})
    log = log_of(tmp_path, 3)
    assert log.past == (("joined", {"round": 1, "cohort": "0 1 2 3"}),)
    log.append("joined", {"round": 2, "cohort": "0 1 2 3"})
    log._close_file()  # killed
    with log_of(tmp_path, 3) as log:
        assert [facts["round"] for _, facts in log.past] == [1, 2]
    path = tmp_path / AUDIT_LOG
    assert kinds(path) == ["opened", "joined", "closed", "reopened", "joined", "reopened", "closed"]
    assert verify_log(path, public(3)).sound
    assert read(path).logged == log.past


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(plain()) - 1))
def test_a_line_torn_by_a_crash_is_mended_and_the_log_goes_on(size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / AUDIT_LOG
        path.write_bytes(plain()[:size])
        whole = plain()[:size].count(b"\n")
        torn = size - len(b"".join(plain().splitlines(keepends=True)[:whole]))
        with log_of(Path(folder), 3) as log:
            log.append("sent", {"to": 6})
        assert verify_log(path, public(3)).sound
        mended = [entry.facts["bytes"] for entry in entries(path) if entry.kind == "mended"]
        assert mended == ([torn] if torn else [])
        assert path.read_bytes().startswith(b"".join(plain().splitlines(keepends=True)[:whole]) if whole else b"{")


def another_life(path: Path, **changes: Any) -> AuditLog:
    mine = {"participant": 3, "key": None, "run": "run of the test", **changes}
    return log_of(path.parent, **mine)


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"participant": 4, "key": 3}, "participant 3"), ({"key": 4}, "of key"), ({"run": "another"}, "run of the test")],
)
def test_the_log_of_another_is_not_continued(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    path = tmp_path / AUDIT_LOG
    path.write_bytes(plain())
    with pytest.raises(AuditError, match=word):
        another_life(path, **changes)
    assert path.read_bytes() == plain()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(plain()) - 2), st.integers(1, 255))
def test_a_log_that_was_changed_is_not_continued_and_not_changed(at: int, flip: int) -> None:
    content = bytearray(plain())
    content[at] ^= flip
    # of the last line the signature is checked, of those before it the chain: their signatures are verify's business
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / AUDIT_LOG
        path.write_bytes(content)
        line = plain()[:at].count(b"\n")
        start = plain().splitlines(keepends=True)[line].index(b'"signature"') + len(plain()[:at].rpartition(b"\n")[0])
        if at > start and line < LINES - 1:
            return
        with pytest.raises(AuditError, match="not continued"):
            another_life(path)
        assert path.read_bytes() == content


def test_a_line_cut_out_or_signed_by_another_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / AUDIT_LOG
    *lines, last = plain().splitlines(keepends=True)
    forged, _ = written(LINES - 1, START_NS, "sent", {}, json.loads(lines[-1])["hash"], signer(4))
    for content, what in (([*lines[:3], *lines[4:], last], "does not follow"), ([*lines, forged], "not signed")):
        path.write_bytes(b"".join(content))
        with pytest.raises(AuditError, match=what):
            another_life(path)


def test_a_file_that_is_no_log_is_not_written_over(tmp_path: Path) -> None:
    for content in (b"a text without an end of line", b"a text\n", plain() + b"x" * 2 * ENTRY_BYTES_MAX):
        (tmp_path / AUDIT_LOG).write_bytes(content)
        with pytest.raises(AuditError, match="not continued"):
            log_of(tmp_path, 3)
        assert (tmp_path / AUDIT_LOG).read_bytes() == content


def test_two_processes_cannot_write_one_log(tmp_path: Path) -> None:
    with log_of(tmp_path, 3), pytest.raises(AuditError, match="another process"):
        log_of(tmp_path, 3)
    log_of(tmp_path, 3).close()


# --- no room, no entry ------------------------------------------------------------------------------------------------


def filling(room_bytes: int, patch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A disk with so much room: it takes what fits, then says that it is full."""
    left = room_bytes
    write = os.write

    def limited(file: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        took = write(file, data[:left])
        left -= took
        return took

    def make(more: int) -> None:
        nonlocal left
        left = more

    patch.setattr(log_module.os, "write", limited)
    return make


@pytest.mark.parametrize("left", [0, 1, 200])
def test_a_full_disk_costs_the_entry_and_no_more(tmp_path: Path, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, 3)
    log.append("sent", {"round": 1})
    before = (tmp_path / AUDIT_LOG).read_bytes()
    make_room = filling(left, monkeypatch)
    for _ in range(2):
        with pytest.raises(NotWrittenError, match="No space left"):
            log.append("sent", {"round": 2})
        assert (tmp_path / AUDIT_LOG).read_bytes() == before
        make_room(left)
    make_room(10_000)
    log.append("sent", {"round": 3})
    log.close()
    assert verify_log(tmp_path / AUDIT_LOG, public(3)).sound
    assert [entry.facts.get("round") for entry in entries(tmp_path / AUDIT_LOG)] == [None, 1, 3, None]


def test_what_cannot_be_taken_back_is_mended_by_the_next_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, 3)
    with monkeypatch.context() as patch:
        filling(50, patch)
        patch.setattr(log_module.os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        with pytest.raises(NotWrittenError):
            log.append("sent", {"round": 1})
    with pytest.raises(AuditError, match="closed"):
        log.append("sent", {"round": 2})
    log_of(tmp_path, 3).close()
    assert kinds(tmp_path / AUDIT_LOG) == ["opened", "reopened", "mended", "closed"]


def test_a_folder_that_is_not_there_is_not_written() -> None:
    with pytest.raises(NotWrittenError):
        AuditLog(Path("/nowhere") / AUDIT_LOG, owner(3), signer(3), ticking())


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("sent", {"text": "x" * ENTRY_BYTES_MAX}), ("sent", {"secret": b"bytes"}), ("sent", {"loss": float("nan")}),
        ("sent", {"ids": [1, 2]}), ("sent", {"count": 2**64}), ("sent", {"Not a name": 1}), ("Sent", {}),
        ("closed", {}), ("opened", {}), ("sent", {"none": None}),
    ],
)  # fmt: skip
def test_what_is_no_entry_is_refused_and_changes_nothing(tmp_path: Path, kind: str, facts: Any) -> None:
    with log_of(tmp_path, 3) as log, pytest.raises(ValueError, match=r"an entry|names are|no number|log itself"):
        log.append(kind, facts)
    assert kinds(tmp_path / AUDIT_LOG) == ["opened", "closed"]


def test_a_refused_fact_does_not_come_into_the_error(tmp_path: Path) -> None:
    with log_of(tmp_path, 3) as log, pytest.raises(ValueError, match="sent: share") as caught:
        log.append("sent", {"share": b"thirty-two bytes of a mask key.."})
    assert "mask key" not in str(caught.value)


def test_entries_are_read_one_at_a_time(tmp_path: Path) -> None:
    """A torn last line is left out; a line that is none is an error, where it comes."""
    (tmp_path / AUDIT_LOG).write_bytes(plain() + b'{"number":9')
    assert len(list(entries(tmp_path / AUDIT_LOG))) == LINES
    (tmp_path / AUDIT_LOG).write_bytes(plain() + b"{}\n")
    found: list[LogEntry] = []
    with pytest.raises(AuditError, match=f"line {LINES + 1}"):
        found.extend(itertools.islice(entries(tmp_path / AUDIT_LOG), LINES))
        next(itertools.islice(entries(tmp_path / AUDIT_LOG), LINES, None))
    assert len(found) == LINES
