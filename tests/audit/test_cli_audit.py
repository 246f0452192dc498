"""`fedgossip audit`: a table for people, a verdict with an exit code, a file for who asks."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from audit_kit import Kept, kept, log_of
from commands import Output, in_process
from secure_kit import Room, public, signer

from fedgossip.audit.entries import entries
from fedgossip.core.run_format import AUDIT_LOG
from fedgossip.net.endpoints import Endpoint, roster_of, text
from fedgossip.secure.session import ParticipantRoster, RosterMember

N = 6

Run = Callable[..., Output]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *words: in_process(["audit", *map(str, words)], tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """What a run of one round left: logs of two clients and the coordinator, the transcript, and endpoints.toml."""
    folder = tmp_path_factory.mktemp("run")
    entries = {node: entry(node) for node in range(N + 1)}
    (folder / "endpoints.toml").write_text(text(entries.items()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secure_kit.roster_of", lambda n: ParticipantRoster(roster_of(entries).members[:n]))
        yield kept(folder, Room(N), drops={5: 2}, logged=(1, 2))


def entry(node: int) -> Endpoint:
    """A participant's block, signed by itself; the coordinator is the last."""
    number = node if node < N else -1
    curve, address = zmq.curve_keypair()[0].decode(), f"tcp://10.0.0.{node + 1}:5700"
    member = RosterMember(public(number), curve, address).signed(signer(number))
    return Endpoint(address, curve, public(number).hex(), signature=member.signature.hex())


# --- show -------------------------------------------------------------------------------------------------------------


def test_show_tells_what_left_to_whom_and_how_much(run: Run, left: Kept) -> None:
    said = run("show", left.log(2))
    assert said.code == 0 and said.errors == []
    head, first, *rows, last = said.out.splitlines()
    assert head.split() == ["time", "kind", "bytes", "with", "round", "sha256", "more"]
    assert "opened" in first and "participant 2" in first and last.endswith("closed")
    vector = next(one for one in entries(left.log(2)) if one.kind == "masked")
    size = f"{vector.facts['bytes'] + 4 * 7:,}"  # the frame, and seven words behind it
    words = ["masked", size, "to", "6", "0", str(vector.facts["sha256"])[:12], "stage", "MASKED;", "words", "7"]
    assert [row.split()[1:] for row in rows if " masked " in row] == [words]
    assert len(rows) == 6


def test_show_takes_a_kind_and_the_last(run: Run, left: Kept) -> None:
    said = run("show", left.log("coordinator"), "--kind", "reveal", "--last", "3")
    assert [line.split()[1] for line in said.out.splitlines()[1:]] == ["reveal"] * 3
    assert [line.split()[4] for line in said.out.splitlines()[1:]] == ["2", "3", "4"]


def test_show_prints_an_object_per_entry(run: Run, left: Kept) -> None:
    shown = [json.loads(line) for line in run("show", left.log(2), "--json").out.splitlines()]
    assert [one["hash"] for one in shown] == [entry.hash for entry in entries(left.log(2))]
    assert {one["log"] for one in shown} == {str(left.log(2))}


def test_show_goes_through_a_folder(run: Run, left: Kept, tmp_path: Path) -> None:
    assert [line for line in run("show", left.folder).out.splitlines() if line.endswith(":")] == [
        f"{left.log(who)}:" for who in (1, 2, "coordinator")
    ]
    said = run("show", tmp_path)
    assert said.code == 2 and "no audit.jsonl below it" in said.err


def test_a_text_from_elsewhere_does_not_command_the_terminal(run: Run, tmp_path: Path) -> None:
    with log_of(tmp_path, 3) as log:
        log.append("refused", {"reason": "\x1b[2Jgone\n", "from": 6})
    shown = run("show", tmp_path / AUDIT_LOG).out
    assert "?[2Jgone?" in shown and "\x1b" not in shown


# --- verify -----------------------------------------------------------------------------------------------------------


