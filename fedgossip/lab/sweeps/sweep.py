"""Runs a sweep: refuses impossible combinations, starts workers, reports finished cells, and makes the table.

Workers (`folder.SweepFolder.work`) coordinate through the claims in the folder; a backend places them:

    local                 processes of this machine; a dead one is replaced, and a cell fails with the second death
    slurm:PARTITION       jobs, by submitit, which pickles its own `CommandFunction` with the words of a command
    ray:ADDRESS           commands on the nodes of a Ray cluster

The last two need nodes with access to the folder, and the extra `cluster`.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedgossip.base.errors import ConfigError, NetworkError, nearest, needed
from fedgossip.base.kernels import PYTHON
from fedgossip.drivers.clusters.meeting import LOCAL, SLURM, probe_in
from fedgossip.drivers.clusters.ray_cluster import END_SECONDS, RayCommand, connected
from fedgossip.drivers.clusters.slurm import path_of_ours
from fedgossip.lab.sweeps.cells import CellOutcome, holder
from fedgossip.lab.sweeps.folder import Ended, SweepFolder
from fedgossip.lab.sweeps.grid import SweepCell, SweepGrid, read_sweep
from fedgossip.lab.sweeps.table import SweepTable, table_of
from fedgossip.lab.sweeps.worker import words_of

BACKENDS = ("local", "ray:ADDRESS", "slurm:PARTITION")

LOOKS = 2000
"""Number of cells checked per second, while other processes run them."""

ReportCell = Callable[[SweepCell, CellOutcome], None]


class SweepWorkers(Protocol):
    """Workers of any backend."""

    def working(self) -> bool:
        """Return whether some still work.  Raises FedgossipError if none can."""
        ...

    def stop(self) -> None:
        """End them; their cells can be resumed later."""
        ...


def sweep(
    source: Path | str | Mapping[str, Any],
    out: Path | str | None = None,
    *,
    jobs: int = 1,
    backend: str = "local",
    limit_seconds: float | None = None,
    memory: int | None = None,
    overrides: Sequence[str] = (),
    engine: str | None = None,
    seeds: int | None = None,
    retry: bool = False,
    tell: ReportCell | None = None,
) -> SweepTable:
    """Run every unfinished cell of a sweep, and return the table of all.

    `source`: a sweep file, or such a mapping.  `out`: the folder, by default sweeps/NAME.  `jobs`: simultaneous
    workers; 1 is this process.  `backend`: local, ray:ADDRESS, slurm:PARTITION.  `limit_seconds`: until the last new
    cell.  `memory`: bytes that a worker may map.  `overrides`: "section.key=value" for the base; `engine` and `seeds`
    replace the file's.  `retry`: failed cells too.  `tell` is called with each finished cell.

    Other processes may run the same sweep at the same time; each cell is run once.  Raises ConfigError for an invalid
    sweep, before anything runs.
    """
    grid = read_sweep(source, overrides=overrides, engine=engine, seeds=seeds)
    place = folder_of(grid, out)
    return run_sweep(
        grid, place, jobs=jobs, backend=backend, limit_seconds=limit_seconds, memory=memory, retry=retry, tell=tell
    )


def run_sweep(
    grid: SweepGrid,
    place: Path,
    *,
    jobs: int = 1,
    backend: str = "local",
    limit_seconds: float | None = None,
    memory: int | None = None,
    retry: bool = False,
    tell: ReportCell | None = None,
) -> SweepTable:
    """Run an already parsed sweep, as `sweep`."""
    start = _backend(backend, jobs, memory)
    folder = SweepFolder.create(place, grid)
    if retry:
        folder.retry()
    folder.refuse()
    until = math.inf if limit_seconds is None else time.time() + limit_seconds
    for cell, outcome in _work_here(folder, until) if start is None else _elsewhere(folder, start(folder.path, until)):
        if tell:
            tell(cell, outcome)
    table = table_of(folder)
    table.write()
    return table


def folder_of(grid: SweepGrid, out: Path | str | None) -> Path:
    """Return the folder of a sweep: the given one, or sweeps/NAME."""
    if out is not None:
        return Path(out)
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in grid.name).strip(".-")
    return Path("sweeps") / (safe or "sweep")


def _work_here(folder: SweepFolder, until: float) -> Iterator[Ended]:
    yield from folder.work(until)


def _elsewhere(folder: SweepFolder, workers: SweepWorkers) -> Iterator[Ended]:
    reported = {cell.label for cell in folder.wanted() if folder.outcome(cell)}
    try:
        going = True
        while going:
            going = workers.working()
            wanted = folder.wanted()
            for cell in wanted:
                if cell.label not in reported and (outcome := folder.outcome(cell)):
                    reported.add(cell.label)
                    yield cell, outcome
            if going:
                time.sleep(max(0.1, len(wanted) / LOOKS))
    finally:
        workers.stop()


def _backend(text: str, jobs: int, memory: int | None) -> Callable[[Path, float], SweepWorkers] | None:
    """Return the starter of workers; None if this process is the worker."""
    kind, _, where = text.partition(":")
    if jobs < 1:
        raise ConfigError(f"jobs = {jobs}", "Give 1 or more.")
    if kind == "local" and not where:
        if jobs == 1 and memory is None:
            return None
        return lambda folder, until: LocalWorkers(folder, jobs, until, memory)
    if kind in ("ray", "slurm") and where:
        return lambda folder, until: on_cluster("fedgossip.lab.sweeps.worker", folder, text, jobs, until, memory)
    raise ConfigError(f"backend {text!r} is not known", nearest(text, BACKENDS))


def on_cluster(
    module: str, folder: Path, backend: str, jobs: int, until: float = math.inf, memory: int | None = None
) -> SweepWorkers:
    """Start workers of a folder on ray:ADDRESS or slurm:PARTITION, each the command of `words_of`.

    Raises ConfigError, and NetworkError if no cluster replies.
    """
    kind, _, where = backend.partition(":")
    if kind not in ("ray", "slurm") or not where:
        raise ConfigError(f"backend {backend!r} is not known", nearest(backend, BACKENDS))
    words = words_of(module, folder, until=until, memory=memory, probe=probe_in(folder))
    if kind == "ray":
        return RayWorkers(words, jobs, where)

    return SlurmWorkers(words, folder / "slurm", jobs, until, where, memory)


DEATHS = 2
"""Number of worker deaths after which a cell counts as failed."""

PATIENCE = 60.0
"""Seconds between a request to stop and the kill of a worker."""


class LocalWorkers:
    """A number of worker processes."""

    def __init__(self, folder: Path, jobs: int, until: float, memory: int | None) -> None:
        self._folder = SweepFolder.opened(folder)
        self._words = [*words_of("fedgossip.lab.sweeps.worker", folder, until=until, memory=memory), "--listen"]
        self._workers = [self._start() for _ in range(jobs)]
        self._deaths: Counter[str] = Counter()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [*PYTHON, "-m", *self._words]
        # each worker trains on one thread: several workers on every core are slower than one after the other
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        return subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **threads})

    def working(self) -> bool:
        """Return whether some still work.  A worker ended by a signal with a cell is replaced."""
        for place, worker in enumerate(self._workers):
            code = worker.poll()
            if code is not None and code < 0 and self._bury(worker.pid, -code):
                self._workers[place] = self._start()
        return any(worker.poll() is None for worker in self._workers)

    def _bury(self, pid: int, number: int) -> bool:
        """Count the death for the worker's cell, if any; the second death fails the cell."""
        folder = self._folder
        host, name = socket.gethostname(), signal.Signals(number).name
        for cell in folder.open_cells():
            if holder(folder.claims, folder.grid.hash(cell)) == (host, pid):
                self._deaths[folder.grid.hash(cell)] += 1
                if self._deaths[folder.grid.hash(cell)] >= DEATHS:
                    why = "out of memory, unless somebody killed it" if name == "SIGKILL" else "a fault below Python"
                    folder.give_up(cell, f"its worker was ended by {name}, {DEATHS} times: {why}")
                return True
        return False

    def stop(self) -> None:
        """Request a stop, wait for the current cells to stop, and kill the remaining workers."""
        for worker in self._workers:
            if worker.stdin:
                worker.stdin.close()
        for worker in self._workers:
            try:
                worker.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


