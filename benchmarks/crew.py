"""A crew of processes that measure something together: forked, introduced to each other, their answers collected."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

SECONDS = 120.0
"""How long a member may take to answer before the measurement is given up."""


@dataclass(frozen=True)
class Seat:
    """One member's place: who it is, how many there are, and the way to hear from all others."""

    node: int
    n: int
    pipe: Connection

    @property
    def neighbours(self) -> tuple[int, int]:
        """The two neighbours on the ring."""
        return (self.node - 1) % self.n, (self.node + 1) % self.n

    def meet(self, word: object) -> list[Any]:
        """Tell all others `word`; return everybody's, by node.  Everybody is here when it returns."""
        self.pipe.send(word)
        return self.pipe.recv()


@dataclass
class Watch:
    """One member's account: when each round ended, and what the counted rounds cost."""

    warm: int
    ends_ns: list[int] = field(default_factory=list)
    _cpu: float = 0.0
    _faults: int = 0

    def lap(self) -> None:
        """A round is behind; the rounds after the `warm` first are counted."""
        self.ends_ns.append(time.monotonic_ns())  # one clock for all processes of a machine
        if len(self.ends_ns) == self.warm:
            self._cpu, self._faults = _cpu_seconds(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def measured(self, bytes_a_round: int) -> Measured:
        counted = len(self.ends_ns) - self.warm
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - self._faults
        return Measured(self.ends_ns[self.warm - 1 :], _cpu_seconds() - self._cpu, counted * bytes_a_round, faults)


@dataclass
class Measured:
    """What a member hands in: ends of counted rounds (the first entry is their start), CPU seconds, bytes sent."""

    ends_ns: list[int]
    cpu_seconds: float
    bytes_sent: int
    faults: int
    peak_above_idle: int | None = None


def _cpu_seconds() -> float:
    return time.process_time()  # of all threads


def crew(n: int, work: Callable[[Seat], Measured]) -> list[Measured]:
    """Run `work` in n forked processes; return what they measured, by node."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(n)]
    members = [context.Process(target=_member, args=(work, Seat(i, n, pipes[i][1]))) for i in range(n)]
    for member in members:
        member.start()
    try:
        measured = _serve([ours for ours, _ in pipes])
        for member in members:
            member.join(timeout=10)
        return measured
    finally:
        for member in members:
            member.kill()


def _member(work: Callable[[Seat], Measured], seat: Seat) -> None:
    try:
        seat.meet(work(seat))
    except Exception as error:
        seat.pipe.send(error)
        raise


def _serve(pipes: Sequence[Connection]) -> list[Measured]:
    while True:
        words = []
        for pipe in pipes:
            if not pipe.poll(SECONDS):
                raise TimeoutError(f"a member did not answer within {SECONDS:g} s")
            words.append(pipe.recv())
            if isinstance(words[-1], Exception):
                raise words[-1]
        for pipe in pipes:
            pipe.send(words)
        if isinstance(words[0], Measured):
            return words


def round_ms(members: Sequence[Measured]) -> list[float]:
    """Return the milliseconds of each counted round: from the last member's end to the last member's next end."""
    ends = [max(at) for at in zip(*(m.ends_ns for m in members), strict=True)]
    return [(after - before) / 1e6 for before, after in pairwise(ends)]


@dataclass(frozen=True)
class SettlingRun:
    """Counted rounds of another program: the milliseconds of each, and the CPU seconds of all its processes."""

    ms: list[float]
    cpu_seconds: float


def rounds_elsewhere(python: str, script: str, **options: int) -> SettlingRun:
    """Return what a script beside this one prints; another Python runs it, which has the program that it measures.

    For programs that are none of our dependencies.  Raises CalledProcessError where it fails.
    """
    command = [python, str(Path(__file__).with_name(script))]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return SettlingRun(**json.loads(done.stdout.splitlines()[-1]))


def machine() -> str:
    """Return the cores and the model of the processor: what a reader needs to compare, and no more."""
    model = platform.processor() or platform.machine()
    about = Path("/proc/cpuinfo")
    if about.exists():
        names = [line.split(":")[1].strip() for line in about.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    return f"{os.cpu_count()} cores, {model}, Python {platform.python_version()}"


# --- memory ---------------------------------------------------------------------------------------------------------

_STATUS = Path("/proc/self/status")


def resident_bytes() -> int | None:
    """Return what this process holds in memory of its own now, or None where the system does not tell.

    Without pages of files: code of a library that is used for the first time is no data, and 6 MB beside models of 4.
    """
    return _own("VmRSS")


def forget_peak() -> None:
    """Begin the peak anew (Linux; elsewhere `peak_bytes` gives None)."""
    if _STATUS.exists():
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int | None:
    """Return the most that this process has held since `forget_peak`, or None where the system does not tell."""
    return _own("VmHWM")


def _own(name: str) -> int | None:
    """Return one of the sums without pages of files, of which there are the most at the end."""
    total, of_files = _status(name), _status("RssFile")
    return None if total is None or of_files is None else total - of_files


def _status(name: str) -> int | None:
    if not _STATUS.exists():
        return None
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line)
    return int(fields[name].split()[0]) * 1024 if name in fields else None


__all__ = ["Measured", "Seat", "Watch", "crew", "machine", "median", "round_ms", "rounds_elsewhere"]
