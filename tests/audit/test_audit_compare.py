"""What a client says left it is what the coordinator says came, in its log and in its transcript; or it is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_kit import Kept, forged, kept, log_of
from forging import gone_outlines, resigned
from secure_kit import Room, public

from fedgossip.audit.entries import entries
from fedgossip.audit.log import OWN
from fedgossip.audit.verify import Verification, compare, verify_log
from fedgossip.audit.verify_round import verify_transcript
from fedgossip.core.run_format import AUDIT_LOG
from fedgossip.secure import frames

N = 6


def judged(found: Kept, path: Path | None = None) -> Verification:
    return verify_transcript(path or found.path, found.room.roster, public(-1))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A round of six clients of whom one drops after it has shared; with all logs."""
    return kept(tmp_path_factory.mktemp("plain"), Room(N), drops={5: 2}, logged=range(N))


def accounts(found: Kept, client: int) -> tuple[Any, Any, Any]:
    """What the client says, what the coordinator says, what the transcript says."""
    logs = [verify_log(found.log(v)) for v in (client, "coordinator")]
    verdicts = [*logs, judged(found)]
    assert all(verdict.sound for verdict in verdicts)
    return tuple(verdict.account for verdict in verdicts)  # type: ignore[return-value]


def test_honest_logs_and_transcripts_agree(plain: Kept) -> None:
    for client in range(N):
        mine, coordinator, transcript = accounts(plain, client)
        assert len(mine.sent) == (2 if client == 5 else 5) and len(mine.sums) == (client != 5)
        assert compare(mine, coordinator) == compare(coordinator, mine) == compare(mine, transcript) == []


def relogged(found: Kept, folder: Path, change: Callable[[str, dict[str, Any]], Any], client: int = 2) -> Any:
    """The account of a client that puts down something else."""
    with log_of(folder / "other", client) as log:
        for entry in entries(found.log(client)):
            facts = None if entry.kind in OWN else change(entry.kind, dict(entry.facts))
            if facts is not None:
                log.append(entry.kind, facts)
    return verify_log(folder / "other" / AUDIT_LOG).account


def changing(kind: str, **facts: Any) -> Callable[[str, dict[str, Any]], Any]:
    return lambda at, was: {**was, **facts} if at == kind else was


def test_what_a_client_leaves_out_is_named(plain: Kept, tmp_path: Path) -> None:
    _, coordinator, transcript = accounts(plain, 2)
    mine = relogged(plain, tmp_path, lambda kind, facts: None if kind == "shares" else facts)
    for other in (coordinator, transcript):
        (what,) = compare(mine, other)
        assert "received 'shares', stage SHARES of session 0" in what
        assert "client 2 does not record its sending" in what


def test_what_the_coordinator_leaves_out_is_named(plain: Kept, tmp_path: Path) -> None:
    mine, coordinator, _ = accounts(plain, 2)
    coordinator.received = {found: place for found, place in coordinator.received.items() if found.name != "reveal"}
    (what,) = compare(mine, coordinator)
    assert "client 2, line 6, sent 'reveal'" in what and "coordinator 6 does not record its receipt" in what
    path = tmp_path / plain.path.name
    path.write_bytes(plain.path.read_bytes())
    (what,) = compare(mine, judged(plain, forged(path, gone_outlines("Reveal", 2))).account)
    assert "the transcript does not record its receipt" in what


def test_a_coordinator_that_says_of_nothing_that_it_came_is_named_once(plain: Kept, tmp_path: Path) -> None:
    mine, _, _ = accounts(plain, 2)
    log_of(tmp_path, N, key=-1).close()
    (what,) = compare(mine, verify_log(tmp_path / AUDIT_LOG).account)
    assert "coordinator 6 records no receipt" in what


@pytest.mark.parametrize("facts", [{"sha256": "0" * 64}, {"bytes": 7}])
def test_other_bytes_of_the_same_stage_are_named_as_one(plain: Kept, tmp_path: Path, facts: dict[str, Any]) -> None:
    _, coordinator, transcript = accounts(plain, 2)
    mine = relogged(plain, tmp_path, changing("masked", **facts))
    for other in (coordinator, transcript):
        (what,) = compare(mine, other)
        assert "sent 'masked'" in what and f"{other}" in what and "received" in what


def test_a_reveal_of_other_kinds_than_the_client_says_is_named(plain: Kept, tmp_path: Path) -> None:
    """The body is not in the transcript: that its outline is true, the client's log says."""
    _, coordinator, transcript = accounts(plain, 2)
    mine = relogged(plain, tmp_path, changing("reveal", alive="1-4", dropped="0,5"))
    for other in (coordinator, transcript):
        (what,) = compare(mine, other)
        assert "of shares 1-4; 0,5" in what and "states 0-4; 5" in what


def test_another_result_than_the_client_was_told_is_named(plain: Kept, tmp_path: Path) -> None:
    """The coordinator signs another hash of the sum, in good form; only who got the first can tell."""
    mine, _, _ = accounts(plain, 2)
    path = tmp_path / plain.path.name
    path.write_bytes(plain.path.read_bytes())
    verdict = judged(plain, forged(path, lambda found: resigned(found, frames.Result, digest=bytes(32))))
    assert verdict.sound
    (what,) = compare(mine, verdict.account)
    assert "client 2, line 7, received the sum" in what and "states 000000000000" in what


def test_a_client_may_say_what_came_to_it_and_then_it_is_compared(plain: Kept, tmp_path: Path) -> None:
    _, coordinator, transcript = accounts(plain, 2)
    came = [found for found in coordinator.sent if found.peer == 2]
    assert len(came) == 5
    with log_of(tmp_path / "other", 2) as log:
        for entry in entries(plain.log(2)):
            if entry.kind not in OWN:
                log.append(entry.kind, entry.facts)
        for found in came[:-1]:
            log.append("received", {"from": N, "session": 0, "stage": found.stage, "bytes": found.bytes,
                                    "sha256": found.sha256})  # fmt: skip
    mine = verify_log(tmp_path / "other" / AUDIT_LOG).account
    (what,) = compare(mine, coordinator)
    assert "coordinator 6, line" in what and "'consents'" in what and "client 2 does not record its receipt" in what
    missing = compare(mine, transcript)
    assert len(missing) == 2 and "'result'" in missing[1]


def test_logs_of_others_are_not_compared(plain: Kept, tmp_path: Path) -> None:
    mine, coordinator, transcript = accounts(plain, 2)
    log_of(tmp_path / "a", 2, run="another").close()
    log_of(tmp_path / "b", 2, key=3).close()
    other_run, other_key = (verify_log(tmp_path / name / AUDIT_LOG).account for name in "ab")
    assert "two runs" in compare(other_run, coordinator)[0]
    assert "another key" in compare(other_key, transcript)[0]
    assert "both are logs of client 2" in compare(mine, mine)[0]
