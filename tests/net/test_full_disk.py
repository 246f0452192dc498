"""A full disk costs what was to be written, not the run; what is lost is counted, and told when there is room again."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import experiment as experiment_file
from commands import finish, in_process, start, wait_until

from fedgossip.base.errors import NotWrittenError
from fedgossip.core.machine import Checkpoint
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row, RowWriter, read_rows
from fedgossip.core.run_format import CHECKPOINT
from fedgossip.drivers import sim_checkpoint
from fedgossip.drivers.local import run_local
from fedgossip.drivers.peer_processes import start_failure
from fedgossip.drivers.simulate import simulate
from fedgossip.net.identity import Identity
from fedgossip.net.invites.invitation import Invitation, new_secret, written
from fedgossip.runs import checkpoints, run_directory
from fedgossip.runs.checkpoints import About, Checkpoints


class Disk:
    """A small disk of its own, which can be filled to the last byte and emptied again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        with (self.path / "filling").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        (self.path / "filling").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no disk of our own can be mounted here: {mounted.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


EXPERIMENT: dict[str, Any] = {
    "rounds": 12,
    "topology": {"graph": "ring", "n": 4},
    "task": {"kind": "averaging", "dim": 5},
    "eval": {"every": 1},
}


def at_round(steps: dict[int, Callable[[], None]]) -> Callable[[Row], None]:
    """Do something when the network's row of a round comes."""

    def watch(row: Row) -> None:
        if isinstance(row, NetworkRow) and row.round in steps:
            steps[row.round]()

    return watch


def losses(rows: list[Row]) -> list[int]:
    events = [row for row in rows if isinstance(row, EventRow) and row.name == "rows_lost"]
    assert all(isinstance(event.value, dict) and event.value["reason"] for event in events)
    return [event.value["count"] for event in events]  # type: ignore[index]


def parts(folder: Path) -> list[Path]:
    return list(folder.rglob("*.part"))


# --- rows -----------------------------------------------------------------------------------------------------------


class Short:
    """A file on a disk that has room for so many bytes."""

    def __init__(self, inner: Any, room: int) -> None:
        self.inner, self.room = inner, room

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = int(self.inner.write(data[: self.room]))
        self.room -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_rows_that_come_at_once_leave_the_bytes_of_rows_that_come_one_by_one(tmp_path: Path) -> None:
    rows = [*(PeerRow(3, peer, 0.5, None, 1, 2, 0.1, 0.0, 0.0, 0.1) for peer in range(3)), NetworkRow(3, 3, 0.1, 3)]
    with RowWriter(tmp_path / "one") as one, RowWriter(tmp_path / "all") as at_once:
        assert not [told for row in rows if (told := one.write(row))] and not list(at_once.write_all(rows))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "all").read_bytes() and read_rows(tmp_path / "all") == rows


def test_rows_without_room_are_dropped_whole_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = RowWriter(path)
    file = writer._file
    writer._file = Short(file, 40)  # type: ignore[assignment]
    told = [writer.write(NetworkRow(round, 4, 0.0, 0)) for round in range(5)]
    writer._file = file
    assert told == [None] * 5 and writer.lost == 5
    assert path.read_bytes() == b""  # no half line
    event = writer.write(NetworkRow(5, 4, 0.0, 0))
    assert event == EventRow(5, -1, "rows_lost", {"count": 5, "reason": "No space left on device"})
    writer.close()
    assert read_rows(path) == [NetworkRow(5, 4, 0.0, 0), event]


@pytest.mark.sockets
def test_peers_that_find_no_room_for_their_addresses_are_said_to_be_out_of_room(disk: Disk) -> None:
    folders = [disk.path / "run" / "peers" / name for name in ("00", "01")]
    for folder in folders:
        folder.mkdir(parents=True)
    assert "peers [0, 1] did not start" in str(start_failure(disk.path / "run", folders))
    disk.fill()
    told = start_failure(disk.path / "run", folders)
    assert "No space left on device" in str(told) and "Make room" in told.advice


# --- a simulation ---------------------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_a_simulation_goes_on_over_a_full_disk_and_tells_what_was_lost(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim_checkpoint, "SECONDS", 0.0)
    out = disk.path / "run"
    run = simulate(EXPERIMENT, out=out, report=True, watch=at_round({4: disk.fill, 8: disk.free}))
    assert run.summary["status"] == "finished" and run.digest == simulate(EXPERIMENT).digest
    rows = read_rows(out / "metrics.jsonl")
    assert rows[-1] == run.rows[-1]
    assert sum(losses(rows)) == run.summary["events"]["rows_lost"] > 0
    assert len(rows) == len(run.rows) - run.summary["events"]["rows_lost"]
    assert not parts(out)


@pytest.mark.sockets
def test_a_disk_that_stays_full_ends_a_simulation_with_its_name(disk: Disk) -> None:
    with pytest.raises(NotWrittenError) as error:
        simulate(EXPERIMENT, out=disk.path / "run", watch=at_round({4: disk.fill}))
    assert error.value.exit_code == 2
    text = str(error.value)
    assert f"{disk.path}/run/timeline.json: not written: No space left on device" in text
    assert f"the disk at {disk.path} has 0.0 MB left" in text
    assert not parts(disk.path) and (disk.path / "run" / "INCOMPLETE").exists()


