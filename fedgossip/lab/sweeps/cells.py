"""A cell: one experiment in a separate run directory, the unit of a sweep and of a comparison.

A finished cell is not run again; a stopped one continues; a failed one stores its reason.

Processes on several machines may share the folder: each claims a cell first.  A claim is a file CELL.1, CELL.2, ...;
the highest number counts.  It is written completely and then named by a link, which the file system grants once.  The
next number is taken only if the last claim is stale, and no file is removed.

A claim is stale after its release; on the holder's machine, if no process has its lock; on another, if its heartbeat is
older than STALE seconds by the file system's clock.  A process that slept that long checks its claim first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import cast
from uuid import uuid4

import msgspec

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json, json_value
from fedgossip.base.errors import ConfigError, FedgossipError, ResumeError
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.base.version import __version__
from fedgossip.core.records import Row
from fedgossip.core.run_format import EXPERIMENT, FAILURE, INCOMPLETE, SUMMARY
from fedgossip.core.run_summary import RunSummary
from fedgossip.data.custom import codes_of
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import Experiment, GossipExperiment, file_kept_in, load_experiment
from fedgossip.plans import compose
from fedgossip.plans.plan import hash_of, without_folders
from fedgossip.runs.checkpoints import differences
from fedgossip.runs.run_directory import WHOLE, write_whole

ENGINES = ("stacked", "sim", "local")
"""Engines of a cell: only arrays, machines in virtual time, a process per peer."""


FAILED, REFUSED, INTERRUPTED = "failed", "refused", "interrupted"


@dataclass(frozen=True)
class CellOutcome:
    """A cell's outcome: its summary, or the error in place of one."""

    status: str
    """Status of its summary; or failed, refused (before anything ran), interrupted."""
    summary: RunSummary | None = None
    error: str = ""
    exit_code: int = 0

    @classmethod
    def from_error(cls, status: str, error: BaseException) -> CellOutcome:
        """Return an error as a row of the table: one line."""
        advice = error.advice if isinstance(error, FedgossipError) else ""
        code = error.exit_code if isinstance(error, FedgossipError) else 1
        error_text = str(error) if isinstance(error, FedgossipError) else f"{type(error).__name__}: {error}"
        return cls(status, None, " ".join(f"{error_text}.  {advice}".split()), code)


def run_cell(
    experiment: Experiment,
    path: Path,
    engine: str,
    *,
    report: bool = False,
    watch: Callable[[Row], None] | None = None,
) -> CellOutcome:
    """Run an experiment in `path`, or resume it (with real processes: restart it).  A failing run raises nothing."""
    try:
        plan = compose.plan(experiment)
        if engine == "local":
            shutil.rmtree(path, ignore_errors=True)
            run = run_local_plan(plan, path, report=report, watch=watch)
        else:
            stopped = (path / INCOMPLETE).exists()
            try:
                run = simulate_plan(plan, engine=engine, out=path, report=report, watch=watch, resume=stopped)
            except ResumeError:  # its state is unreadable: it was stopped during a write
                shutil.rmtree(path, ignore_errors=True)
                run = simulate_plan(plan, engine=engine, out=path, report=report, watch=watch)
    except FedgossipError as error:
        return CellOutcome.from_error(FAILED, error)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        text = f"out of memory: {str(error).splitlines()[0] if str(error) else 'the worker reached its limit'}"
        return CellOutcome.from_error(
            FAILED, ConfigError(text, "Give a worker more, with --memory, or run fewer at once.")
        )
    return CellOutcome(str(run.summary["status"]), run.summary)


def refusal(experiment: Experiment) -> CellOutcome | None:
    """Return why this experiment cannot run, determined without running it; None if it can."""
    try:
        compose.plan(experiment)
    except FedgossipError as error:
        return CellOutcome.from_error(REFUSED, error)
    return None


