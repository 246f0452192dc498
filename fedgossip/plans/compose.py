"""From an experiment alone to the parts of a run, equal at every participant: plan, faults, simulated network and
processors.

`plan` checks a run's conditions once, for dry run, run and launch.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import msgspec

from fedgossip.algorithms.collectives.names import EqualLinks
from fedgossip.base import kernels
from fedgossip.base.errors import ConfigError
from fedgossip.base.version import __version__
from fedgossip.core.messages import Hello
from fedgossip.core.model_fingerprint import NO_LIKENESS, Likeness
from fedgossip.core.run_summary import StepFacts
from fedgossip.core.task import Job, LocalTask, checked_task, model_likeness, require_gradients, segments_of, table_of
from fedgossip.experiment import Experiment
from fedgossip.experiment.reading import RUN_KINDS
from fedgossip.experiment.run_sections import LINKS
from fedgossip.faults import FaultScript, pairs_of
from fedgossip.learning.settings import OF_THE_MACHINE
from fedgossip.plans.own_parts import check_schedule
from fedgossip.plans.plan import Plan, hash_of, without_folders
from fedgossip.plans.tasks import DataShares, centralised, task_of, task_of_dry_run
from fedgossip.simulation.network import DeviceClass, NetworkSettings, Racks

__all__ = [
    "DataShares",
    "Plan",
    "centralised",
    "check_task",
    "hello_of",
    "job_examples",
    "likeness_of",
    "plan",
    "processor_of",
    "step_inside",
    "task_of",
    "task_of_dry_run",
    "versions",
]


def plan(experiment: Experiment, **given: object) -> Plan:
    """Return the plan of an experiment: all that is known before training.  Raises ConfigError.

    `given`: Python objects for the GIVEN entries of the experiment.  Selects the run's kernels: call it before any
    import of torch.
    """
    kernels.prefer(portable=experiment.train.portable)
    check_schedule(experiment)
    module, _, function = RUN_KINDS[experiment.kind].plan.partition(":")
    made: Plan = getattr(importlib.import_module(module), function)(experiment, **given)
    if experiment.faults or experiment.simulation.classes:
        faults_of(made)
        network_settings(experiment, made.n)
    return made


def check_task(plan: Plan, task: LocalTask) -> None:
    """Raise ConfigError for an object that is not a task, or unusable in this run."""
    checked_task(task)
    plan.with_segments(segments_of(task)).with_table(table_of(task))
    plan.check_length(task.length, segments_of(task))
    if plan.gradients:
        require_gradients(task, plan.name)


QUERY_NAME = 80
"""Maximum number of letters of a query's name in a Hello."""


def likeness_of(plan: Plan, task: LocalTask) -> Likeness:
    """Return the properties, besides the layout, that the models of all participants share: code and the query of
    tables, frozen tensors, a probe.
    """
    from fedgossip.data.custom import codes_of
    from fedgossip.data.table_files import SQL, table_file

    code, source = codes_of(plan.experiment.named_code), plan.experiment.data.source
    if source.partition(":")[0] == SQL and (query := table_file(source)[0].query):
        from fedgossip.data.office_tables import query_digest

        code = f"{code} {quote(query.name)[:QUERY_NAME]}={query_digest(query)[:16]}".strip()
    return replace(model_likeness(task), code=code)


def hello_of(plan: Plan, schema: str, data: str = "", likeness: Likeness = NO_LIKENESS) -> Hello:
    """Return every participant's Hello, without files' paths; `data`: DataShares.digest, or empty."""
    content: dict[str, Any] = without_folders(dict(plan.fingerprint))
    off = () if content["train"]["portable"] else ("portable",)  # older run directories can be collected too
    for key in (*OF_THE_MACHINE, *off):
        content["train"].pop(key, None)
    content = {key: value for key, value in content.items() if key not in ("simulation", "name", "track", "forecast")}
    experiment = hash_of({"content": content, "data": data})
    return Hello(schema, experiment, __version__, code=likeness.code, frozen=likeness.frozen, probe=likeness.probe)


def processor_of(plan: Plan, node: int) -> int:
    """Return the processor mark of a participant's Hello: 0 if the processor does not affect the run's bits."""
    e = plan.experiment
    decides = node < plan.learners and (e.learns or e.loops) and not e.train.portable
    return kernels.processor_mark() if decides else 0


