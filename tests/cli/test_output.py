"""No reader, encoding, width or closed stream ends a command: what cannot be shown is lost, or shown otherwise."""

from __future__ import annotations

import errno
import importlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from commands import COMMAND, experiment, typed

from fedgossip.cli import COMMANDS, main
from fedgossip.cli.text import lasting, reader_left

LETTERS = "0.95\u202f± 0.01 → λ₂ “ring” 12\u202f345 ✓ \u2500\u2501 日本 \udcff"


class Pipe(io.RawIOBase):
    """A pipe whose reader leaves after some bytes, as `head` does."""

    def __init__(self, room: int, number: int = errno.EPIPE) -> None:
        self.room, self.number, self.taken = room, number, b""

    def write(self, content: Any, /) -> int:
        if len(self.taken) >= self.room:
            raise OSError(self.number, os.strerror(self.number))
        self.taken += bytes(content)
        return len(content)

    def writable(self) -> bool:
        return True


def on(pipe: Pipe, encoding: str) -> io.TextIOWrapper:
    return lasting(io.TextIOWrapper(io.BufferedWriter(pipe), encoding, "strict"))


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252", "ascii", "cp437", "koi8-r", "shift_jis"])
def test_each_encoding_takes_each_letter(encoding: str) -> None:
    pipe = Pipe(10_000)
    with on(pipe, encoding) as stream:
        stream.write(LETTERS)
    shown = pipe.taken.decode(encoding)
    assert shown.startswith("0.95") and "ring" in shown and "345" in shown
    assert "12?345" not in shown, "a narrow space is a space"


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.EBADF])
def test_what_nobody_reads_any_more_is_lost_and_no_error(number: int) -> None:
    pipe = Pipe(8, number)
    stream = on(pipe, "utf-8")
    for line in range(5):
        stream.write(f"line {line}\n")
        stream.flush()
    assert pipe.taken == b"line 0\nline 1\n" and reader_left(stream)
    stream.close()


def test_a_full_disk_is_an_error_once_and_nothing_at_the_end() -> None:
    stream = on(Pipe(0, errno.ENOSPC), "utf-8")
    stream.write("a result\n")
    with pytest.raises(OSError, match="No space"):
        stream.flush()
    stream.close()


# --- every command that prints --------------------------------------------------------------------------------------

PRINTING = [
    ["--help"], ["explain"], ["explain", "topology.graph"], ["explain", "7"], ["topology", "list"],
    ["topology", "show", "ring", "-n", "8"], ["topology", "compare", "ring", "complete", "-n", "8"],
    ["topology", "draw", "ring", "-n", "6"], ["privacy", "--help"], ["runs", "."], ["explain", "nothing"],
    ["run", "experiment.toml", "--no-report", "--out", "OUT"], ["run", "experiment.toml", "--dry-run"],
    ["watch", "done", "--once"], ["watch", "done"], ["report", "done"],
    ["init", "--help"], ["keys", "--help"], ["audit", "--help"], ["plan", "--help"], ["sweep", "--help"],
    ["run", "no such file"], ["table", "done"], ["evaluate", "done"], ["replay", "done"],
]  # fmt: skip
PRINTING += [[name, "--help"] for name in COMMANDS if name not in {words[0] for words in PRINTING}]
"""A line of each command; each prints something, some an error."""


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_group_has_whole_sentences(name: str) -> None:
    command: click.Command = getattr(importlib.import_module(COMMANDS[name][0]), name)
    listed = command.get_help(click.Context(command, info_name=name)).partition("Commands:")[2]
    assert "..." not in listed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("printing")
    experiment(made, n=4, rounds=3)
    assert typed(["run", "experiment.toml", "--no-report", "--out", "done"], made).code == 0
    return made


@pytest.fixture(scope="module")
def usual(folder: Path) -> list[int]:
    """Their exit codes on streams that take everything."""
    return [typed([one.replace("OUT", "whole") for one in words], folder).code for words in PRINTING]


STREAMS = {"pipe": ("utf-8", 1), "latin-1": ("latin-1", 1 << 20), "cp1252": ("cp1252", 1 << 20), "closed": ("utf-8", 0)}


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Pipe]:
    """Put output and error in the place of the process's own, as it would find them."""
    encoding, room = STREAMS[request.param]
    out = Pipe(room, errno.EBADF if room == 0 else errno.EPIPE)
    for name, pipe in (("stdout", out), ("stderr", Pipe(room))):
        stream = io.TextIOWrapper(io.BufferedWriter(pipe), encoding, "strict")
        for place in (name, f"__{name}__"):
            monkeypatch.setattr(sys, place, stream)
    yield out


@pytest.mark.parametrize("streams", STREAMS, indirect=True)
def test_each_command_ends_on_each_stream_as_on_one_that_takes_everything(
    streams: Pipe, usual: list[int], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del streams
    monkeypatch.chdir(folder)
    for place, words in enumerate(PRINTING):
        given = [str(tmp_path / str(place)) if word == "OUT" else word for word in words]
        assert _code(given, monkeypatch) == usual[place], words


def _code(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fedgossip", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("{} topology list | head -1 >first; exit ${{PIPESTATUS[0]}}", 0),
        pytest.param("{} explain slem >&-", 0, marks=pytest.mark.long),
        pytest.param("{} topology list >/dev/full", 2, marks=pytest.mark.long),
        ("PYTHONIOENCODING=latin-1 {} run experiment.toml --no-report --out OUT >out 2>err", 0),
        ("{} run experiment.toml --no-report --out OUT 0<&- >&- 2>&-", 0),
        pytest.param("COLUMNS=1 {} topology list >out", 0, marks=pytest.mark.long),
    ],
)
def test_a_process_ends_well_whatever_becomes_of_its_output(how: str, code: int, folder: Path, tmp_path: Path) -> None:
    line = how.format(" ".join(COMMAND)).replace("OUT", str(tmp_path / "out"))
    ended = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == code and "fault" not in ended.stderr and "Traceback" not in ended.stderr, ended