def test_a_sound_log_ends_with_0_and_says_by_which_key(run: Run, left: Kept) -> None:
    said = run("verify", left.log(2))
    assert said.code == 0 and "log of client 2: sound, 8 entries" in said.out
    assert "note: verified by the key that the log itself names" in said.out
    endpoints = left.folder / "endpoints.toml"
    for words in (("--key", public(2).hex()), ("--endpoints", endpoints), ("--endpoints", endpoints, "--id", 2)):
        said = run("verify", left.log(2), *words)
        assert said.code == 0 and "note" not in said.out


def test_a_changed_line_ends_with_1_and_is_named(run: Run, left: Kept, tmp_path: Path) -> None:
    path = tmp_path / AUDIT_LOG
    path.write_bytes(left.log(2).read_bytes().replace(b'"stage":"SHARES"', b'"stage":"Shares"'))
    said = run("verify", path)
    assert said.code == 1 and "NOT sound" in said.out and "  line 3: not as it was written: entry 2" in said.out
    facts = json.loads(run("verify", path, "--json").out)
    assert not facts["sound"] and facts["faults"][0].startswith("line 3: ")


def test_a_log_of_another_key_ends_with_1(run: Run, left: Kept) -> None:
    endpoints = left.folder / "endpoints.toml"
    for words in (("--key", public(3).hex()), ("--endpoints", endpoints, "--id", 1)):
        said = run("verify", left.log(2), *words)
        assert said.code == 1 and "not of the one that was given" in said.out


def test_a_cut_end_is_seen_with_the_head_that_was_told(run: Run, left: Kept, tmp_path: Path) -> None:
    head = list(entries(left.log(2)))[-1].hash
    path = tmp_path / AUDIT_LOG
    path.write_bytes(b"".join(left.log(2).read_bytes().splitlines(keepends=True)[:-1]))
    assert run("verify", path).code == 0
    said = run("verify", path, "--head", head)
    assert said.code == 1 and "the end is cut off" in said.out
    assert run("verify", left.log(2), "--head", head).code == 0


def test_two_logs_are_held_against_each_other(run: Run, left: Kept, tmp_path: Path) -> None:
    assert run("verify", left.log(1), left.log(2), "--against", left.log("coordinator")).code == 0
    with log_of(tmp_path, 2) as log:
        log.append("reveal", {"to": 6, "session": 0, "stage": "UNMASK", "bytes": 9, "sha256": "1" * 64})
    said = run("verify", tmp_path / AUDIT_LOG, "--against", left.log("coordinator"))
    assert said.code == 1 and "sent 'reveal', stage UNMASK of session 0, 9 bytes" in said.out
    assert "coordinator 6, line" in said.out and "received 'shares'" in said.out


def test_a_transcript_is_verified_with_the_roster(run: Run, left: Kept) -> None:
    roster = left.folder / "endpoints.toml"
    said = run("verify", left.path, "--roster", roster)
    assert said.code == 0, said.out
    assert "transcript of session 0: sound, summed, 5 of 6 in the sum, 5 signed, 5 revealed, 5 needed" in said.out
    assert "dropped before vector: 5" in said.out
    assert run("verify", left.path, "--roster", roster, "--against", left.log(2)).code == 0
    assert run("verify", left.log(2), "--roster", roster, "--against", left.path).code == 0
    said = run("verify", left.path, "--roster", roster, "--key", public(0).hex())
    assert said.code == 1 and "another coordinator" in said.out
    assert run("verify", left.path).code == 2


def test_a_client_is_held_against_all_rounds_of_the_coordinator(run: Run, left: Kept, tmp_path: Path) -> None:
    """The coordinator cannot leave out a round as a whole either."""
    words = ["--roster", left.folder / "endpoints.toml", "--against", left.path.parent]
    assert run("verify", left.log(2), *words).code == 0
    with log_of(tmp_path, 2) as log:
        for one in entries(left.log(2)):
            if "to" in one.facts:
                log.append(one.kind, one.facts)
        for stage in ("SHARES", "MASKED"):
            log.append("sent", {"to": 6, "session": 9, "stage": stage, "bytes": 9, "sha256": "1" * 64})
    said = run("verify", tmp_path / AUDIT_LOG, *words)
    assert said.code == 1 and said.out.count("no transcript is of that session") == 1
    assert "client 2, line 7, sent 'sent', stage SHARES of session 9" in said.out