def versions() -> dict[str, str]:
    """Return the versions of imported libraries that affect the bits of a run."""
    import platform
    import sys

    found = {"fedgossip": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in ("numpy", "torch", "zmq"):
        if module := sys.modules.get(name):
            found[name] = str(module.__version__)
    return found


def faults_of(plan: Plan, draws: int | None = None) -> FaultScript:
    """Return the [[faults]] of a run, drawn from its seed or from `draws`.  Raises ConfigError for unknown peers or
    links.
    """
    faults = plan.experiment.faults
    named = {pair for fault in faults for pair in pairs_of(fault)}
    links = {(a, b) for a, b in named if max(a, b) < plan.n and (b in plan.partners(a) or a in plan.partners(b))}
    return FaultScript(faults, plan.n, plan.experiment.seed if draws is None else draws, links)


def step_inside(experiment: Experiment, task: LocalTask) -> StepFacts | None:
    """Return a participant's step according to simulation.inside, or None.

    Raises ConfigError if a process has too little memory for its part of the model, and for layers without a FLOP
    count.
    """
    if (inside := experiment.simulation.inside) is None or (flops := inside.flops) is None:
        return None
    from fedgossip.learning.processes.step_costs import LINKED, ZERO_1
    from fedgossip.learning.task import TorchTask

    if not isinstance(task, TorchTask):
        raise ConfigError("simulation.inside with a task of your own", "It counts a model that torch trains.")
    shape = task.step_shape()
    if shape.uncounted:
        text = f"simulation.inside: torch counts no FLOPs of {shape.uncounted}"
        raise ConfigError(text, "Give simulation.per_example in its place.")
    holds = shape.by_way[ZERO_1] if inside.zero == 1 else shape.on_device
    if inside.memory is not None and holds > inside.memory:
        text = f"a process holds {holds:,} bytes, more than simulation.inside.memory = {inside.memory:,.0f}"
        mesh = 'more processes, train.parallel = "fsdp", or another train.mesh: fedgossip advise mesh ranks them'
        raise ConfigError(text, f"Divide the model by {mesh}.")
    rate = LINKS[inside.links] if inside.links else inside.bandwidth or math.inf
    links = dict.fromkeys(LINKED, EqualLinks(inside.latency or 0.0, rate, rate))
    times = shape.times(lambda rows: rows * shape.whole_flops / flops, links)
    copies = {"offload": shape.copied / inside.pcie} if inside.pcie is not None and shape.copied else {}
    return {
        "seconds": times.seconds + sum(copies.values()),
        "work": times.work,
        "idle": times.idle,
        "messages": {**times.messages, **copies},
        "sent": dict(shape.sent),
        "flops": experiment.train.batch_size * shape.whole_flops,
        "copied": shape.copied,
        "memory": holds,
        "by_way": dict(shape.by_way),
    }


def job_examples(experiment: Experiment, sizes: Sequence[int] | None = None) -> Callable[[Job], int]:
    """Return the function from a job to its number of examples: a gradient's batches, or a round's steps (one example
    each for problems with a known solution).

    `sizes`: number of examples of each node, for local epochs.
    """
    train = experiment.train
    if not experiment.learns:
        return lambda _: 1
    parallel = getattr(experiment, "parallel", None)
    at_once = train.processes if parallel is not None and parallel.races else 1  # one processor each, as workers

    def examples(job: Job) -> int:
        if job.gradient and job.accumulate is not None:
            return job.accumulate * train.batch_size
        if train.local_steps is not None:
            return math.ceil(train.local_steps / at_once) * train.examples_per_step
        passes = train.passes(experiment.seed, job.node, job.round) if train.local_epochs else 1
        return math.ceil(passes * (sizes[job.node] if sizes else train.batch_size) / at_once)

    return examples


def network_settings(experiment: Experiment, n: int, step: StepFacts | None = None) -> NetworkSettings:
    """Return the simulator's settings by the [simulation] section.  Raises ConfigError for unknown nodes.

    `step`: step of a participant with a time given by its processes.
    """
    plain = msgspec.structs.asdict(experiment.simulation)
    if plain.pop("inside") is not None and step is not None:
        plain["per_example"] = step["seconds"] / experiment.train.batch_size
    classes = [
        DeviceClass(frozenset(_nodes(one.nodes, n)), one.bandwidth, one.downlink, one.latency, one.slower)
        for one in plain.pop("classes")
    ]
    racks = plain.pop("racks")
    return NetworkSettings(**plain, classes=classes, racks=racks and Racks(**msgspec.structs.asdict(racks)))


def _nodes(text: str, n: int) -> Iterator[int]:
    """Yield the ids in a text such as "0-3, 7"."""
    for part in text.split(","):
        numbers = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        first, last = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (0, -1)
        if not first <= last < n:
            what = f"simulation.classes: {part.strip()!r} names no nodes of this run"
            raise ConfigError(what, f'They are 0 to {n - 1}.  Write nodes = "0-3, 7".')
        yield from range(first, last + 1)