def outcome_in(path: Path) -> CellOutcome | None:
    """Return the outcome of the cell in this folder; None for an unfinished one."""
    if (path / FAILURE).is_file() and isinstance(found := _read(path / FAILURE), dict):
        return CellOutcome(str(found.get("status")), None, str(found.get("error")), int(found.get("exit_code", 1)))
    if (path / INCOMPLETE).exists() or not (path / SUMMARY).is_file():
        return None
    summary = _read(path / SUMMARY)
    if not isinstance(summary, dict) or summary.get("status") not in WHOLE:
        return None
    return CellOutcome(str(summary["status"]), cast("RunSummary", summary))


def write_failure(path: Path, outcome: CellOutcome) -> None:
    """Write the reason for a missing summary; the cell's other files stay.  Raises NotWrittenError."""
    owner_files.make_folder(path)
    fields = {"status": outcome.status, "error": outcome.error, "exit_code": outcome.exit_code}
    write_whole(path / FAILURE, msgspec.json.encode(fields))


def cell_hash(experiment: Experiment, engine: str) -> str:
    """Return a cell's name: 16 hex digits of everything that determines its result (files' content, users' source), and
    this version.
    """
    content = without_folders(experiment.to_dict())
    for key in ("name", "track"):
        content.pop(key, None)
    sources = [str(experiment.data.source), str(experiment.data.test), str(experiment.data.common)]
    if isinstance(experiment, GossipExperiment):
        graph = experiment.topology.graph
        sources.append(graph)
        if "/" in graph:
            content["topology"] = {**content["topology"], "graph": graph.rsplit("/", 1)[1]}
    files = {name: digest for text in sources for name, digest in _file_in(text)}
    code = codes_of(experiment.named_code)
    whole = {"experiment": content, "engine": engine, "version": __version__, "files": files, "code": code}
    return hash_of(whole)[:16]


def _file_in(text: str) -> list[tuple[str, str]]:
    """Return name and digest of a source's or graph's file; [] for others."""
    path = Path(text.partition(":")[2].partition("?")[0] or text)
    if "/" not in text or not path.is_file():
        return []
    facts = path.stat()
    return [(path.name, _digest(str(path), facts.st_mtime_ns, facts.st_size))]


@lru_cache(maxsize=64)
def _digest(path: str, _changed: int, _size: int) -> str:
    total = sha256()
    with outside_files.open_file(outside_files.resolve(path), outside_files.LARGE) as file:
        while part := file.read(1 << 20):
            total.update(part)
    return total.hexdigest()[:16]


def check_same(path: Path, experiment: Experiment, whose: str) -> None:
    """Raise ConfigError if the folder holds a cell of another experiment; its files stay unchanged."""
    if not (path / EXPERIMENT).is_file():
        return
    before = load_experiment(file_kept_in(path)).to_dict()
    if found := differences(before, experiment.to_dict(), simulated=True):
        advice = "Give a new folder with --out, or the file that it was made of."
        raise ConfigError(f"{path}: a cell of another {whose}: {'; '.join(found[:3])}", advice)


def _read(path: Path) -> object:
    try:
        return json_value(outside_files.read_bytes(path))
    except (OSError, UnreadableError):
        return None


_DECODER = msgspec.json.Decoder(dict[str, str | int])
BEAT, STALE = 5.0, 60.0
"""Seconds between two heartbeats, and maximum age of the last heartbeat of a valid claim."""


class ClaimLostError(Exception):
    """Another process has claimed the cell, because this one sent no heartbeat for too long."""


