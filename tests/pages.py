"""Someone who types what a page of the documentation says, block by block, in one folder.

A line of `sh` is one of `fedgossip`, which runs in this process, of `python`, or `cd`.  An HTML comment before a block
says what is special about it: `file: NAME` writes it to that file for what follows, `each machine` runs it for three
machines on loopback addresses, `skip: REASON` leaves it out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from commands import free_ports

import fedgossip
from fedgossip.cli import cli
from fedgossip.lab.sweeps.grid import read_sweep

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
MACHINES = 3

BLOCK = re.compile(
    r"(?:^ *<!-- (?P<note>.*?) -->\n)?^(?P<indent> *)```(?P<kind>\w+)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL
)


def page(name: str) -> Path:
    """Return the place of a page of docs/."""
    return next((ROOT / "docs").rglob(f"{name}.md"))


@dataclass(frozen=True)
class Block:
    kind: str
    note: str
    text: str
    line: int

    @property
    def left_out(self) -> bool:
        return self.note.startswith("skip:")


def blocks(path: Path) -> list[Block]:
    return blocks_of(path.read_text())


def sections(path: Path) -> dict[str, str]:
    """Return the text of each section of a page, by its heading."""
    return dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", path.read_text(), re.MULTILINE | re.DOTALL))


def blocks_of(text: str) -> list[Block]:
    return [
        Block(m["kind"], m["note"] or "", dedent(m["text"]), text.count("\n", 0, m.start("kind")) + 1)
        for m in BLOCK.finditer(text)
    ]


class Reader:
    """Commands of one machine run in this process, which has torch loaded already; peers are processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machines = [folder / f"machine{number}" for number in range(MACHINES)]
        self.ports = free_ports(MACHINES)
        self.keys: list[str] = []

    def read(self, path: Path) -> None:
        for block in blocks(path):
            if not block.left_out and block.kind != "text":
                self.follow(block)

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
                exec(compile(block.text, f"line {block.line}", "exec"), {"__name__": "__main__"})
            case "toml":
                assert named, f"line {block.line}: which file is this?"
                (read_sweep if "\n[grid]\n" in block.text else fedgossip.load_experiment)(self.folder / named)

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


def typed(line: str, done: Sequence[int | None] = (0, None)) -> None:
    """Run one command line as the shell would."""
    program, *words = shlex.split(line, comments=True)
    if program == "cd":
        os.chdir(words[0])
        return
    if program == "python":
        subprocess.run([sys.executable, *words], check=True)
        return
    assert program == "fedgossip", line
    found = [sorted(map(str, Path().glob(word))) if "*" in word else [word] for word in words]
    assert cli([word for one in found for word in one], standalone_mode=False) in done, line


def _started(text: str, folder: Path) -> subprocess.Popen[str]:
    _, *words = shlex.split(text)
    command = [sys.executable, "-W", "error", "-m", "fedgossip", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _ended(process: subprocess.Popen[str], what: str) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, f"{what}\n{out}{err}"
    return out
