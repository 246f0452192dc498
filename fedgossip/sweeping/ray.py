"""Workers of a sweep as tasks of a Ray cluster whose nodes all see the folder (extra `cluster`)."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from fedgossip.errors import ConfigError, NetworkError
from fedgossip.sweeping.folder import SweepFolder
from fedgossip.sweeping.worker import run_worker

LOCAL = "local"
"""The address of a cluster of this machine alone, which is started for the sweep."""


class RayWorkers:
    """So many tasks, a processor each.  Raises ConfigError without Ray, NetworkError where no cluster answers."""

    def __init__(self, folder: Path, jobs: int, until: float, address: str) -> None:
        self._ray = ray = _imported()
        where = {"num_cpus": jobs, "include_dashboard": False} if address == LOCAL else {"address": address}
        try:
            ray.init(**where, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            advice = "Start one: ray start --head; then --backend ray:auto, or ray:HOST:PORT."
            raise NetworkError(f"no Ray cluster at {address}: {told}", advice) from None
        task = ray.remote(num_cpus=1, max_retries=0)(_work)
        self._tasks = [task.remote(str(folder.resolve()), until, str(Path.cwd())) for _ in range(jobs)]

    def working(self, _folder: SweepFolder) -> bool:
        """Whether some still work.  Raises what one of them raised; a lost worker's cell is taken by the others."""
        _, waiting = self._ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)
        return bool(waiting)

    def stop(self) -> None:
        """End those that go on; the cells that they had can go on elsewhere."""
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        self._ray.shutdown()


def _work(folder: str, until: float, here: str) -> int:
    """Work where the sweep was started, so that modules of the user's own are found."""
    os.chdir(here)
    return run_worker(folder, until)


def _imported() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # it warns of what its next release will do
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError("Ray is not installed", "pip install 'fedgossip[cluster]'") from None
