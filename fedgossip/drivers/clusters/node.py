"""A task of a job: starts its participant on this node, publishes its address, and ends it with the job.

    python -m fedgossip.drivers.clusters.node RUN/cluster PROBE

The job's environment determines the participant.  On Slurm's SIGTERM before the end of its time it leaves with its
checkpoint on disk, and the job is queued again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from fedgossip.base import kernels, outside_files
from fedgossip.base.errors import ConfigError, FedgossipError, needed
from fedgossip.base.kernels import PYTHON
from fedgossip.core import run_format
from fedgossip.drivers.clusters.meeting import JobLife, check_shared, read_job
from fedgossip.net.relays.addresses import LOOPBACK, address_of_interface, address_towards, find_own_addresses
from fedgossip.runs.checkpoints import incarnation_of
from fedgossip.runs.peer_files import failed, try_to_report

LOOK_SECONDS = 0.05
"""Seconds between two looks at the folder."""

END_SECONDS = 20.0
"""Seconds for the participant, and for the others, to end on request before a stronger signal (Slurm's SIGKILL: after
30).
"""


def main(folder: Path, probe: str) -> int:
    """Run one participant to its end.  Raises ConfigError if this node does not see the folder of the run."""
    check_shared(folder, probe)
    environment = needed("submitit", "cluster", "a Slurm cluster").helpers.JobEnvironment()
    job, node = read_job(folder), int(environment.global_rank)
    life = JobLife(folder / f"{environment.job_id}-{os.environ.get('SLURM_RESTART_COUNT') or 0}", len(job.specs))
    life.begin(node)
    spec = job.specs[node]
    place = Path(spec["folder"])
    code = 1
    try:
        own = os.environ.get("SLURMD_NODENAME") or environment.hostname
        host = find_own_host(own, environment.hostnames, job.interface)
        again = bool(spec["resume"]) or incarnation_of(place) >= 0
        (place / run_format.ENDPOINT).unlink(missing_ok=True)  # of an earlier life, with another port
        more = {"endpoints": str(life.endpoints), "bind": f"tcp://{host}:*", "resume": again}
        child = start_participant({**spec, **more}, job.here, job.path, cpus=job.cpus, portable=job.portable)
        code = _accompany(child, node, life, folder, place / run_format.ENDPOINT)
        if code == -signal.SIGTERM:  # sent twice, by Slurm and by the launcher: the goodbye was sent at the first
            code = 130
    except FedgossipError as error:
        try_to_report(place, failed(error))
        code = error.exit_code
    finally:
        life.ended(node, code)
    if code == 130 and node == 0 and not (folder / run_format.STOP).exists():
        _requeue(environment.job_id, life)
    return 0  # no failure for Slurm: the participant's own end is in its folder


def _accompany(child: subprocess.Popen[bytes], node: int, life: JobLife, folder: Path, endpoint: Path) -> int:
    """Forward the stop request to the participant; return its exit code."""
    parent = os.getppid()
    asked = False
    kill_at = 0.0

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    for number in (signal.SIGTERM, signal.SIGUSR2):  # USR2: from submitit, before the end of the time
        signal.signal(number, ask)
    left = False
    while (code := child.poll()) is None:
        if not left and endpoint.exists():
            life.leave(node, outside_files.read_bytes(endpoint))
            left = True
        if node == 0:
            life.gather()
        if not kill_at and (asked or os.getppid() != parent or (folder / run_format.STOP).exists()):
            child.terminate()
            kill_at = time.monotonic() + END_SECONDS
        if kill_at and time.monotonic() > kill_at:
            child.kill()
        time.sleep(LOOK_SECONDS)
    return code


def _requeue(job: str, life: JobLife) -> None:
    """Requeue a job at the end of its time; Slurm requeues preempted ones."""
    until = time.monotonic() + END_SECONDS / 2
    while len(life.exits()) < life.count and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # submitit's own executor has no such commands
        words = ["squeue", "-h", "-j", job, "-o", "%T"]
        state = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        if state.stdout.strip() == "RUNNING":
            subprocess.run(["scontrol", "requeue", job], capture_output=True, timeout=30, check=False)


def start_participant(
    spec: Mapping[str, Any], here: str, path: Sequence[str], *, cpus: int, portable: bool
) -> subprocess.Popen[bytes]:
    """Start a participant; it sends a goodbye on SIGTERM, and when this process exits."""
    threads = {f"{library}_NUM_THREADS": str(cpus) for library in ("OMP", "OPENBLAS", "MKL")}
    words = [*PYTHON, "-m", "fedgossip.drivers.fork_server", msgspec.json.encode(spec).decode()]
    environment = {**kernels.environment(portable=portable), **threads, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd=here, env=environment)


def find_own_host(own: str, hosts: Sequence[str], interface: str = "") -> str:
    """Return this node's address for the others on `hosts`, of the interface with the route to the first.

    Raises ConfigError for an unknown interface.
    """
    if interface:
        found = address_of_interface(interface)
        if found is None:
            raise ConfigError(f"{own}: no network interface {interface} with an address", "Name another: --interface.")
        return found
    others = [host for host in hosts if host != own]
    if not others:
        return LOOPBACK
    towards = address_towards(f"tcp://{others[0]}:1", 1) or find_own_addresses(1)[0]
    return towards.removeprefix("tcp://").rpartition(":")[0]


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
    except FedgossipError as failure:  # the last line of the task's output; the launcher prints it
        sys.stderr.write(f"{failure}  {failure.advice}\n")
        sys.exit(failure.exit_code)
