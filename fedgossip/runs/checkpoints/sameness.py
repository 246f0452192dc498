"""The origin of a checkpoint, and whether a run may resume from it: keys that may differ between experiments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgossip.base.errors import ResumeError
from fedgossip.core.machine import NodeId
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.learning.settings import OF_THE_MACHINE

MAY_DIFFER = ("name", "track", "algorithm.start_timeout", *(f"train.{key}" for key in OF_THE_MACHINE))
"""Keys that a resume may change; and `rounds` may grow."""

OF_SIMULATIONS = ("simulation", "faults")
"""Sections that real runs ignore."""


@dataclass(frozen=True, slots=True)
class About:
    """The origin of a checkpoint.  `experiment` is the resolved one, so that a resume can name differing keys."""

    node: NodeId
    schema: str
    version: str
    experiment: Mapping[str, Any]
    data: str = ""
    """DataShares.digest: the hash of the examples."""
    incarnation: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    """Likeness.code: the user's own functions that the experiment names, each with a hash of its source."""


def differences(stored: Mapping[str, Any], given: Mapping[str, Any], *, simulated: bool = False) -> list[str]:
    """Return the keys of two resolved experiments that keep one from going on as the other, in words.

    "train.lr: was 0.1, is 0.05".  Paths of files may differ; their contents are compared by hash, elsewhere.
    """
    free = MAY_DIFFER if simulated else MAY_DIFFER + OF_SIMULATIONS
    was, now = (dict(_flat(json.loads(json.dumps(one)))) for one in (stored, given))  # tuples are lists in JSON
    found = []
    for key in sorted(was.keys() | now.keys()):
        before, after = _tail(key, was.get(key)), _tail(key, now.get(key))
        if key not in was and not after:  # an option of a later release, off
            continue
        if before == after or any(key == one or key.startswith(f"{one}.") for one in free):
            continue
        if key == "rounds" and isinstance(before, int) and isinstance(after, int) and after > before:
            schedule = str(now.get("train.schedule", "constant"))
            if schedule.endswith("cosine"):
                found.append(f"rounds: was {before}, is {after}, and train.schedule = {schedule} follows them")
            continue
        found.append(f"{key}: was {_format(before)}, is {_format(after)}")
    return found


def check_same(stored: About, given: About, where: Path | str, *, simulated: bool = False) -> None:
    """Raise ResumeError, with the differing keys, unless `stored` can resume as `given`."""
    found = differences(stored.experiment, given.experiment, simulated=simulated)
    if stored.data != given.data:
        found.append("the data files: other examples")
    if stored.code != given.code:
        names = " and ".join(Likeness(stored.code).changed(Likeness(given.code))) or "your own functions"
        found.append(f"{names}: another source")
    if found:
        may = ", ".join(MAY_DIFFER)
        advice = f"Give the experiment that it had, or start a new run.  These may differ: {may}; rounds may grow."
        raise ResumeError(f"{where}: a checkpoint of another experiment: {'; '.join(found)}", advice)


def _flat(content: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _tail(key: str, value: Any) -> Any:
    """Return the last part of a path: where a file lies differs between machines, and between then and now."""
    if key in ("data.source", "data.test", "topology.graph") and isinstance(value, str) and "/" in value:
        kind, colon, _ = value.partition(":")
        return f"{kind}{colon}{value.rsplit('/', 1)[1]}" if colon else value.rsplit("/", 1)[1]
    return value


def _format(value: Any) -> str:
    return "not there" if value is None else json.dumps(value)
