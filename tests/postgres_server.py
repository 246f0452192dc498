"""A PostgreSQL server of our own on a socket in a temporary folder, where the machine has one installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

OWNER, PASSWORD = "owner", "Owner-5ecret"
READER, ITS_PASSWORD = "reader", "Reader-5ecret"
READY_SECONDS = 60


def binaries() -> Path | None:
    """Return the folder with initdb and postgres; None without."""
    usual = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda one: int(one.parent.name), reverse=True)
    found = shutil.which("initdb")
    return next(
        (one for one in [*([Path(found).resolve().parent] if found else []), *usual] if (one / "postgres").exists()),
        None,
    )


@contextlib.contextmanager
def postgres() -> Iterator[Path]:
    """Yield the folder of a running server's socket, PGHOST; its users have passwords, which nothing sends in clear.

    Skips where psycopg, or the server, is not installed.
    """
    pytest.importorskip("psycopg", reason="pip install 'fedgossip[postgresql]'")
    if (there := binaries()) is None:
        pytest.skip("no PostgreSQL server is installed on this machine")
    folder = Path(tempfile.mkdtemp(prefix="fg-pg-"))
    who: dict[str, Any] = {}
    if os.geteuid() == 0:  # which the server refuses to be
        who = {"user": "postgres" if _is_user("postgres") else "nobody", "extra_groups": []}
        shutil.chown(folder, who["user"])
    (folder / "password").write_text(PASSWORD)
    (folder / "password").chmod(0o644)
    run: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **who}
    with contextlib.ExitStack() as ends:
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        words = ["initdb", "-D", folder / "data", "-U", OWNER, "-A", "scram-sha-256", "--pwfile", folder / "password"]
        subprocess.run([there / words[0], *words[1:], "-E", "UTF8", "--no-sync"], check=True, timeout=120, **run)
        server = [there / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        one = subprocess.Popen(server, **run)
        ends.callback(one.wait, 30)
        ends.callback(one.send_signal, signal.SIGINT)  # fast: it does not wait for its clients
        until = time.monotonic() + READY_SECONDS
        while not _answers(folder):
            assert one.poll() is None and time.monotonic() < until, "the server does not start"
            time.sleep(0.05)
        yield folder


def _answers(host: Path) -> bool:
    import psycopg

    with contextlib.suppress(psycopg.OperationalError), owner(host):
        return True
    return False


def _is_user(name: str) -> bool:
    import pwd

    return any(one.pw_name == name for one in pwd.getpwall())


@contextlib.contextmanager
def owner(host: Path, database: str = "postgres") -> Iterator[Any]:
    """Yield a connection of the owner, each statement by itself."""
    import psycopg

    with contextlib.closing(
        psycopg.connect(host=str(host), dbname=database, user=OWNER, password=PASSWORD, autocommit=True)
    ) as found:
        yield found


def make_database(host: Path, name: str, *statements: str) -> None:
    """Make a database that READER may read."""
    with owner(host) as one:
        one.execute(f"CREATE DATABASE {name}")
        if not one.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [READER]).fetchone():
            one.execute(f"CREATE ROLE {READER} LOGIN PASSWORD '{ITS_PASSWORD}'")
    with owner(host, name) as one:
        for statement in statements:
            one.execute(statement)
        one.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {READER}")
