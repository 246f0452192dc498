"""Training loops as clients of a coordinator, each a process of its own as on several machines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Output, finish, free_ports, in_process, start, typed

from fedgossip.net.endpoints import block, signed
from fedgossip.net.identity import Identity

pytestmark = pytest.mark.sockets

CLIENTS = 3
EXPERIMENT = """
rounds = 3
task.kind = "loop"
train.local_steps = 2
coordinator.clients = 3
"""
SCRIPT = """
import sys
import torch
import fedgossip

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
node = int(sys.argv[1])
where = dict(endpoints="endpoints.toml", key=f"{node}.key", out=f"out{node}")
peer = fedgossip.join(model, optimizer, "fed.toml", node=node, **where)
draw = torch.Generator().manual_seed(peer.node)
while not peer.done:
    loss = model(torch.randn(8, 3, generator=draw)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    peer.step(examples=8)
peer.close()
print([round(value, 6) for value in model.weight.flatten().tolist()])
"""


@pytest.fixture
def folder(tmp_path: Path, no_compiler: None) -> Path:
    (tmp_path / "fed.toml").write_text(EXPERIMENT)
    (tmp_path / "train.py").write_text(SCRIPT)
    (port,) = free_ports(1)
    blocks = []
    for node in range(CLIENTS + 1):
        identity = Identity.new()
        identity.save(tmp_path / f"{node}.key")
        address = f"tcp://127.0.0.1:{port}" if node == CLIENTS else ""
        blocks.append(block(node, signed(identity, address)))
    (tmp_path / "endpoints.toml").write_text("\n".join(blocks))
    return tmp_path


def client(folder: Path, node: int) -> subprocess.Popen[str]:
    words = [sys.executable, "train.py", str(node)]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
def test_loops_are_clients_of_a_coordinator_on_another_machine_and_their_run_is_collected(folder: Path) -> None:
    words = ["coordinator", "fed.toml", "--endpoints", "endpoints.toml", "--key", f"{CLIENTS}.key", "--out", "out"]
    leading = start([*words, "--script", "train.py 0"], folder)
    said: list[Output] = [finish(one) for one in [client(folder, node) for node in range(CLIENTS)]]
    led = finish(leading)
    assert [led.code, *(one.code for one in said)] == [0, 0, 0, 0], led.err + said[0].err
    assert len({one.out for one in said}) == 1 and said[0].out.startswith("[")  # the run's last model, at all
    collected = typed(["collect", "fed.toml", "out", "--json", "--out", "whole"], folder)
    assert collected.code == 0, collected.err
    summary = json.loads(collected.out)
    assert summary["status"] == "finished" and summary["rounds"] == 3 and summary["secure"]


@pytest.mark.parametrize(
    ("script", "error", "code"),
    [
        ("", "each participant has a training loop", 2),
        ("nowhere.py", "nowhere.py: no such file", 2),
        ("never.py", "never.py ended before it joined", 2),
        ("raises.py", "raises.py raised ZeroDivisionError before it joined: division by zero", 5),
    ],
)
def test_a_script_that_shows_a_coordinator_no_model_is_a_line_and_an_advice(
    script: str, error: str, code: int, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (folder / "never.py").write_text("import fedgossip\n")
    (folder / "raises.py").write_text("1 / 0\n")
    words = ["coordinator", "fed.toml", "--endpoints", "endpoints.toml", "--key", f"{CLIENTS}.key", "--out", "out"]
    said = in_process([*words, "--script", script], folder, monkeypatch, capsys)
    assert said.code == code and error in said.errors[0]
    assert not (folder / "out").exists()
