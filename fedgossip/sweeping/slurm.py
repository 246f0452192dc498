"""Workers of a sweep as jobs of Slurm, by submitit, on nodes that all see the folder (extra `cluster`)."""

from __future__ import annotations

import importlib
import math
import time
from pathlib import Path
from typing import Any

from fedgossip.errors import ConfigError
from fedgossip.sweeping.folder import SweepFolder
from fedgossip.sweeping.worker import run_worker

LOCAL = "local"
"""The partition that is this machine: submitit's local executor, to try what would be sent."""

HOUR = 3600.0
DAY = 24 * HOUR
"""Time asked of Slurm, in seconds, where nobody set a limit."""


class SlurmWorkers:
    """So many jobs of one processor.  Raises ConfigError without submitit, or without Slurm."""

    def __init__(self, folder: Path, jobs: int, until: float, partition: str, memory: int | None = None) -> None:
        submitit = _imported()
        log = folder.resolve() / "slurm"
        kind = LOCAL if partition == LOCAL else "slurm"
        try:
            executor = submitit.AutoExecutor(folder=log, cluster=kind)
        except RuntimeError as error:
            told = str(error).splitlines()[0]
            advice = "Run it where sbatch is, or try it here with --backend slurm:local."
            raise ConfigError(f"no Slurm: {told}", advice) from None
        left = DAY if math.isinf(until) else max(60.0, until - time.time() + HOUR)
        executor.update_parameters(timeout_min=math.ceil(left / 60), cpus_per_task=1, name="fedgossip-sweep")
        if kind == "slurm":
            executor.update_parameters(slurm_partition=partition)
        if memory:
            executor.update_parameters(mem_gb=memory / 1e9)
        self._jobs = [executor.submit(run_worker, str(folder.resolve()), until) for _ in range(jobs)]

    def working(self, _folder: SweepFolder) -> bool:
        """Whether some still work, or wait to."""
        return not all(job.done() for job in self._jobs)

    def stop(self) -> None:
        """Take back the jobs that go on; the cells that they had can go on elsewhere."""
        for job in self._jobs:
            if not job.done():
                job.cancel()


def _imported() -> Any:
    try:
        return importlib.import_module("submitit")
    except ImportError:
        raise ConfigError("submitit is not installed", "pip install 'fedgossip[cluster]'") from None
