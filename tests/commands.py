"""The real command line: in this process where only words are judged, as a process of its own where signals are."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedgossip.cli import main

COMMAND = (sys.executable, "-m", "fedgossip")

started: list[subprocess.Popen[str]] = []
"""What the test that runs has started with `start`."""


@dataclass(frozen=True)
class Output:
    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


def in_process(
    arguments: Sequence[str], cwd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Output:
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", ["fedgossip", *arguments])
    monkeypatch.delenv("FEDGOSSIP_TRACEBACK", raising=False)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return Output(int(ended.value.code or 0), said.out, said.err)


def typed(arguments: Sequence[str], cwd: Path) -> Output:
    """Run it in this process, where no fixture is at hand."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(SystemExit) as ended,
    ):
        patch.setattr(sys, "argv", ["fedgossip", *arguments])
        patch.delenv("FEDGOSSIP_TRACEBACK", raising=False)
        main()
    return Output(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def start(
    arguments: Sequence[str], cwd: Path, command: Sequence[str] = COMMAND, **options: object
) -> subprocess.Popen[str]:
    """Start it in a process group of its own, as a shell does."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command, *arguments], cwd=cwd, start_new_session=True, **{**pipes, **options})  # type: ignore[call-overload]
    started.append(process)
    return process  # type: ignore[no-any-return]


def end_what_is_left() -> None:
    """End what the test has started and close its pipes: found later, they would be the failure of another test."""
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


HANG_SECONDS = 300.0
"""What has not ended by then hangs.  How long a process takes belongs to the machine; a test claims what it did."""


def finish(process: subprocess.Popen[str], seconds: float = HANG_SECONDS) -> Output:
    """Wait for its end; one that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"still running after {seconds} s; it said: {err[-2000:]}")
    return Output(process.returncode, out, err)


def wait_until(true: Callable[[], object], seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether the process runs: a zombie that waits for its parent to look does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    try:
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def free_ports(count: int) -> list[int]:
    holders = [socket.socket() for _ in range(count)]
    try:
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [holder.getsockname()[1] for holder in holders]
    finally:
        for holder in holders:
            holder.close()


def experiment(
    folder: Path, *, n: int = 4, rounds: int = 3, graph: str = "ring", more: str = "", top: str = ""
) -> Path:
    """Write an experiment that only averages: no torch, milliseconds per round."""
    path = folder / "experiment.toml"
    text = f'seed = 1\nrounds = {rounds}\n{top}\n[topology]\ngraph = "{graph}"\nn = {n}\n'
    path.write_text(text + f'[task]\nkind = "averaging"\ndim = 5\n{more}')
    return path


def no_secrets_in(folder: Path) -> bool:
    """Whether no file of a folder holds a secret key, or a key pair."""
    return not any(b"secret =" in path.read_bytes() for path in folder.rglob("*") if path.is_file())