HOUR = 3600.0
DAY = 24 * HOUR
"""Default time limit of a Slurm job, in seconds."""


class SlurmWorkers:
    """A number of jobs of one processor.  Raises ConfigError without submitit, or without Slurm."""

    def __init__(
        self, words: Sequence[str], log: Path, jobs: int, until: float, partition: str, memory: int | None = None
    ) -> None:
        submitit = needed("submitit", "cluster", "a Slurm cluster")
        kind = LOCAL if partition == LOCAL else SLURM
        try:
            executor = submitit.AutoExecutor(folder=log.resolve(), cluster=kind)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            advice = "Run it where sbatch is, or try it here with --backend slurm:local."
            raise ConfigError(f"no Slurm: {reason}", advice) from None
        left = DAY if math.isinf(until) else max(60.0, until - time.time() + HOUR)
        executor.update_parameters(timeout_min=math.ceil(left / 60), cpus_per_task=1, name="fedgossip-cells")
        if kind == SLURM:
            executor.update_parameters(slurm_partition=partition)
        if memory:
            executor.update_parameters(mem_gb=memory / 1e9)
        function = submitit.helpers.CommandFunction([*PYTHON, "-m", *words], verbose=False, cwd=Path.cwd())
        with path_of_ours():
            self._jobs = [executor.submit(function) for _ in range(jobs)]

    def working(self) -> bool:
        """Return whether some still work, or wait to.  Raises ConfigError if one cannot, and none continues."""
        if not all(job.done() for job in self._jobs):
            return True
        for job in self._jobs:
            if job.state not in ("CANCELLED", "PREEMPTED") and job.exception() is not None:
                last = (job.stderr() or str(job.exception())).strip().splitlines()[-1]
                raise ConfigError(f"job {job.job_id}: {last}", f"All of it: {job.paths.stderr}")
        return False

    def stop(self) -> None:
        """Cancel the running jobs; their cells can be resumed elsewhere."""
        for job in self._jobs:
            if not job.done():
                job.cancel()