# --- real peers -----------------------------------------------------------------------------------------------------

ROUNDS = 900

SLOW = {
    "rounds": ROUNDS,
    "topology": {"graph": "ring", "n": 3},
    "task": {"kind": "averaging", "dim": 100_000},
    "eval": {"every": 10},
}
"""So that there is time for a disk to be full."""


@pytest.mark.sockets
@pytest.mark.long
def test_real_peers_go_on_over_a_full_disk(disk: Disk) -> None:
    out = disk.path / "run"
    rows = [out / "peers" / f"{node:02d}" / "metrics.jsonl" for node in range(3)]

    def be_full_for_a_while() -> None:
        """From the first rows on, by the peers' own files: the record that is put together may lag behind."""
        wait_until(lambda: all(path.exists() and path.stat().st_size for path in rows), 60, "all peers have begun")
        disk.fill()
        time.sleep(1.5)  # peers that write nothing are not heard of: a clock, not a round
        disk.free()

    filling = threading.Thread(target=be_full_for_a_while)
    filling.start()
    run = run_local(SLOW, out, report=False)
    filling.join()
    assert run.summary["status"] == "finished" and run.digest == simulate(SLOW).digest
    assert run.summary["events"]["rows_lost"] > 0
    told = [read_rows(out / "peers" / f"{node:02d}" / "metrics.jsonl") for node in range(3)]
    assert all(rows[-1].round == ROUNDS for rows in told)
    assert any(losses(rows) for rows in told)  # a file's last block may have had room for one peer's rows
    for rows in told:  # whatever is missing has been told, peer by peer
        kept = [row.round for row in rows if isinstance(row, PeerRow)]
        assert kept == sorted(set(kept)) and ROUNDS - len(kept) <= sum(losses(rows))
    assert not parts(out)


@pytest.mark.sockets
def test_peers_that_cannot_write_their_model_name_it_and_the_disk(disk: Disk, tmp_path: Path) -> None:
    file = experiment_file(tmp_path, rounds=400, n=3, more="").rename(tmp_path / "e.toml")
    words = ["run", str(file), "--on", "local", "--out", str(disk.path / "run"), "--no-report"]
    process = start([*words, "--set", "task.dim=100000"], tmp_path)
    first = disk.path / "run" / "peers" / "00" / "metrics.jsonl"  # earlier than the record that is put together of it
    while process.poll() is None and not (first.exists() and b'"round":2' in first.read_bytes()):
        time.sleep(0.001)
    while process.poll() is None:  # again and again: a checkpoint that finds no room leaves room when it is removed
        disk.fill()
        time.sleep(0.01)
    said = finish(process)
    assert said.code in (2, 3) and "Traceback" not in said.err, said
    assert f"{disk.path}/run" in said.errors[0] and f"the disk at {disk.path} has 0." in said.errors[0], said
    assert not parts(disk.path)


# --- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_checkpoints_are_written_again_when_there_is_room_again(disk: Disk) -> None:
    """Also where the row that says so found no room: it is written by the same thread."""
    writer = RowWriter(disk.path / "metrics.jsonl")

    def failed(round: int, _: OSError) -> None:
        writer.write(EventRow(round, 0, "checkpoint_failed"))

    kept = Checkpoints(disk.path, About(0, "layout", "1", {}), failed, seconds=0)
    disk.fill()
    kept.keep(Checkpoint(1, {}, {}), {})
    wait_until(lambda: writer.lost, 20, "a row is dropped")
    disk.free()
    kept.keep(Checkpoint(2, {}, {}), {})
    wait_until((disk.path / CHECKPOINT).exists, 20, "a checkpoint")
    assert kept.close() == 2
    writer.close()
    assert losses(read_rows(disk.path / "metrics.jsonl")) == [1]


def test_a_life_that_cannot_be_written_down_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotWrittenError, match="incarnation: not written: No space"):
        checkpoints.begin_life(tmp_path, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.sockets
def test_a_whole_file_that_does_not_fit_leaves_the_old_one(disk: Disk) -> None:
    run_directory.write_whole(disk.path / "ended.json", b"before")
    disk.fill()
    with pytest.raises(NotWrittenError):
        run_directory.write_whole(disk.path / "ended.json", bytes(100_000))
    assert (disk.path / "ended.json").read_bytes() == b"before"
    assert not parts(disk.path)


@pytest.mark.sockets
@pytest.mark.root
def test_who_has_no_room_on_the_disk_is_told_before_anybody_waits_for_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    invite = written(Invitation(("tcp://127.0.0.1:1",), Identity.new().public, new_secret(), 2**32 - 1))
    disk.fill()
    words = ["join", invite, "--folder", str(disk.path / "joined")]
    said = in_process(words, disk.path, monkeypatch, capsys)
    assert said.code == 2 and "owner.mark" in said.errors[0] and len(said.err.splitlines()) == 2, said.err
    disk.free()
    assert not [*disk.path.rglob("peer.key")]
