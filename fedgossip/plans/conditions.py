"""The conditions under which a plan is run: its faults, and the network and processors of a simulation.

`compose.plan` makes them once for their checks, so that a dry run, a run and a launch refuse the same experiments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from fedgossip.base.errors import ConfigError
from fedgossip.experiment import Experiment
from fedgossip.faults import FaultScript
from fedgossip.plans.plan import Plan
from fedgossip.simulation.network import DeviceClass, NetworkSettings


def faults_of(plan: Plan) -> FaultScript:
    """The [[faults]] of a run.  Raises ConfigError for peers or links that are not there."""
    faults = plan.experiment.faults
    named = {tuple(pair) for fault in faults for pair in getattr(fault, "links", None) or ()}
    links = {(a, b) for a, b in named if max(a, b) < plan.n and (b in plan.partners(a) or a in plan.partners(b))}
    return FaultScript(faults, plan.n, plan.experiment.seed, links)


def network_settings(experiment: Experiment, n: int) -> NetworkSettings:
    """The [simulation] section as the simulator wants it.  Raises ConfigError for nodes that are not there."""
    plain = msgspec.structs.asdict(experiment.simulation)
    classes = [
        DeviceClass(frozenset(_nodes(one.nodes, n)), one.bandwidth, one.downlink, one.latency, one.slower)
        for one in plain.pop("classes")
    ]
    return NetworkSettings(**plain, classes=classes)


def _nodes(text: str, n: int) -> Iterator[int]:
    """Yield the ids of "0-3, 7"."""
    for part in text.split(","):
        numbers = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        first, last = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (0, -1)
        if not first <= last < n:
            what = f"simulation.classes: {part.strip()!r} names no nodes of this run"
            raise ConfigError(what, f'They are 0 to {n - 1}.  Write nodes = "0-3, 7".')
        yield from range(first, last + 1)