ANSWER_SECONDS = 60.0
"""Deadline for actors to report the state of their commands, after they are placed."""


class RayWorkers:
    """Commands, a processor each.  Raises ConfigError without Ray, NetworkError if no cluster replies."""

    def __init__(self, words: Sequence[str], jobs: int, address: str) -> None:
        self._ray = ray = connected(address, jobs)
        actor = ray.remote(RayCommand).options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")
        self._actors: list[Any] = [actor.remote() for _ in range(jobs)]
        path = [str(Path(p).resolve()) for p in sys.path if p]
        started = [one.start.remote([*words, "--listen"], str(Path.cwd()), path) for one in self._actors]
        self._waiting = dict(zip(started, self._actors, strict=True))

    def working(self) -> bool:
        """Return whether some work, or wait for a processor; a lost worker's cell is run by others.  Raises ConfigError
        if one cannot start.
        """
        ready, _ = self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
        for ref in ready:
            actor = self._waiting.pop(ref)
            try:
                self._ray.get(ref)
                code, text = self._ray.get(actor.code.remote(), timeout=ANSWER_SECONDS)
            except self._ray.exceptions.RayTaskError as error:
                raise NetworkError(f"a node could not start a worker: {error.cause!r}", _ADVICE) from None
            except self._ray.exceptions.RayError:
                continue
            if code is None:
                self._waiting[actor.wait.remote(1.0)] = actor
            elif code > 0:
                raise ConfigError(text or f"a worker ended with exit code {code}", _ADVICE)
        return bool(self._waiting)

    def stop(self) -> None:
        """End the running commands; their cells can be resumed elsewhere."""
        ends = [actor.end.remote() for actor in self._waiting.values()]
        self._ray.wait(ends, num_returns=len(ends), timeout=END_SECONDS) if ends else None
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.shutdown()


_ADVICE = "The folder must be on a disk that all nodes share, and fedgossip in the Python that Ray runs."
