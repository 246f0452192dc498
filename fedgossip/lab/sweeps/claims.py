"""Claims on cells, in a folder that several processes, on several machines, may share.

A claim is a file CELL.1, CELL.2, ...; the one with the highest number counts.  It is written whole and then named by a
link, which the file system grants to one process alone, so two concurrent requests cannot both succeed; the next number
is taken only where the last is stale, and a file is never removed, so earlier reads stay valid.

A claim is stale after a release by its holder; on the holder's own machine, where no process has its lock (the system
releases it when a process ends, however it ends); on another, where its heartbeat is older than STALE seconds by the
file system's own clock.  A process that slept that long checks its claim before it writes on.

Runs one cell in whichever of several processes claims it: shared by workers of a sweep and of a comparison.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import msgspec

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.experiment import Experiment
from fedgossip.lab.sweeps.cells import FAILED, INTERRUPTED, CellOutcome, run_cell, write_failure

_DECODER = msgspec.json.Decoder(dict[str, str | int])
BEAT, STALE = 5.0, 60.0
"""Seconds between two heartbeats, and maximum age of the last heartbeat of a valid claim."""


class ClaimLostError(Exception):
    """Another process has taken the cell over: this one sent no heartbeat for too long."""


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
                os.utime(self._path)
                self._beaten = time.monotonic()

    def check(self) -> None:
        """Raise ClaimLostError where another has taken the cell; reads the disk only after a long silence."""
        if time.monotonic() - self._beaten > STALE / 2 and self._next.exists():
            raise ClaimLostError(f"{self._path.name}: taken over by another process")

    def release(self) -> None:
        """Release the cell for the next request."""
        self._ended.set()
        self._beating.join()
        with contextlib.suppress(OSError):
            os.truncate(self._path, 0)
        os.close(self._lock)


def claim(folder: Path, cell: str, over: Callable[[], bool] = lambda: False) -> Claim | None:
    """Claim a cell; None where another has it, or where it is over.  Raises OSError."""
    number = _newest(folder, cell)
    if (
        number and not _stale(folder / f"{cell}.{number}")
    ) or over():  # in this order: outcomes are stored, then released
        return None
    path, following = folder / f"{cell}.{number + 1}", folder / f"{cell}.{number + 2}"
    part = folder / f".{uuid4().hex}"
    lock = owner_files.opened_to_lock(part)
    try:
        owner_files.taken_if_any(lock)
        os.write(lock, msgspec.json.encode({"host": socket.gethostname(), "pid": os.getpid()}))
        os.link(part, path)
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
    """Return whether the lock is free; None where this file system has no locks."""
    try:
        lock = owner_files.opened_to_lock(path)
    except OSError:
        return None
    try:
        return owner_files.taken_if_any(lock)
    except OSError:
        return None
    finally:
        os.close(lock)


def _now(folder: Path) -> float:
    """Return the time by the clock that stamps files here, which may be another machine's."""
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
    """Run the cell `name` in the run directory `place`; return its outcome, None where another process has it.

    `outcome`: returns an existing outcome.  Raises KeyboardInterrupt where it was stopped; it can be resumed.
    """
    held = claim(claims, name, lambda: outcome() is not None)
    if held is None:
        return None
    try:
        try:
            found = run_cell(experiment(), place, engine, report=report, watch=lambda _: held.check())
        except ClaimLostError:
            return None
        except Exception as error:  # a fault of ours, or of a function of the user's, costs this cell alone
            found = CellOutcome.of(FAILED, error)
        if found.status == INTERRUPTED:
            raise KeyboardInterrupt
        if found.summary is None:
            write_failure(place, found)
        return found
    finally:
        held.release()
