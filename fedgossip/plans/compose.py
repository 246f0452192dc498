"""From an experiment to the parts of a run.

Everything here is a function of the experiment alone, so that every participant makes the same on any machine.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

from fedgossip.base import kernels
from fedgossip.base.version import __version__
from fedgossip.core.messages import Hello
from fedgossip.core.model_fingerprint import NOT_SAID, Likeness
from fedgossip.core.task import LocalTask, checked_task, model_likeness, require_gradients, segments_of, table_of
from fedgossip.experiment import Experiment
from fedgossip.experiment.kinds import RUN_KINDS
from fedgossip.learning.settings import OF_THE_MACHINE
from fedgossip.plans.own_parts import check_schedule
from fedgossip.plans.plan import Plan, hash_of, without_folders
from fedgossip.plans.tasks import DataShares, centralised, task_of, task_of_dry_run

__all__ = [
    "DataShares",
    "Plan",
    "centralised",
    "check_task",
    "hello_of",
    "likeness_of",
    "plan",
    "processor_of",
    "task_of",
    "task_of_dry_run",
    "versions",
]


def plan(experiment: Experiment, **given: object) -> Plan:
    """Return the plan of an experiment: all that can be known before anything is trained.  Raises ConfigError.

    `given`: objects of Python, where the experiment says GIVEN; see `gossip.gossip_plan`.  Asks for the kernels of the
    run, if torch is not loaded yet: call it before any import of torch.
    """
    kernels.prefer(portable=experiment.train.portable)
    check_schedule(experiment)
    module, _, function = RUN_KINDS[experiment.kind].plan.partition(":")
    made: Plan = getattr(importlib.import_module(module), function)(experiment, **given)
    if experiment.faults or experiment.simulation.classes:
        from fedgossip.plans.conditions import faults_of, network_settings

        faults_of(made)
        network_settings(experiment, made.n)
    return made


def check_task(plan: Plan, task: LocalTask) -> None:
    """Raise ConfigError for an object that is not a task, or not usable in this run."""
    checked_task(task)
    plan.with_segments(segments_of(task)).with_table(table_of(task))
    plan.check_length(task.length, segments_of(task))
    if plan.gradients:
        require_gradients(task, plan.name)


def likeness_of(plan: Plan, task: LocalTask) -> Likeness:
    """The common part of the models of all participants, beside their layout: code, frozen tensors, a probe."""
    from fedgossip.data.user_code import codes_of

    return replace(model_likeness(task), code=codes_of(plan.experiment.named_code))


def hello_of(plan: Plan, schema: str, data: str = "", likeness: Likeness = NOT_SAID) -> Hello:
    """Return the Hello of every participant of this run; `data`: DataShares.digest, empty where a task has no data.

    The paths of files differ between machines and do not count; their contents do.
    """
    content: dict[str, Any] = without_folders(dict(plan.fingerprint))
    off = () if content["train"]["portable"] else ("portable",)  # older run directories can be collected too
    for key in (*OF_THE_MACHINE, *off):
        content["train"].pop(key, None)
    content = {key: value for key, value in content.items() if key not in ("simulation", "name", "track", "forecast")}
    experiment = hash_of({"content": content, "data": data})
    return Hello(schema, experiment, __version__, code=likeness.code, frozen=likeness.frozen, probe=likeness.probe)


def processor_of(plan: Plan, node: int) -> int:
    """Return the processor mark of a participant's Hello: 0 where the processor does not affect the run's bits."""
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
