"""`fedgossip worker`: a parallel run over several machines, each process started by hand with a key and endpoints."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from commands import COMMAND, free_ports, in_process, start

SECONDS = 120.0
WORKERS = 3
EXPERIMENT = f"""
rounds = 3
task = {{ kind = "quadratic", dim = 5 }}
[parallel]
workers = {WORKERS}
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with the experiment, three keys, and the endpoints that `fedgossip keys new` has printed."""
    (tmp_path / "ring.toml").write_text(EXPERIMENT)
    blocks = []
    for node, port in enumerate(free_ports(WORKERS)):
        words = ["keys", "new", "--id", str(node), "--address", f"tcp://127.0.0.1:{port}", "--out", f"{node}.key"]
        blocks.append(in_process(words, tmp_path, monkeypatch, capsys).out)
    (tmp_path / "endpoints.toml").write_text("\n".join(blocks))
    return tmp_path


def words_of(node: int) -> list[str]:
    return ["worker", "ring.toml", "--id", str(node), "--endpoints", "endpoints.toml", "--key", f"{node}.key"]


@pytest.mark.sockets
def test_workers_started_by_hand_end_with_the_digest_of_run(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipes = {"stdout": subprocess.DEVNULL}
    running = [start([*words_of(node), "--out", f"out{node}"], desk, **pipes) for node in range(WORKERS)]
    told = [process.communicate(timeout=SECONDS)[1] for process in running]
    assert [process.returncode for process in running] == [0] * WORKERS, told
    folders = [f"out{node}" for node in range(WORKERS)]
    real = in_process(["collect", "ring.toml", *folders, "--json"], desk, monkeypatch, capsys)
    simulated = in_process(["run", "ring.toml", "--no-report", "--json"], desk, monkeypatch, capsys)
    assert json.loads(real.out)["digest"] == json.loads(simulated.out)["digest"] is not None
    assert "all-workers/worker0" in told[0] and COMMAND[-1] in told[0]


@pytest.mark.parametrize(
    ("words", "error", "advice"),
    [
        (["worker", "ring.toml", "--id", "3"], "there is no worker 3", "0 to 2"),
        (["worker", "gossip.toml", "--id", "0"], "has no [parallel]", "fedgossip peer"),
        (["peer", "ring.toml", "--id", "2"], "it has a [parallel]", "fedgossip worker --id 2"),
        (["worker", "ring.toml", "--id", "0"], "there is no entry for [2]", "one [[peer]] block for each"),
    ],
    ids=["number", "gossip", "peer", "endpoints"],
)
def test_what_is_no_workers_is_a_line_and_an_advice(
    words: list[str], error: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "ring.toml").write_text(EXPERIMENT)
    (tmp_path / "gossip.toml").write_text('topology = { graph = "ring", n = 3 }\n')
    block = "[[peer]]\nid = {}\naddress = 'tcp://127.0.0.1:1'\nkey = '{}'\n"
    keys = ("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID")
    (tmp_path / "endpoints.toml").write_text("".join(block.format(*one) for one in enumerate(keys)))
    said = in_process([*words, "--endpoints", "endpoints.toml"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and error in said.errors[0] and advice in said.err.splitlines()[-1], said.err
