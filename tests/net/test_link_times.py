"""The line through the times of messages, and the command that measures them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedgossip import load_experiment
from fedgossip.lab.costs.base import fitted
from fedgossip.net.measuring import SIZES
from tests.commands import free_ports, in_process, start


def test_a_line_is_found_again() -> None:
    line = fitted(SIZES, [0.002 + size / 5e8 for size in SIZES])
    assert line.latency == pytest.approx(0.002) and line.rate == pytest.approx(5e8) and line.residual < 1e-9


def test_the_residual_says_how_far_a_time_is_off() -> None:
    noise = 1 + 0.1 * np.where(np.arange(len(SIZES)) % 2, 1.0, -1.0)
    line = fitted(SIZES, [(0.002 + size / 5e8) * float(one) for size, one in zip(SIZES, noise, strict=True)])
    assert line.latency == pytest.approx(0.002, rel=0.2) and line.rate == pytest.approx(5e8, rel=0.2)
    assert 0.05 < line.residual < 0.25


@pytest.mark.parametrize(("sizes", "seconds"), [([1, 1], [0.1, 0.2]), ([1, 10], [0.3, 0.2])])
def test_what_is_no_line_is_refused(sizes: list[float], seconds: list[float]) -> None:
    with pytest.raises(ValueError, match=r"two sizes|longer messages"):
        fitted(sizes, seconds)


@pytest.mark.sockets
def test_the_command_prints_eight_sizes_and_a_line_for_an_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_process(["doctor", "--links"], tmp_path, monkeypatch, capsys)
    assert said.code == 0, said.err
    assert [f"{size:,}" in said.out for size in SIZES] == [True] * 8
    (line,) = re.findall(r"^simulation = .*$", said.out, re.MULTILINE)
    path = tmp_path / "it.toml"
    path.write_text(f'{line}\n[topology]\ngraph = "ring"\nn = 3\n')
    simulation = load_experiment(path).simulation
    assert simulation.latency >= 0 and simulation.bandwidth == simulation.downlink


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Three keys, and a file with their endpoints."""
    blocks = []
    for node, port in enumerate(free_ports(3)):
        words = ["keys", "new", "--id", str(node), "--address", f"tcp://127.0.0.1:{port}", "--out", f"{node}.key"]
        blocks.append(in_process(words, tmp_path, monkeypatch, capsys).out)
    (tmp_path / "endpoints.toml").write_text("\n".join(blocks))
    return tmp_path


def survey(desk: Path, nodes: Sequence[int], *more: str) -> list[tuple[int, str, str]]:
    """(exit code, output, errors) of each machine."""
    pipes = {"stdout": subprocess.PIPE}
    common = ["doctor", "--links", "--endpoints", "endpoints.toml", *more, "--key"]
    running = [start([*common, f"{node}.key"], desk, **pipes) for node in nodes]
    said = [process.communicate(timeout=240) for process in running]
    return [(process.returncode, *words) for process, words in zip(running, said, strict=True)]


@pytest.mark.sockets
def test_machines_measure_their_links_to_each_other(desk: Path) -> None:
    for node, (code, out, err) in enumerate(survey(desk, range(3))):
        assert code == 0, out + err
        rows = [line.split() for line in out.splitlines()[1:3]]
        assert [row[0] for row in rows] == [str(other) for other in range(3) if other != node]
        assert all("MB/s" in row for row in rows) and "simulation = { latency = " in out


@pytest.mark.sockets
def test_a_machine_that_is_not_there_is_said_so(desk: Path) -> None:
    for code, out, err in survey(desk, (0, 2), "--wait", "8"):
        assert code == 3, err
        assert re.search(r"^1 .*no answer", out, re.MULTILINE) and out.count("MB/s") == 1


@pytest.mark.sockets
def test_what_cannot_be_measured_is_a_line_and_an_advice(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_process(["doctor", "--endpoints", "endpoints.toml"], desk, monkeypatch, capsys)
    assert said.code == 2 and "is for --links" in said.err
    in_process(["keys", "new", "--id", "9", "--client", "--out", "other.key"], desk, monkeypatch, capsys)
    words = ["doctor", "--links", "--endpoints", "endpoints.toml", "--key"]
    said = in_process([*words, "other.key"], desk, monkeypatch, capsys)
    assert said.code == 2 and "has your key in no block" in said.errors[0]
    said = in_process([*words, "0.key", "--wait", "0.2"], desk, monkeypatch, capsys)
    assert said.code == 3 and "none of [1, 2] is there" in said.errors[0]
