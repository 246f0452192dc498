"""Workers as commands on the nodes of a Ray cluster that all see the folder (extra `cluster`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgossip.base.errors import ConfigError, NetworkError
from fedgossip.drivers.clusters.ray_cluster import connected
from fedgossip.drivers.clusters.ray_node import END_SECONDS, RayCommand

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
                code, said = self._ray.get(actor.code.remote(), timeout=ANSWER_SECONDS)
            except self._ray.exceptions.RayTaskError as error:
                raise NetworkError(f"a node could not start a worker: {error.cause!r}", _ADVICE) from None
            except self._ray.exceptions.RayError:
                continue
            if code is None:
                self._waiting[actor.wait.remote(1.0)] = actor
            elif code > 0:
                raise ConfigError(said or f"a worker ended with exit code {code}", _ADVICE)
        return bool(self._waiting)

    def stop(self) -> None:
        """End the running commands; their cells can be resumed elsewhere."""
        ends = [actor.end.remote() for actor in self._waiting.values()]
        self._ray.wait(ends, num_returns=len(ends), timeout=END_SECONDS) if ends else None
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.shutdown()


_ADVICE = "The folder must be on a disk that all nodes share, and fedgossip in the Python that Ray runs."
