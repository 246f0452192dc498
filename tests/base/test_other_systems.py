"""What a system without POSIX's modules can do: everything imports, the help is printed, a simulation runs.

Windows and macOS were not tried; here their lack is played in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedgossip.base import owner_files, signals
from fedgossip.base.errors import ConfigError
from fedgossip.drivers import peer_processes
from tests.commands import experiment

WITHOUT_POSIX = '''
import importlib, os, pkgutil, signal, sys

def every():
    """The names of all modules of the package that import on a machine with only what it needs."""
    import fedgossip
    for module in pkgutil.walk_packages(fedgossip.__path__, "fedgossip."):
        if not module.name.endswith("__main__"):
            yield module.name

lacking = set()
for name in list(every()):  # once as it is: what other libraries import of POSIX is theirs
    try:
        importlib.import_module(name)
    except Exception as error:  # an extra that is not installed is named by a ConfigError
        if not isinstance(error, ImportError) and type(error).__name__ != "ConfigError":
            raise
        lacking.add(name)

for name in [name for name in sys.modules if name.partition(".")[0] == "fedgossip"]:
    del sys.modules[name]
POSIX = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "spwd", "readline")

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name in POSIX:
            raise ImportError(f"no {name} here")

for name in POSIX:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Nothing())
for name in ("fork", "forkpty", "killpg", "getuid", "geteuid", "posix_spawn", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"):
    delattr(os, name)
for name in ("SIGKILL", "SIGSTOP", "SIGCONT", "SIGHUP"):
    delattr(signal, name)

count = 0
for name in every():
    if name not in lacking:
        importlib.import_module(name)
        count += 1
assert count > 350, count

from fedgossip.net.sockets import raise_open_files
assert raise_open_files() == sys.maxsize
from fedgossip.cli import main
for words in (["--help"], ["run", sys.argv[1], "--no-report", "--out", "run"], ["board", "--help"]):
    sys.argv = ["fedgossip", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
print("all of it")
'''


@pytest.mark.sockets
def test_nothing_imports_what_posix_alone_has_and_a_simulation_runs_without_it(tmp_path: Path) -> None:
    path = experiment(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX, str(path)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("all of it\n") and (tmp_path / "run" / "summary.json").exists()


def test_processes_of_one_run_are_refused_where_they_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_processes.os, "name", "nt")
    with pytest.raises(ConfigError, match="needs Linux or macOS") as caught:
        peer_processes.check_processes()
    assert "Simulate" in caught.value.advice


def test_one_holds_a_locked_file_at_a_time(tmp_path: Path) -> None:
    one, other = (owner_files.opened_to_lock(tmp_path / "held") for _ in range(2))
    with os.fdopen(one, "rb"), os.fdopen(other, "rb"):
        assert owner_files.try_lock(one)
        assert not owner_files.try_lock(other)
    with os.fdopen(owner_files.opened_to_lock(tmp_path / "held"), "rb") as third:
        assert owner_files.try_lock(third.fileno())


def test_a_lock_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        owner_files.opened_to_lock(tmp_path / "link")


def test_the_lock_of_a_byte_leaves_the_place_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Windows' call is asked for; the call itself is played."""
    asked: list[tuple[int, int]] = []

    class Windows:
        LK_NBLCK = 2

        @staticmethod
        def locking(file: int, mode: int, size: int) -> None:
            asked.append((mode, size))
            if len(asked) > 1:
                raise PermissionError

    def given(name: str) -> object:
        if name == "fcntl":
            raise ImportError
        return Windows

    monkeypatch.setattr(owner_files.importlib, "import_module", given)
    with os.fdopen(owner_files.opened_to_lock(tmp_path / "held"), "r+b") as file:
        assert owner_files.try_lock(file.fileno()) and file.tell() == 0
        assert not owner_files.try_lock(file.fileno()) and file.tell() == 0
    assert asked == [(2, 1)] * 2


def test_a_signal_that_the_system_lacks_is_a_number_that_does_not_come() -> None:
    assert len({signals.KILL, signals.SUSPEND, signals.GO_ON}) == 3
