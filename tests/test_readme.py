"""Every command, file and snippet that README.md shows really works, in the order in which it is read.

An HTML comment before a block says what is special about it: `file: NAME` writes it to that file for what follows,
`each machine` runs it for three machines on loopback addresses, `skip: REASON` leaves it out.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

import fedgossip
from fedgossip.cli import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COORDINATOR = (ROOT / "docs" / "coordinator.md").read_text()
PARALLEL = (ROOT / "docs" / "parallel.md").read_text()
MACHINES = 3

BLOCK = re.compile(
    r"(?:^ *<!-- (?P<note>.*?) -->\n)?^(?P<indent> *)```(?P<kind>\w+)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    kind: str
    note: str
    text: str
    line: int


def blocks(page: str = README) -> list[Block]:
    return [
        Block(m["kind"], m["note"] or "", dedent(m["text"]), page.count("\n", 0, m.start("kind")) + 1)
        for m in BLOCK.finditer(page)
    ]


class Reader:
    """Someone who types what README says, in one folder, and on three machines where it says so.

    Commands of one machine run in this process, which has torch loaded already; peers are processes of their own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machines = [folder / f"machine{number}" for number in range(MACHINES)]
        self.ports = _free_ports(MACHINES)
        self.keys: list[str] = []

    def follow(self, block: Block) -> None:
        named = block.note.removeprefix("file: ") if block.note.startswith("file: ") else None
        if named:
            (self.folder / named).write_text(block.text)
        match block.kind:
            case "sh" if block.note == "each machine":
                self._on_each_machine(block)
            case "sh":
                for line in block.text.splitlines():
                    typed(line)
            case "python" if not named:  # a named one is used by the next command
                exec(compile(block.text, f"README.md, line {block.line}", "exec"), {"__name__": "__main__"})
            case "toml":
                assert named, f"line {block.line}: which file is this?"
                fedgossip.load_experiment(self.folder / named)

    def _on_each_machine(self, block: Block) -> None:
        for machine in self.machines:
            machine.mkdir(exist_ok=True)
            shutil.copy(self.folder / "lan.toml", machine)
            if self.keys:
                (machine / "endpoints.toml").write_text("\n".join(self.keys))
        processes = [_started(self._changed(block.text, k), machine) for k, machine in enumerate(self.machines)]
        self.keys = [_ended(process, block.text) for process in processes]
        for k, machine in enumerate(self.machines):
            if (machine / f"peer{k}").is_dir():
                shutil.copytree(machine / f"peer{k}", self.folder / f"peer{k}")

    def _changed(self, text: str, machine: int) -> str:
        """Return the command of machine 0 as another machine's: its id, its folder, a port of this computer."""
        text = text.replace("192.168.1.10:5700", f"127.0.0.1:{self.ports[machine]}")
        return text.replace("--id 0", f"--id {machine}").replace("peer0", f"peer{machine}")


def typed(line: str) -> None:
    """Run one command line as the shell would; only `fedgossip` has a place in README's blocks."""
    program, *words = shlex.split(line, comments=True)
    assert program == "fedgossip", line
    found = [sorted(map(str, Path().glob(word))) if "*" in word else [word] for word in words]
    assert not cli([word for one in found for word in one], standalone_mode=False), line


def _started(text: str, folder: Path) -> subprocess.Popen[str]:
    _, *words = shlex.split(text)
    command = [sys.executable, "-W", "error", "-m", "fedgossip", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _ended(process: subprocess.Popen[str], what: str) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, f"{what}\n{out}{err}"
    return out


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.mark.sockets
@pytest.mark.anywhere
@pytest.mark.timeout(600)  # it bounds a hang of many commands
def test_everything_that_the_readme_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    for block in blocks():
        if not block.note.startswith("skip: ") and block.kind != "text":
            reader.follow(block)
    runs = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/summary.json")]
    first = {run["driver"]: run["digest"] for run in runs if run["name"] == "first" and run["rounds"] == 20}
    assert {"sim", "local", "stacked"} <= set(first)
    (lan,) = (run for run in runs if run["graph"] == "ring" and run["n"] == MACHINES)
    assert lan["digest"] == fedgossip.simulate(tmp_path / "lan.toml").digest
    assert (tmp_path / "both.html").exists()


@pytest.mark.sockets
@pytest.mark.anywhere
@pytest.mark.timeout(600)  # it bounds a hang of many commands
def test_everything_that_the_page_on_workers_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    for block in blocks(PARALLEL):
        if not block.note.startswith("skip: "):
            reader.follow(block)
    summaries = [json.loads(path.read_text()) for path in tmp_path.rglob("summary.json")]
    for method in ("ring", "parameter-server"):
        digests = [one["digest"] for one in summaries if one["algorithm"] == method]
        assert len(digests) >= 3 and len(set(digests)) == 1, "simulated, on arrays and as processes"


def test_only_blocks_with_a_reason_are_left_out() -> None:
    left_out = [block for block in blocks() if block.note.startswith("skip:")]
    begin = [block.text.split()[:2] for block in left_out]
    words = ("make demo", "fedgossip host", "fedgossip peer", "fedgossip keys", "fedgossip keys")
    assert begin == [word.split() for word in words]
    assert all(len(block.note) > len("skip: because") for block in left_out)
    assert {block.kind for block in blocks()} == {"sh", "python", "toml", "text"}


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize("word", ["revolutionary", "blazing", "seamless", "powerful", "cutting-edge", "effortless"])
def test_the_readme_describes_and_does_not_praise(word: str) -> None:
    assert word not in README.lower()
