"""A closed terminal is Ctrl-C: what was learned is kept, and the run can go on."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import COMMAND, HANG_SECONDS, experiment, finish, free_ports, start, wait_until

pytestmark = [
    pytest.mark.sockets,
    pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there are no closed terminals here"),
]


class Terminal:
    """A command in a terminal of its own, which can be closed."""

    def __init__(self, *words: str, cwd: Path) -> None:
        self.master, slave = os.openpty()

        def take() -> None:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever starts the tests by nohup has them ignore it
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        pipes: Any = {"stdin": slave, "stdout": slave, "stderr": slave}
        command = [*COMMAND, *words]
        self.process = subprocess.Popen(command, cwd=cwd, start_new_session=True, preexec_fn=take, **pipes)  # noqa: PLW1509
        os.close(slave)

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
            self.master = -1


@contextlib.contextmanager
def terminal(*words: str, cwd: Path) -> Iterator[Terminal]:
    made = Terminal(*words, cwd=cwd)
    try:
        yield made
    finally:
        made.close()
        made.process.kill()
        made.process.wait()


def rounds_in(path: Path) -> int:
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return max((row["round"] for row in rows if row["kind"] in ("network", "peer")), default=0)


@pytest.mark.parametrize("driver", ["sim", pytest.param("local", marks=pytest.mark.long)])  # short: test_endings.py
def test_a_run_whose_terminal_is_closed_is_kept_and_goes_on(tmp_path: Path, driver: str) -> None:
    experiment(tmp_path, n=3, rounds=100_000)  # it cannot end before, on a loaded machine either
    with terminal("run", "experiment.toml", "--on", driver, "--out", "run", cwd=tmp_path) as shown:
        wait_until(lambda: rounds_in(tmp_path / "run" / "metrics.jsonl") > 30, HANG_SECONDS, "it learns")
        shown.close()
        assert shown.process.wait(HANG_SECONDS) == 129
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    again = finish(start(["run", "experiment.toml", "--out", "run"], tmp_path))
    assert again.code == 2 and "fedgossip run --resume run" in again.err


def test_a_peer_whose_terminal_is_closed_says_goodbye_and_is_kept(tmp_path: Path) -> None:
    experiment(tmp_path, n=2, rounds=100_000, graph="complete", more="[algorithm]\ndeadline = 5.0\n")
    blocks = []
    for node, port in enumerate(free_ports(2)):
        words = ["keys", "new", "--out", f"{node}.key", "--id", str(node), "--address", f"tcp://127.0.0.1:{port}"]
        blocks.append(finish(start(words, tmp_path)).out)
    (tmp_path / "endpoints.toml").write_text("\n".join(blocks))
    words = ["peer", "experiment.toml", "--endpoints", "endpoints.toml"]
    other = start([*words, "--id", "1", "--key", "1.key", "--out", "out1"], tmp_path)
    try:
        with terminal(*words, "--id", "0", "--key", "0.key", "--out", "out0", cwd=tmp_path) as shown:
            wait_until(lambda: rounds_in(tmp_path / "out0" / "metrics.jsonl") > 20, 60, "it learns")
            shown.close()
            assert shown.process.wait(60) == 129
        ended = json.loads((tmp_path / "out0" / "ended.json").read_text())
        assert ended["status"] == "interrupted" and ended["checkpoint"] > 20
        again = finish(start([*words, "--id", "0", "--key", "0.key", "--out", "out0"], tmp_path))
        assert again.code == 2 and "--resume" in again.err
    finally:
        other.kill()
        finish(other)


def test_nohup_is_heard(tmp_path: Path) -> None:
    experiment(tmp_path, n=3, rounds=300)
    said = subprocess.Popen(
        ["nohup", *COMMAND, "run", "experiment.toml", "--on", "sim", "--out", "run"], cwd=tmp_path,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: rounds_in(tmp_path / "run" / "metrics.jsonl") > 1, 60, "it learns")
    said.send_signal(signal.SIGHUP)
    assert said.wait(120) == 0