class Claim:
    """A cell that this process runs, until `release`."""

    def __init__(self, path: Path, next_path: Path, lock: int) -> None:
        self._path, self._next, self._lock = path, next_path, lock
        self._beaten = time.monotonic()
        self._ended = threading.Event()
        self._beating = guarded_thread(self._beat, "heartbeat")
        self._beating.start()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            with contextlib.suppress(OSError):
                os.utime(self._path)  # without a time: the clock of the file server
                self._beaten = time.monotonic()

    def check(self) -> None:
        """Raise ClaimLostError if another process has claimed the cell; reads the disk only after a long silence."""
        if time.monotonic() - self._beaten > STALE / 2 and self._next.exists():
            raise ClaimLostError(f"{self._path.name}: taken over by another process")

    def release(self) -> None:
        """Release the cell for the next request."""
        self._ended.set()
        self._beating.join()
        with contextlib.suppress(OSError):
            os.truncate(self._path, 0)  # not unlink: a freed number could be taken twice
        os.close(self._lock)


def claim(folder: Path, cell: str, over: Callable[[], bool] = lambda: False) -> Claim | None:
    """Claim a cell; None if another process has it, or if it is over.  Raises OSError."""
    number = _newest(folder, cell)
    if (
        number and not _stale(folder / f"{cell}.{number}")
    ) or over():  # in this order: outcomes are stored, then released
        return None
    path, following = folder / f"{cell}.{number + 1}", folder / f"{cell}.{number + 2}"
    part = folder / f".{uuid4().hex}"
    lock = owner_files.opened_to_lock(part)
    try:
        owner_files.try_lock_if_any(lock)
        os.write(lock, msgspec.json.encode({"host": socket.gethostname(), "pid": os.getpid()}))
        os.link(part, path)  # fails if the name exists, also on network file systems; never seen half written
    except FileExistsError:
        os.close(lock)
        return None
    finally:
        part.unlink(missing_ok=True)
    return Claim(path, following, lock)


def holder(folder: Path, cell: str) -> tuple[str, int] | None:
    """Return the host and the process of the last unreleased claim on a cell; None without one."""
    number = _newest(folder, cell)
    return _read_claim(folder / f"{cell}.{number}") if number else None


def _newest(folder: Path, cell: str) -> int:
    number = 0
    while (folder / f"{cell}.{number + 1}").exists():
        number += 1
    return number


def _stale(path: Path) -> bool:
    claim = _read_claim(path)
    if claim is None:
        return True
    if claim[0] == socket.gethostname() and (gone := _unlocked(path)) is not None:
        return gone
    return _now(path.parent) - path.stat().st_mtime > STALE


def _read_claim(path: Path) -> tuple[str, int] | None:
    """Return the holder's entry; None after its release."""
    try:
        claim = from_json(_DECODER, outside_files.read_bytes(path))
    except (OSError, UnreadableError):
        return None
    return str(claim.get("host")), int(claim.get("pid", 0))


def _unlocked(path: Path) -> bool | None:
    """Return whether the lock is free; None without locks here."""
    try:
        lock = owner_files.opened_to_lock(path)
    except OSError:
        return None
    try:
        return owner_files.try_lock_if_any(lock)
    except OSError:
        return None
    finally:
        os.close(lock)


def _now(folder: Path) -> float:
    probe = folder / f".clock-{socket.gethostname()}-{os.getpid()}"
    owner_files.written(probe, b"")
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def run_claimed(
    claims: Path,
    name: str,
    place: Path,
    engine: str,
    experiment: Callable[[], Experiment],
    outcome: Callable[[], CellOutcome | None],
    *,
    report: bool = False,
) -> CellOutcome | None:
    """Run the cell `name` in `place` and return its outcome; an existing outcome by `outcome`, None if another process
    has the cell.

    Raises KeyboardInterrupt if it was stopped; it can be resumed.
    """
    held = claim(claims, name, lambda: outcome() is not None)
    if held is None:
        return None
    try:
        try:
            found = run_cell(experiment(), place, engine, report=report, watch=lambda _: held.check())
        except ClaimLostError:
            return None
        except Exception as error:  # a fault of this package or a user's function fails only this cell
            found = CellOutcome.from_error(FAILED, error)
        if found.status == INTERRUPTED:
            raise KeyboardInterrupt
        if found.summary is None:
            write_failure(place, found)
        return found
    finally:
        held.release()
