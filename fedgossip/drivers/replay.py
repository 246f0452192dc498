"""Feeds the events of a real machine to a fresh one, and compares the results bit for bit.

    fedgossip replay RUN                    every peer of a run, or one peer's folder, or one trace

    replay_trace(Path("runs/first-n6-local-.../peers/03"))  the same from Python: a failure in the field becomes a test

A trace has the first vector and all updates: neither data nor torch are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.decoding import json_value
from fedgossip.base.errors import ConfigError, ProtocolError, ResumeError
from fedgossip.base.vectors import Vector, digest
from fedgossip.base.version import __version__
from fedgossip.core import run_format
from fedgossip.core.machine import Finish, Machine, NodeId, guarded_handle
from fedgossip.core.task import covering, one_segment
from fedgossip.data.custom import check_allowed
from fedgossip.experiment import checked
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan
from fedgossip.plans.gossip.gossip import peer_of
from fedgossip.runs.checkpoints import incarnation_of
from fedgossip.runs.collect import last_word
from fedgossip.runs.incarnations import trace_path
from fedgossip.runs.trace import Opening, Reading, TraceEntry, TraceError, described, refusal


@dataclass(frozen=True)
class Difference:
    """The first event with different effects in a replay.  `was` and `now` are one effect; "" is none."""

    event: int
    told: str
    was: str
    now: str

    def __str__(self) -> str:
        return f"event {self.event}, {self.told}: was {self.was or 'nothing'}, is {self.now or 'nothing'}"


@dataclass(frozen=True)
class Replayed:
    """The result of a replay; `end`: `finished`, a `torn` or `open` trace, or `until`."""

    path: Path
    node: NodeId
    incarnation: int
    version: str
    events: int
    end: str
    difference: Difference | None = None
    digest: str | None = None
    """sha256 of the final vector of the replayed machine; None if it did not finish."""
    kept: str | None = None
    """Whether vector.safetensors next to the trace agrees; None if this incarnation has none."""

    @property
    def equal(self) -> bool:
        """Whether every effect was the same, and the final vector equals the peer's stored one."""
        return self.difference is None and (self.kept is None or self.digest is None or self.kept == self.digest)


Show = Callable[[TraceEntry], None]


def replay_trace(
    path: Path | str,
    *,
    until: int | None = None,
    show: Show | None = None,
    make: Callable[[Opening], Machine] | None = None,
    run_code: bool = False,
) -> Replayed:
    """Replay one trace: a file, or the folder of a peer, with the trace of its last incarnation.

    Stops at the first difference, or after `until` events.  `show` receives every event first; `make` makes the machine
    in place of the experiment's.  `run_code`: run the experiment's functions.  Raises TraceError.
    """
    path = Path(path)
    if path.is_dir():
        path = (traces_in(path) or [trace_path(path, 0)])[-1]
    with Reading(path) as reading:
        opening = reading.opening
        machine = make(opening) if make else machine_of(opening, run_code=run_code)
        events, result, difference, end = 0, None, None, "open"
        for entry in reading:
            if until is not None and entry.number > until:
                end = "until"
                break
            if show:
                show(entry)
            events = entry.number
            try:
                lines, result = _apply_entry(machine, entry)
            except Exception as error:
                text = f"{path}: the machine does not take event {events}: {error!r}"
                raise TraceError(text, "Set FEDGOSSIP_TRACEBACK=1 to see where.") from error
            if entry.answer is not None and lines != entry.answer:
                difference = _difference(path, events, entry.answer, lines)
                break
            if result is not None:
                break
        if result is not None or reading.end == "torn":
            end = "torn" if result is None else "finished"
    return Replayed(
        path,
        opening.node,
        opening.incarnation,
        opening.version,
        events,
        end,
        difference,
        None if result is None else digest([result]),
        _final_digest(path.parent, opening.incarnation),
    )


def _apply_entry(machine: Machine, entry: TraceEntry) -> tuple[list[str], Vector | None]:
    try:
        effects = guarded_handle(machine, entry.event, entry.now_ns)
    except ProtocolError as error:
        return [refusal(error)], None
    digests: dict[int, str] = {}
    lines = [described(effect, digests) for effect in effects]
    return lines, next((effect.result for effect in effects if isinstance(effect, Finish)), None)


def _difference(path: Path, number: int, was: list[str], now: list[str]) -> Difference:
    place = next((k for k, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    with Reading(path) as reading:  # encoded again: a machine may consume the events it receives
        (event,) = (described(entry.event) for entry in islice(reading, number - 1, number))
    return Difference(number, event, *(one[place] if place < len(one) else "" for one in (was, now)))


def _final_digest(folder: Path, incarnation: int) -> str | None:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        ended = last_word(folder)
        if ended is None or ended.incarnation != incarnation:
            return None
        return digest([load(outside_files.read_bytes(folder / run_format.VECTOR, outside_files.LARGE))["vector"]])
    except (ConfigError, OSError, SafetensorError, KeyError):
        return None


def machine_of(opening: Opening, *, run_code: bool = False) -> Machine:
    """Make a trace's machine.  Raises TraceError for an unreadable experiment, ConfigError for code that may
    not run.
    """
    try:
        o = opening
        experiment = checked(json_value(msgspec.json.encode(o.experiment)), "trace")
    except Exception as error:
        raise _unread(opening, error) from error
    check_allowed(experiment.named_code, f"the trace of peer {o.node}", run_code=run_code)
    try:
        segments = covering(o.segments or one_segment(o.initial.size), o.initial.size)
        plan = _plan(msgspec.json.encode(o.experiment)).with_segments(segments)
        return peer_of(plan, o.node, o.initial, o.schema, o.resumed, incarnation=o.incarnation)
    except Exception as error:  # its experiment, first vector or checkpoint may be forged
        raise _unread(opening, error) from error


def _unread(opening: Opening, error: Exception) -> TraceError:
    advice = f"It was written by fedgossip {opening.version}, this is {__version__}."
    return TraceError(f"the trace of peer {opening.node}: {error or repr(error)}", advice)


@lru_cache(maxsize=4)
def _plan(experiment: bytes) -> Plan:
    return compose.plan(checked(json_value(experiment), "trace"))


def traces_in(folder: Path) -> list[Path]:
    """Return the traces in a peer's folder, by incarnation."""
    return sorted(
        folder.glob(run_format.TRACES), key=lambda path: int(path.suffixes[0][1:]) if len(path.suffixes) > 1 else 0
    )


def lives_of(folder: Path) -> int:
    """Return the number of incarnations that the peer of a folder has begun; 0 without a record."""
    try:
        return incarnation_of(folder) + 1
    except ResumeError:
        return 0


def traces_of(run: Path, peer: NodeId | None = None) -> list[Path]:
    """Return the traces of a run, a peer's folder or a trace itself; with `peer`, only of that peer.

    Raises TraceError without any.
    """
    if run.is_file():
        return [run]
    if not run.is_dir():
        raise TraceError(f"{run}: no such file or folder", "`fedgossip runs` lists the existing runs.")
    folders = (
        [run, *sorted((run / run_format.PEERS).glob("*"))] if peer is None else [run / run_format.PEERS / f"{peer:02d}"]
    )
    found = [path for folder in folders for path in traces_in(folder)]
    if not found:
        raise TraceError(f"{run}: no trace" + ("" if peer is None else f" of peer {peer}"), "Record with --trace.")
    return found