def test_a_whole_folder_is_verified_at_once(run: Run, left: Kept) -> None:
    said = run("verify", left.folder, "--roster", left.folder / "endpoints.toml")
    assert said.code == 0
    assert [line.split(": ")[1] for line in said.out.splitlines() if not line.startswith(" ")] == [
        "log of client 1", "log of client 2", "log of coordinator 6", "transcript of session 0",
    ]  # fmt: skip
    assert "note" not in said.out  # the keys are in the file


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--key", "12"], "64 hex digits"), (["--head", "x" * 64], "64 hex digits"),
        (["--endpoints", "nowhere.toml"], "nowhere.toml"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_line_of_error(run: Run, left: Kept, words: list[str], what: str) -> None:
    said = run("verify", left.log(2), *words)
    assert said.code == 2 and len(said.errors) == 1 and what in said.errors[0]


def test_a_participant_that_the_file_does_not_know_is_an_error(run: Run, left: Kept) -> None:
    said = run("verify", left.log(2), "--endpoints", left.folder / "endpoints.toml", "--id", 9)
    assert said.code == 2 and "no entry for peer 9" in said.err


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_file_that_is_not_there_is_said(run: Run, command: str) -> None:
    said = run(command, "nowhere.jsonl", *(["--out", "x.csv"] if command == "export" else []))
    assert said.code == 2 and "nowhere.jsonl: No such file" in said.err


# --- export -----------------------------------------------------------------------------------------------------------


def test_a_table_has_a_cover_and_every_entry(run: Run, left: Kept, tmp_path: Path) -> None:
    assert run("export", left.log(2), "--out", "site.csv").code == 0
    with (tmp_path / "site.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    end = rows.index([])
    cover = dict(rows[:end])
    found = list(entries(left.log(2)))
    assert (cover["participant"], cover["role"], cover["run"]) == ("2", "client", "run of the test")
    assert (cover["first"], cover["last"], cover["head"]) == (found[0].time, found[-1].time, found[-1].hash)
    assert cover["verified"] == "sound" and cover["masked, entries"] == "1"
    table = [dict(zip(rows[end + 1], row, strict=True)) for row in rows[end + 2 :]]
    assert [row["hash"] for row in table] == [entry.hash for entry in found]
    assert [row["bytes"] for row in table if row["kind"] == "masked"] == [cover["masked, bytes"]]
    assert (table[1]["kind"], table[1]["with"], table[1]["round"]) == ("advertise", "to 6", "0")


def test_json_has_cover_and_entries_too(run: Run, left: Kept, tmp_path: Path) -> None:
    assert run("export", left.log(2), "--out", "site.json", "--key", public(2).hex()).code == 0
    content = json.loads((tmp_path / "site.json").read_text())
    assert content["cover"]["verified"] == "sound" and content["cover"]["remarks"] == ""
    assert [one["hash"] for one in content["entries"]] == [entry.hash for entry in entries(left.log(2))]


def test_the_cover_of_a_log_that_is_not_sound_says_so(run: Run, left: Kept, tmp_path: Path) -> None:
    (tmp_path / AUDIT_LOG).write_bytes(left.log(2).read_bytes() + b'{"number":8')
    said = run("export", AUDIT_LOG, "--out", "site.csv", "--csv")
    assert said.code == 1 and "NOT sound" in said.out
    assert "NOT sound: line 9: cut short" in (tmp_path / "site.csv").read_text()


def test_a_text_from_elsewhere_is_no_formula_of_a_spreadsheet(run: Run, tmp_path: Path) -> None:
    with log_of(tmp_path, 3) as log:
        log.append("refused", {"session": '=HYPERLINK("http://x")', "from": 6})
    run("export", tmp_path / AUDIT_LOG, "--out", "site.csv")
    cells = [cell for row in csv.reader((tmp_path / "site.csv").read_text().splitlines()) for cell in row]
    assert '\'=HYPERLINK("http://x")' in cells and not any(cell.startswith("=") for cell in cells)


def test_an_export_that_cannot_be_written_leaves_nothing(run: Run, left: Kept, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    said = run("export", left.log(2), "--out", "folder")
    assert said.code == 2 and "a file was expected" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]
