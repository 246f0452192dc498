"""The files of examples/deploy: read as systemd, Docker and compose would, and their very commands run.

What was not tried: an image was never built (no daemon is here), and the unit was never started by systemd.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands import free_ports

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
UNIT = DEPLOY / "fedgossip-client.service"
NOBODY = 65534


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return services


def unit() -> dict[str, list[str]]:
    """Every key of the unit, with all its values."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_the_unit_is_hardened_and_says_goodbye() -> None:
    told = unit()
    for key, value in {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "",
                       "RestrictNamespaces": "yes", "KillSignal": "SIGTERM"}.items():  # fmt: skip
        assert told[key] == [value]
    assert told["User"] == ["fedgossip"] and "root" not in UNIT.read_text()


@pytest.mark.sockets
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_reads_the_unit_and_finds_little_exposed(tmp_path: Path) -> None:
    said = [
        subprocess.run(["systemd-analyze", *words, str(UNIT)], capture_output=True, text=True, check=False, timeout=60)
        for words in (["verify"], ["security", "--offline=true", "--threshold=20"])
    ]
    if any("Unknown" in one.stderr or "unrecognized" in one.stderr for one in said):
        pytest.skip("an old systemd-analyze")
    ours = [line for line in said[0].stderr.splitlines() if UNIT.name in line and "not executable" not in line]
    assert not ours and said[1].returncode == 0, said[0].stderr + said[1].stdout[-500:]


def test_the_image_runs_as_nobody_in_particular_and_fetches_no_address() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    steps = [line.split(maxsplit=1) for line in lines if re.match("[A-Z]+ ", line)]
    told = dict(steps)
    assert int(told["USER"]) > 1000 and [name for name, _ in steps].index("USER") < [n for n, _ in steps].index(
        "WORKDIR"
    )
    assert json.loads(told["ENTRYPOINT"]) == ["take-part"] and json.loads(told["CMD"])[1] == "client"
    assert not re.search("https?:|curl|wget|ADD ", "\n".join(lines))
    for source in re.findall(r"^COPY (?:--\S+ )*(\S+)", "\n".join(lines), re.MULTILINE):
        assert (DEPLOY.parents[1] / source).exists()


def test_every_service_is_confined_and_has_a_part_of_its_own() -> None:
    services = compose()
    assert list(services) == ["coordinator", "client-0", "client-1", "client-2"]
    for name, service in services.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["tmpfs"] == ["/tmp"]
        assert service["volumes"] == [f"${{SITE:-../../site}}/{name}:/work"] and "ports" not in service


@pytest.mark.sockets
def test_the_same_line_begins_and_goes_on(tmp_path: Path) -> None:
    """take-part.sh, with a fedgossip that only says what it was asked."""
    told = tmp_path / "fedgossip"
    told.write_text('#!/bin/sh\necho "$@"\n')
    told.chmod(0o755)
    words = ["sh", str(DEPLOY / "take-part.sh"), "a run", "client", "x.toml", "--id", "0"]
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    asked = [subprocess.run(words, env=path, cwd=tmp_path, capture_output=True, text=True, check=True).stdout]
    (tmp_path / "a run").mkdir()
    (tmp_path / "a run" / "incarnation").write_text("0")
    asked.append(subprocess.run(words, env=path, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert asked == ["client x.toml --id 0 --out a run\n", "client x.toml --id 0 --resume --out a run\n"]


CONFINED = f"""
set -e
site=$1 python=$2
shift 2
mount --bind "$site" "$site"
for top in $(dirname "$python" | cut -d/ -f1-2); do
    if [ "$top" = /root ]; then  # of its owner alone: what Python needs of it is shown, and nothing else
        mkdir -p "$site/python"
        mount --bind "$python" "$site/python"
        mount -t tmpfs -o mode=755 none /root
        mkdir -p "$python"
        mount --move "$site/python" "$python"
    fi
done
mount -o remount,bind,ro /
cd "$site"
exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""
"""Runs words as nobody, without any capability, in a file system that is read-only but for the folder `site`."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, int, dict[str, str]]]:
    """A folder that was prepared, the coordinator's port, and an environment in which `fedgossip` is ours."""
    (port,) = free_ports(1)
    folder = tmp_path / "site"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "ADDRESS": f"tcp://127.0.0.1:{port}"}
    subprocess.run(["sh", str(DEPLOY / "prepare.sh"), str(folder)], env=environment, check=True, timeout=120)
    yield folder, port, environment


def confined(words: list[str], folder: Path) -> list[str]:
    return ["unshare", "--mount", "sh", "-c", CONFINED, "sh", str(folder), sys.base_prefix, *words]


@pytest.mark.root
@pytest.mark.sockets
@pytest.mark.long
def test_the_commands_of_the_services_run_as_nobody_in_a_read_only_file_system(
    site: tuple[Path, int, dict[str, str]], tmp_path: Path
) -> None:
    folder, port, environment = site
    services = compose()
    if os.getuid() != 0:
        pytest.skip("needs root, to become nobody")
    for place in (tmp_path, *tmp_path.parents[:-1]):
        if place.stat().st_uid == os.getuid() and "pytest" in str(place):
            place.chmod(0o755)
    running = {}
    for name, service in services.items():
        own = folder / name
        (own / "tmp").mkdir()
        for path in (own, *own.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        words = [word.replace(":5700", f":{port}") for word in service["command"]]
        there = {**environment, "HOME": str(own), "TMPDIR": str(own / "tmp"), "MPLCONFIGDIR": str(own / "tmp")}
        line = confined(["sh", str(DEPLOY / "take-part.sh"), *words], own)
        running[name] = subprocess.Popen(line, cwd=own, env=there, stderr=subprocess.PIPE, text=True)
    try:
        said = {name: process.communicate(timeout=150)[1] for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
    if any("Permission denied" in text and "python" in text for text in said.values()):
        pytest.skip("nobody cannot reach this Python")
    assert {name: process.returncode for name, process in running.items()} == dict.fromkeys(services, 0), said
    assert (folder / "coordinator" / "run" / "model" / "model.json").stat().st_uid == NOBODY


def test_the_service_of_the_unit_runs_what_a_service_of_compose_runs() -> None:
    (line,) = unit()["ExecStart"]
    words = shlex.split(line.replace("${CLIENT_ID}", "0"))
    assert words[:2] == ["/bin/sh", "/opt/fedgossip/take-part.sh"]
    assert words[2:] == [str(word) for word in compose()["client-0"]["command"]]
