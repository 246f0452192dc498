"""Measures of lectures that simulate whole runs: machines and messages in virtual time.

What a measure returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.algorithms.hash_ring import owners
from fedgossip.core.records import PeerRow
from fedgossip.core.timeline import ITEMS, Timeline, TimelineLog
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment.kinds import RUN_KINDS
from fedgossip.experiment.reading import load_experiment
from fedgossip.lab.compare.measured import round_seconds
from fedgossip.lab.compare.names import paradigm_of
from fedgossip.plans import compose
from fedgossip.report.page.lectures import Circle, Circles, Picture
from fedgossip.report.page.timeline import NamedTimeline
from fedgossip.runs.run_directory import Run
from fedgossip.runs.summary import busiest

FLOAT = 4
"""Bytes of an element."""


def simulated(
    runs: Mapping[str, Mapping[str, Any]],
    m: int,
    a: float,
    b: float,
    C: float,
    dim: int,
    rounds: int = 6,
    shown: int = 2,
) -> MeasuredLecture:
    """Run paradigms of `fedgossip compare` with m learners of `dim` elements, and measure a round of each.

    `runs`: by name { method = "ring", simulation = { ... }, parallel = { ... } }, with any further sections of an
    experiment.  a: seconds of latency; b: bytes per second out of, and into, each participant; C: seconds of
    training.  Returns d, the bytes of a vector, and of each run NAME_s, seconds of a round, NAME_sent, bytes of a
    round at its busiest participant, and NAME_wait, the share of time that learners wait; the picture is the timeline
    of `shown` rounds.
    """
    values, drawn = {"d": float(FLOAT * dim)}, list[NamedTimeline]()
    for name, sections in runs.items():
        run, timeline, names = simulated_once(sections, m, a, b, C, dim, rounds)
        rows = [row for row in run.rows if isinstance(row, PeerRow)]
        values[f"{name}_s"] = round_seconds(rows, m)
        values[f"{name}_sent"] = busiest(rows, {})["bytes"] / rounds
        waits = sum(timeline.seconds(node, 0, timeline.until)["waiting"] for node in range(m))
        values[f"{name}_wait"] = waits / (m * timeline.until / 1e9)
        drawn.append(NamedTimeline(str(sections.get("title", name)), timeline.first(shown), names))
    return MeasuredLecture(values, drawn)


def simulated_once(
    sections: Mapping[str, Any], m: int, a: float, b: float, training: float, dim: int, rounds: int
) -> tuple[Run, Timeline, Sequence[str]]:
    """Simulate one of `simulated`; return the run, its timeline, and the names of its participants."""
    own = {name: section for name, section in sections.items() if name not in ("method", "title")}
    paradigm = paradigm_of(sections["method"])
    network = {"latency": a, "bandwidth": b, "downlink": b, "training": training, **own.pop("simulation", {})}
    section: dict[str, float] = {RUN_KINDS[paradigm.section].size.partition(".")[2]: m}
    if paradigm.section == "parallel":
        section |= {"deadline": 1e4, "least_deadline": 1e4}
    content: dict[str, Any] = {
        "rounds": rounds, "task": {"kind": "quadratic", "dim": dim}, "eval": {"every": rounds},
        "simulation": {key: value for key, value in network.items() if value != 0 or key != "downlink"},
        paradigm.section: section,
    }  # fmt: skip
    for path, given in [*paradigm.sets.items(), *own.items()]:
        at = content
        for key in path.split(".")[:-1]:
            at = at.setdefault(key, {})
        last = path.split(".")[-1]
        at[last] = {**at.get(last, {}), **given} if isinstance(given, Mapping) else given
    plan = compose.plan(load_experiment(content))
    log = TimelineLog(plan.n, plan.roles.counted, ITEMS)
    run = simulate_plan(plan, timeline=log)
    return run, log.timeline(), [plan.roles.label(node) for node in range(plan.n)]


def hashed(servers: int, many: int, points: int, length: int) -> MeasuredLecture:
    """Place `length` elements on servers by consistent hashing, then on one server more.

    Returns `moved`, the share of elements with another owner then, `among`, the share that moved between servers that
    were there before, `modulo`, the share that moves where element i belongs to server i modulo S, and `spread`, the
    relative standard deviation of the shares of `many` servers; the picture is the circle with few points.
    """
    before, after = owners(length, servers, points), owners(length, servers + 1, points)
    changed = before != after
    places = range(servers * (servers + 1))
    modulo = sum(place % servers != place % (servers + 1) for place in places) / len(places)
    shares = np.bincount(owners(length, many, points), minlength=many) * many / length
    few = [
        Circle(f"{count} servers, 4 points each", [int(one) for one in owners(360, count, 4)], count)
        for count in (servers, servers + 1)
    ]
    values = {
        "moved": float(changed.mean()),
        "among": float((changed & (after != servers)).mean()),
        "modulo": modulo,
        "spread": float(shares.std()),
    }
    return MeasuredLecture(values, Circles(few))


@dataclass(frozen=True)
class MeasuredLecture:
    """Numbers by the names that expressions use, and the picture."""

    values: Mapping[str, float]
    picture: Picture
