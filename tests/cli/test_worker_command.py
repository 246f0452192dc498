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


COPIED = """
rounds = 3
task = { kind = "quadratic", dim = 40 }
[parallel]
method = "parameter-server"
workers = 2
server = { servers = 2, replication = 2, virtual_nodes = 4 }
"""
MAPREDUCE = """
rounds = 3
task = { kind = "quadratic", dim = 5 }
[parallel]
method = "mapreduce"
workers = 2
"""

Commands = list[list[str]]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with the experiments, five keys, and the endpoints that `fedgossip keys new` has printed."""
    for name, content in (("ring", EXPERIMENT), ("copied", COPIED), ("mr", MAPREDUCE)):
        (tmp_path / f"{name}.toml").write_text(content)
    blocks = []
    for node, port in enumerate(free_ports(5)):
        words = ["keys", "new", "--id", str(node), "--address", f"tcp://127.0.0.1:{port}", "--out", f"{node}.key"]
        blocks.append(in_process(words, tmp_path, monkeypatch, capsys).out)
    (tmp_path / "five.toml").write_text("\n".join(blocks))
    (tmp_path / "three.toml").write_text("\n".join(blocks[:3]))
    return tmp_path


def by_hand(desk: Path, experiment: str, endpoints: str, commands: Commands) -> tuple[list[str], list[str]]:
    """Start the participants in the order of their ids; return what each said, and their folders."""
    running = []
    for node, (command, *more) in enumerate(commands):
        words = [command, experiment, *more, "--endpoints", endpoints, "--key", f"{node}.key", "--out", f"out{node}"]
        running.append(start(words, desk, stdout=subprocess.DEVNULL))
    told = [process.communicate(timeout=SECONDS)[1] for process in running]
    assert [process.returncode for process in running] == [0] * len(commands), told
    return told, [f"out{node}" for node in range(len(commands))]


RING = [["worker", "--id", str(node)] for node in range(WORKERS)]
SERVED = [
    ["worker", "--id", "0"],
    ["worker", "--id", "1"],
    ["server", "--id", "2"],
    ["server", "--id", "3"],
    ["manager"],
]
MAPPED = [["worker", "--id", "0"], ["worker", "--id", "1"], ["server"]]


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("experiment", "endpoints", "commands", "leads"),
    [
        ("ring.toml", "three.toml", RING, ""),
        ("copied.toml", "five.toml", SERVED, ""),
        ("mr.toml", "three.toml", MAPPED, "2"),
    ],
    ids=["ring", "servers", "mapreduce"],
)  # fmt: skip
def test_participants_started_by_hand_end_with_the_digest_of_run(
    experiment: str, endpoints: str, commands: Commands, leads: str, desk: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    told, folders = by_hand(desk, experiment, endpoints, commands)
    real = in_process(
        ["collect", experiment, *([f"out{leads}"] if leads else folders), "--json"], desk, monkeypatch, capsys
    )
    simulated = in_process(["run", experiment, "--no-report", "--json"], desk, monkeypatch, capsys)
    assert json.loads(real.out)["digest"] == json.loads(simulated.out)["digest"] is not None, real.err
    if not leads:
        assert "all-workers/worker0" in told[0] and COMMAND[-1] in told[0]


@pytest.mark.parametrize(
    ("words", "error", "advice"),
    [
        (["worker", "ring.toml", "--id", "3"], "there is no worker 3", "0 to 2"),
        (["worker", "gossip.toml", "--id", "0"], "has no [parallel]", "fedgossip peer"),
        (["peer", "ring.toml", "--id", "2"], "it has a [parallel]", "fedgossip worker --id 2"),
        (["worker", "ring.toml", "--id", "0"], "there is no entry for [2]", "one [[peer]] block for each"),
        (["server", "ring.toml"], "the run has no server: ring is 3 workers", "fedgossip worker --id 0 to 2"),
        (["server", "copied.toml"], "the run has 2 servers", "--id, 2 to 3"),
        (
            ["server", "copied.toml", "--id", "1"],
            "participant 1 is worker 1, and no server",
            "fedgossip server --id 2 to 3",
        ),
        (["worker", "copied.toml", "--id", "4"], "participant 4 is manager, and no worker", "fedgossip manager"),
        (["manager", "mr.toml"], "the run has no manager", "fedgossip server --id 2"),
    ],
    ids=["number", "gossip", "peer", "endpoints", "no server", "which", "worker", "manager", "no manager"],
)
def test_what_is_no_workers_is_a_line_and_an_advice(
    words: list[str], error: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, content in (("ring", EXPERIMENT), ("copied", COPIED), ("mr", MAPREDUCE)):
        (tmp_path / f"{name}.toml").write_text(content)
    (tmp_path / "gossip.toml").write_text('topology = { graph = "ring", n = 3 }\n')
    block = "[[peer]]\nid = {}\naddress = 'tcp://127.0.0.1:1'\nkey = '{}'\n"
    keys = ("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID")
    (tmp_path / "endpoints.toml").write_text("".join(block.format(*one) for one in enumerate(keys)))
    said = in_process([*words, "--endpoints", "endpoints.toml"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and error in said.errors[0] and advice in said.err.splitlines()[-1], said.err
