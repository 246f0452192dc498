"""Workers as jobs of Slurm, by submitit, or as commands on a Ray cluster, on nodes that all see the folder.

submitit pickles its own `CommandFunction` with the words of a command; nothing of ours is pickled.
Both need the extra `cluster`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgossip.base.errors import ConfigError, NetworkError, needed
from fedgossip.base.kernels import PYTHON
from fedgossip.drivers.clusters.ray_cluster import END_SECONDS, RayCommand, connected
from fedgossip.drivers.clusters.resources import LOCAL, SLURM
from fedgossip.drivers.clusters.slurm import path_of_ours

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
        """Return whether some still work, or wait to.  Raises ConfigError where one cannot, and none continues."""
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
    """Commands, a processor each.  Raises ConfigError without Ray, NetworkError where no cluster replies."""

    def __init__(self, words: Sequence[str], jobs: int, address: str) -> None:
        self._ray = ray = connected(address, jobs)
        actor = ray.remote(RayCommand).options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")
        self._actors: list[Any] = [actor.remote() for _ in range(jobs)]
        path = [str(Path(p).resolve()) for p in sys.path if p]
        started = [one.start.remote([*words, "--listen"], str(Path.cwd()), path) for one in self._actors]
        self._waiting = dict(zip(started, self._actors, strict=True))

    def working(self) -> bool:
        """Return whether some still work, or wait for a processor.  Raises ConfigError where one cannot.

        The cell of a lost worker is taken by the others.
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
