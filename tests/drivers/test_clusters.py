"""Real participants placed by submitit: the bits of `run --on local`; nothing of ours is pickled, or left behind."""

from __future__ import annotations

import json
import os
import pickletools
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from commands import in_process, start

from fedgossip.base.errors import ConfigError
from fedgossip.drivers.clusters.meeting import JobLife
from fedgossip.drivers.clusters.node import find_own_host

EXPERIMENT = """
rounds = {rounds}
task = {{ kind = "quadratic", dim = 64 }}
topology = {{ graph = "ring", n = {n} }}
"""


def written(folder: Path, n: int = 2, rounds: int = 4, more: str = "") -> Path:
    path = folder / "q.toml"
    path.write_text(EXPERIMENT.format(n=n, rounds=rounds) + more)
    return path


def processes_of(folder: Path) -> list[int]:
    """The processes in whose command this folder stands."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


LAUNCH = ["launch", "q.toml", "--on", "slurm", "--partition", "local", "--out", "run", "--no-report"]


@pytest.mark.sockets
def test_tasks_of_submitit_end_with_the_digest_of_the_simulator_and_pickle_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path)
    placed = start([*LAUNCH, "--json"], tmp_path)
    out, err = placed.communicate(timeout=300)
    assert placed.returncode == 0, err
    simulated = in_process(["run", "q.toml", "--json", "--out", "sim", "--no-report"], tmp_path, monkeypatch, capsys)
    told = json.loads(out)
    assert told["digest"] == json.loads(simulated.out)["digest"] and told["driver"] == "slurm"
    (pickled,) = (tmp_path / "run" / "cluster").glob("*_submitted.pkl")
    named = [str(arg) for _, arg, _ in pickletools.genops(pickled.read_bytes()) if isinstance(arg, str)]
    assert any("CommandFunction" in one for one in named)
    assert not [
        one for one in named if one.startswith("fedgossip") and not one.startswith("fedgossip.drivers.clusters.node")
    ]
    assert (tmp_path / "run" / "cluster").stat().st_mode & 0o077 == 0
    assert processes_of(tmp_path / "run") == []


@pytest.mark.long
@pytest.mark.sockets
def test_ctrl_c_leaves_no_process_and_says_how_to_go_on(tmp_path: Path) -> None:
    written(tmp_path, rounds=100_000)
    placed = start(LAUNCH, tmp_path)
    record = tmp_path / "run" / "metrics.jsonl"
    await_until(lambda: record.exists() and record.read_bytes().count(b"\n") > 30, placed)
    assert len(processes_of(tmp_path / "run")) >= 4
    placed.send_signal(signal.SIGINT)
    _, err = placed.communicate(timeout=300)
    assert placed.returncode == 130 and "fedgossip launch --resume run" in err, err
    assert processes_of(tmp_path / "run") == []


@pytest.mark.long
@pytest.mark.sockets
def test_a_participant_that_is_killed_has_died_and_the_others_go_on(tmp_path: Path) -> None:
    written(tmp_path, n=4, rounds=3000)
    placed = start([*LAUNCH, "--json"], tmp_path)
    record = tmp_path / "run" / "metrics.jsonl"
    await_until(lambda: record.exists() and record.read_bytes().count(b"\n") > 30, placed)
    os.kill(child_of(tmp_path / "run", 2), signal.SIGKILL)
    out, err = placed.communicate(timeout=300)
    assert placed.returncode == 9, err
    told = json.loads(out)
    assert told["events"]["died"] == 1 and told["status"] == "partial"
    assert processes_of(tmp_path / "run") == []


def child_of(run: Path, node: int) -> int:
    """The process of a participant."""
    mark = f'"node":{node},'.encode()
    found = [pid for pid in processes_of(run) if mark in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found[0]


def await_until(happened: Any, placed: Any) -> None:
    until = time.monotonic() + 200
    while not happened():
        assert placed.poll() is None, placed.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("more", "words", "code", "said"),
    [
        ("", ["--on", "slurm", "--partition", "local", "--nodes", "2"], 2, "one node, not 2"),
        ("", ["--detach"], 2, "--detach goes with --on slurm"),
        ('[[faults]]\nkind = "crash"\npeer = 1\nat = 0.1\n', ["--on", "slurm", "--partition", "local"], 2, "faults"),
    ],
)
def test_what_cannot_be_placed_is_refused_before_anything_starts(
    more: str, words: list[str], code: int, said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    written(tmp_path, more=more)
    found = in_process(["launch", "q.toml", *words, "--out", "run"], tmp_path, monkeypatch, capsys)
    assert found.code == code and said in found.err, found.err
    assert not (tmp_path / "run").exists()


def test_where_there_is_no_slurm_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = in_process(["launch", "q.toml", "--on", "slurm", "--out", "run"], tmp_path, monkeypatch, capsys)
    assert found.code == 2 and "no Slurm" in found.err and "--partition local" in found.err
    assert not (tmp_path / "run").exists()


@pytest.mark.sockets
def test_of_a_slurm_that_does_not_answer_the_last_word_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path)
    said = "echo sinfo: error: lookup failed >&2; echo sinfo: fatal: no source >&2; exit 1"
    for name in ("srun", "sinfo"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{said}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = in_process(["launch", "q.toml", "--on", "slurm", "--out", "run"], tmp_path, monkeypatch, capsys)
    assert found.code == 3 and "does not answer: sinfo: fatal: no source\n" in found.err, found.err
    assert "sinfo" in found.err.splitlines()[-1] and not (tmp_path / "run").exists()


def test_the_newest_life_of_a_job_counts_and_ends_are_of_that_life(tmp_path: Path) -> None:
    for life in (2, 10):
        JobLife(tmp_path / f"77-{life}", 2).begin(0)
    JobLife(tmp_path / "77-2", 2).ended(0, 130)
    newest = JobLife.newest(tmp_path, "77", 2)
    assert newest is not None and newest.folder.name == "77-10" and newest.exits() == {} and newest.list_placed() == {0}
    assert JobLife.newest(tmp_path, "7", 2) is None


def test_an_interface_that_is_not_there_is_refused() -> None:
    assert find_own_host("a", ["a"]) == "127.0.0.1" and find_own_host("a", ["a", "127.0.0.2"], "lo") == "127.0.0.1"
    with pytest.raises(ConfigError, match="no network interface nope0"):
        find_own_host("a", ["a", "b"], "nope0")
