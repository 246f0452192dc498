"""Sites with tables of their own that fit a model together: their experiment file, and a process for each of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from commands import COMMAND, Said, finish, free_ports, start, typed

SITES = 5


def own_tables(name: str, query: str, *, agreed: str = "", source: str = "", more: str = "", least: int = 3) -> str:
    """Return an experiment on a table of each site's own, `query` saying of its columns; `source`: of the model."""
    model = f'[model]\nsource = "{source}"\n' if source else ""
    return f"""
name = "{name}"
[data]
source = "csv:site-{{peer}}.csv?{query}"
test = "csv:test.csv?{query}"
partition = {{ kind = "own" }}
scale = "federated"
categories = "agreed"
agreed = "{agreed or name}.json"
{more}
{model}
[coordinator]
clients = {SITES}
min_clients = {least}
"""


def machines(folder: Path, where: Path, files: Sequence[str]) -> list[Path]:
    """Return a folder for each site, and the coordinator's: a key, everybody's, `files`, and the site's own table."""
    (port,) = free_ports(1)
    found, keys = [where / f"machine{node}" for node in range(SITES + 1)], []
    for node, machine in enumerate(found):
        machine.mkdir()
        for name in (*files, *([f"site-{node}.csv"] if node < SITES else [])):
            shutil.copy(folder / name, machine)
        at = ["--client"] if node < SITES else ["--address", f"tcp://127.0.0.1:{port}"]
        keys.append(typed(["keys", "new", "--id", str(node), *at], machine).out)
    for machine in found:
        (machine / "endpoints.toml").write_text("\n".join(keys))
    return found


def fit_on(found: Sequence[Path], name: str, *more: str, dies: Mapping[int, int] | None = None) -> list[Said]:
    """Fit NAME.toml with a process on each machine; site k kills itself in round `dies[k]`, counted from 0."""
    running: list[subprocess.Popen[str]] = []
    for node, machine in enumerate(found):
        words = ["fit", f"{name}.toml", "--endpoints", "endpoints.toml", "--out", "log", "--to", "fit", *more]
        words += ["--id", str(node)] if node < SITES else []
        ends = (dies or {}).get(node)
        dying = [sys.executable, str(Path(__file__).with_name("dying_site.py")), str(ends)]
        running.append(start(words, machine, COMMAND if ends is None else dying))
    return [finish(one) for one in running]
