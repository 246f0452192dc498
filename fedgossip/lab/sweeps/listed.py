"""Cells listed in a folder and run by workers on a cluster, for a comparison.

asked/list.json      the engine, whether reports are wanted, and the names of the cells
asked/NAME.toml      the experiment of a cell; its run directory is NAME
claims/              who runs which, as in the folder of a sweep

python -m fedgossip.lab.sweeps.listed FOLDER ...       a worker, with the words of `lab.sweeps.worker`
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
import tomli_w

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError
from fedgossip.core import run_format
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.lab.sweeps.cells import FAILED, CellOutcome, outcome_in, run_claimed
from fedgossip.lab.sweeps.sweep import on_cluster
from fedgossip.lab.sweeps.worker import Stopped, main
from fedgossip.runs.run_directory import write_whole

ASKED, LIST, CLAIMS = "asked", "list.json", "claims"

PAUSE = 0.2
"""Seconds between two looks at cells that others run."""

ENDING_SECONDS = 10.0
"""Maximum number of seconds for workers to end that have no cell left."""


class Listed(msgspec.Struct):
    """The request to workers."""

    engine: str
    report: bool
    names: list[str]


_LISTED = msgspec.json.Decoder(Listed)


class PlacedCells:
    """Cells of a folder that workers run, from construction until `stop`."""

    def __init__(
        self, folder: Path, cells: Mapping[str, Experiment], engine: str, backend: str, jobs: int, *, report: bool
    ) -> None:
        self._folder = folder
        for inner in (ASKED, CLAIMS):
            owner_files.made(folder / inner)
        for name, experiment in cells.items():
            (folder / name / run_format.FAILURE).unlink(missing_ok=True)  # retried
            write_whole(folder / ASKED / f"{name}.toml", tomli_w.dumps(experiment.to_dict()).encode())
        listed = Listed(engine, report, list(cells))
        write_whole(folder / ASKED / LIST, msgspec.json.encode(listed))
        self._paths = [folder / name for name in cells]
        jobs = min(jobs, len(cells))
        self._workers = on_cluster("fedgossip.lab.sweeps.listed", folder, backend, jobs) if cells else None

    def outcome(self, name: str) -> CellOutcome:
        """Wait for a cell, and return its outcome.  Raises FedgossipError where no worker can run any."""
        path = self._folder / name
        while (found := outcome_in(path)) is None:
            if self._workers is None or not self._workers.working():
                text = "no worker is left that runs it; the same command goes on"
                return outcome_in(path) or CellOutcome(FAILED, None, text, 1)
            time.sleep(PAUSE)
        return found

    def stop(self) -> None:
        """End running workers, whose cells can be resumed; those without a cell end on their own."""
        if self._workers:
            until = time.monotonic() + ENDING_SECONDS
            with contextlib.suppress(ConfigError):
                while all(map(outcome_in, self._paths)) and time.monotonic() < until and self._workers.working():
                    time.sleep(PAUSE)
            self._workers.stop()


def work(folder: Path, until: float, stopped: Stopped) -> Iterator[str]:
    """Run the unclaimed listed cells, and yield their names; no further one is begun after `until`.

    Raises ConfigError for an empty list, KeyboardInterrupt for a stopped cell.
    """
    try:
        listed = from_json(_LISTED, outside_files.read_bytes(folder / ASKED / LIST))
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"{folder / ASKED / LIST}: {error}", "fedgossip compare --backend makes it.") from None
    names = listed.names
    while not stopped() and (names := [name for name in names if outcome_in(folder / name) is None]):
        some = False
        for name in names:
            if stopped() or time.time() > until:
                return
            path, file = folder / name, folder / ASKED / f"{name}.toml"
            about = (
                folder / CLAIMS,
                name,
                path,
                listed.engine,
                partial(load_experiment, file),
                partial(outcome_in, path),
            )
            if outcome_in(path) is None and run_claimed(*about, report=listed.report):
                some = True
                yield name
        if not some:
            time.sleep(PAUSE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], work))
