"""Workers as jobs of Slurm, by submitit, on nodes that all see the folder (extra `cluster`).

submitit pickles its own `CommandFunction` with the words of a command; nothing of ours is pickled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

from fedgossip.base.errors import ConfigError
from fedgossip.base.extras import needed
from fedgossip.base.imports import PYTHON
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
            told = str(error).splitlines()[0]
            advice = "Run it where sbatch is, or try it here with --backend slurm:local."
            raise ConfigError(f"no Slurm: {told}", advice) from None
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
