"""The participants of a run as one Slurm job with one task each, by submitit, which pickles only a command's words."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fedgossip.base import outside_files, signals
from fedgossip.base.errors import ConfigError, FedgossipError, NetworkError, needed
from fedgossip.base.kernels import PYTHON
from fedgossip.core import run_format
from fedgossip.drivers.clusters.meeting import (
    LOCAL,
    SEEN_SECONDS,
    SLURM,
    JobLife,
    PlacedJob,
    Resources,
    probe_in,
    write_job,
)
from fedgossip.drivers.peer_processes import start_failure
from fedgossip.runs.run_directory import write_whole

LOOK_SECONDS = 2.0
"""Seconds between two queries to Slurm about the job."""

STOP_SECONDS = 40.0
"""Maximum seconds for all to end before the job is cancelled."""

PrintLine = Callable[[str], None]


class SlurmProcesses:
    """Participants as tasks of a job.  Raises ConfigError without submitit, Slurm or room."""

    driver, bind = SLURM, ""

    def __init__(self, count: int, wanted: Resources, *, portable: bool, print_line: PrintLine) -> None:
        self._submitit = needed("submitit", "cluster", "a Slurm cluster")
        self._here = wanted.partition == LOCAL
        self.delay = 0.0 if self._here else SEEN_SECONDS
        self.exited: dict[int, int | None] = {}
        self._count, self._wanted, self._portable, self._report = count, wanted, portable, print_line
        self._specs: dict[int, dict[str, Any]] = {}
        self._job: Any = None
        self._folder = Path()
        self._state, self._looked, self._over_at = "", 0.0, 0.0
        _check_room(count, wanted, self._submitit)

    def start(self, spec: dict[str, Any]) -> None:
        """Queue a participant; `await_addresses` places all of them."""
        self._specs[spec["node"]] = spec

    def signal(self, node: int, number: int) -> None:
        """Do nothing: faults are refused on a cluster."""

    def submit(self, out: Path) -> str:
        """Submit the job, and return its number.  Raises ConfigError with Slurm's message."""
        self._folder = (out / run_format.CLUSTER).resolve()
        wanted = self._wanted
        specs = [{**self._specs[node], "wait_seconds": wanted.wait_seconds} for node in range(self._count)]
        path = [str(Path(p).resolve()) for p in sys.path if p]
        job = PlacedJob(specs, str(Path.cwd()), path, wanted.cpus, self._portable, wanted.interface)
        write_job(self._folder, job)
        command = [*PYTHON, "-m", "fedgossip.drivers.clusters.node", str(self._folder), probe_in(self._folder)]
        function = self._submitit.helpers.CommandFunction(command, verbose=False)
        executor = self._submitit.AutoExecutor(folder=self._folder, cluster=LOCAL if self._here else SLURM)
        executor.update_parameters(**_parameters(self._count, wanted))
        try:
            with _ignoring_terminal_signals(), path_of_ours():
                self._job = executor.submit(function)
        except self._submitit.core.utils.UncompletedJobError as error:
            advice = "`sinfo` lists what there is; name it with --partition, --nodes, --cpus, --minutes."
            raise ConfigError(f"Slurm refuses the job: {' '.join(str(error).split())}", advice) from None
        return str(self._job.job_id)

    def await_addresses(self, out: Path, folders: Sequence[Path]) -> None:
        """Submit the job, and wait until all of its participants have each other's addresses."""
        number = self.submit(out)
        self._report(f"job {number} of {'submitit, on this machine' if self._here else 'Slurm'}: {self._count} tasks")
        until = math.inf
        while (life := self._life) is None or not life.gathered:
            self.poll(0.1)
            if until == math.inf and self._state.startswith(("RUNNING", "COMPLETING")):
                until = time.monotonic() + self._wanted.start_seconds
            if self._over or time.monotonic() > until:
                raise self._not_seen(out) or start_failure(out, folders)
            if self.exited:
                raise start_failure(out, folders)

    def _not_seen(self, out: Path) -> FedgossipError | None:
        """Return the error of nodes that do not see the run's folder, or None."""
        missing = sorted(frozenset(range(self._count)) - (self._life.list_placed() if self._life else frozenset()))
        if not missing:
            return None
        logs = [path for path in sorted(self._folder.glob("*_log.err")) if path.stat().st_size]
        if logs:
            word = outside_files.read_text(logs[0], errors="replace").strip().splitlines()[-1]
            return NetworkError(f"participants {missing[:5]} were not started: {word}", f"All of it: {logs[0]}")
        text = f"{out}: the nodes of participants {missing[:5]} do not see this folder"
        return ConfigError(text, "Choose one on a disk that all nodes share, with --out.")

    @property
    def _life(self) -> JobLife | None:
        return JobLife.newest(self._folder, str(self._job.job_id), self._count) if self._job else None

    @property
    def _over(self) -> bool:
        return bool(self._over_at) and time.monotonic() - self._over_at > (0.5 if self._here else LOOK_SECONDS)

    def poll(self, timeout: float) -> None:
        """Check which participants have ended.  One stopped by Slurm has not: its job is queued."""
        time.sleep(timeout)
        self._ask()
        life, stopping = self._life, self._over or (self._folder / run_format.STOP).exists()
        exits = life.exits() if life else {}
        self.exited = {node: code for node, code in exits.items() if stopping or code != 130}
        if self._over:
            self.exited = {node: exits.get(node) for node in range(self._count)}

    def _ask(self) -> None:
        if self._over_at or time.monotonic() - self._looked < (0.0 if self._here else LOOK_SECONDS):
            return
        self._looked = time.monotonic()
        state = ("" if self._job.done() else "RUNNING") if self._here else _state(str(self._job.job_id))
        if state not in (self._state, None) and not self._here:
            self._report(f"job {self._job.job_id}: {state or 'has ended'}")
        if state is not None:
            self._state = state
        if state == "":
            self._over_at = time.monotonic()

    def stop(self) -> None:
        """End all participants with a goodbye, wait for them, and cancel the rest of the job."""
        if self._job is None:
            return
        if not self._over_at:
            write_whole(self._folder / run_format.STOP, b"")
            until = time.monotonic() + (STOP_SECONDS if self._life else 0.0)
            while time.monotonic() < until and not self._over_at and len(self.exited) < self._count:
                self.poll(0.1)
        if not self._here:
            self._job.cancel(check=False)
        elif self._wait(STOP_SECONDS):
            self._job._process.kill()
        job, self._job = self._job, None
        del job

    def _wait(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not (done := self._job.done()) and time.monotonic() < until:
            time.sleep(0.05)
        return not done

    def __enter__(self) -> SlurmProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def _parameters(count: int, wanted: Resources) -> dict[str, Any]:
    per_node = math.ceil(count / wanted.nodes)
    common = {"name": "fedgossip", "timeout_min": wanted.minutes, "tasks_per_node": per_node}
    if wanted.partition == LOCAL:
        return common
    # TERM, not submitit's USR2: participants send a goodbye, and the first task requeues the job
    more = {"ntasks": count, "signal": "TERM@60", "requeue": True}
    parameters = {
        **common, "nodes": wanted.nodes, "cpus_per_task": wanted.cpus, "slurm_additional_parameters": more,
        "slurm_srun_args": ["--kill-on-bad-exit=0", "--wait=0"],
    }  # fmt: skip
    return parameters | ({"slurm_partition": wanted.partition} if wanted.partition else {})


def _check_room(count: int, wanted: Resources, submitit: Any) -> None:
    if wanted.partition == LOCAL:
        if wanted.nodes > 1:
            text = f"--partition {LOCAL} is this machine: one node, not {wanted.nodes}"
            raise ConfigError(text, "Leave --nodes out.")
        return
    if submitit.SlurmExecutor.affinity() < 0:
        advice = f"Run it where sbatch is, or try it here with --partition {LOCAL}."
        raise ConfigError("no Slurm: there is no srun on this machine", advice)
    of = ["-p", wanted.partition] if wanted.partition else []
    try:
        listed = subprocess.run(
            ["sinfo", "-h", *of, "-o", "%C"], capture_output=True, text=True, timeout=15, check=True
        )
        slots = sum(int(line.split("/")[3]) for line in listed.stdout.splitlines())
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        lines = reason.strip().splitlines() or [type(error).__name__]  # the last line has the total
        text = f"Slurm does not answer: {' '.join(lines[-1].split())}"
        raise NetworkError(text, "Is slurmctld up?  `sinfo` shows it.") from None
    if slots and slots < count * wanted.cpus:  # sbatch reports a missing partition
        text = f"{count} participants of {wanted.cpus} processors each: {wanted.partition or 'Slurm'} has {slots}"
        raise ConfigError(text, "Ask for less with --cpus, or name another --partition.")


def _state(job: str) -> str | None:
    try:
        words = ["squeue", "-h", "-j", job, "-o", "%T %r"]
        listed = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if listed.returncode:
        return "" if "Invalid job id" in listed.stderr else None
    state, _, reason = listed.stdout.strip().partition(" ")
    if state in ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT"):
        return ""
    return f"{state} ({reason})" if state == "PENDING" and reason not in ("", "None") else state


@contextlib.contextmanager
def _ignoring_terminal_signals() -> Iterator[None]:
    """Start processes that ignore the terminal's signals, as this process passes them on."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in signals.OF_TERMINALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def path_of_ours() -> Iterator[None]:
    """Let the tasks find this package at its location here."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
