"""From one file with the sections of several kinds of run to the experiment of each paradigm.

Common sections ([data], [model], [train], [simulation], [[faults]], ...) are the same for all.  All use the same
examples: a round of workers that share every step is one batch of each, so they have train.local_steps times as many
rounds; and with fewer workers each has larger batches, so that all workers together see as many in a round.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from fedgossip.base.errors import ConfigError
from fedgossip.base.limits import limits_of
from fedgossip.data.objectives import SPARSE
from fedgossip.experiment import Experiment, SimulationSection
from fedgossip.experiment.compared import COMPARE, CompareSection
from fedgossip.experiment.kinds import RUN_KINDS
from fedgossip.experiment.reading import checked
from fedgossip.experiment.task_section import TaskSection
from fedgossip.lab.compare.setting import Paradigm

OF_KINDS = {*RUN_KINDS, "algorithm"}
"""Sections specific to one kind of run."""

BATCH, STEPS = 32, 5
"""Defaults of train.batch_size and train.local_steps."""
WORKERS = 4
"""Default number of workers."""

Content = Mapping[str, Any]


def compare_section(content: Content, where: str) -> CompareSection:
    """Return [compare] of the file.  Raises ConfigError."""
    try:
        found = msgspec.convert(content.get(COMPARE, {}), CompareSection)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: [compare]: {error}", "See docs/together/paradigms.md.") from None
    for name, limit in limits_of(CompareSection):
        if not limit.allows(value := getattr(found, name)):
            raise ConfigError(f"{where}: compare.{name} = {value!r} {limit.refusal}", limit.advice(value))
    if "local_epochs" in content.get("train", {}):
        advice = "Give train.local_steps: all paradigms then see the same number of examples."
        raise ConfigError(f"{where}: train.local_epochs in a comparison", advice)
    return found


def workers_of(content: Content, where: str) -> int:
    """Return the file's number of workers: topology.n, coordinator.clients or parallel.workers; WORKERS by default.

    Raises ConfigError where they differ: paradigms are compared at equal numbers.
    """
    sizes = [(section, kind.size) for section, kind in RUN_KINDS.items()]
    given = {size: content.get(section, {}).get(size.partition(".")[2]) for section, size in sizes}
    found = {size: number for size, number in given.items() if isinstance(number, int)}
    if len(set(found.values())) > 1:
        unlike = ", ".join(f"{key} = {number}" for key, number in found.items())
        raise ConfigError(f"{where}: {unlike}: which number of workers?", "Give one number, or --workers 4,8.")
    return next(iter(found.values()), WORKERS)


def experiment_for(content: Content, paradigm: Paradigm, workers: int, most: int, seed: int, where: str) -> Experiment:
    """Return the experiment of a paradigm with so many workers; `most` is the largest compared number.

    Raises ConfigError as `load_experiment` does.
    """
    own = {key: copy.deepcopy(value) for key, value in content.items() if key not in (OF_KINDS - _kept(paradigm))}
    own.pop(COMPARE, None)
    own["seed"] = seed
    for key in paradigm.ignores:
        own.get(paradigm.section, {}).pop(key, None)
    _put(own, paradigm.section, _section(own.get(paradigm.section, {}), paradigm.section, workers))
    for section, sets in paradigm.sets.items():
        _put(own, section, sets)
    train = own.setdefault("train", {})
    steps, batch = train.setdefault("local_steps", STEPS), train.get("batch_size", BATCH)
    train["batch_size"] = max(1, batch * most // workers)
    if paradigm.one_participant:  # it takes the steps of all its workers, on the examples of all
        train["local_steps"] = steps * workers
        if own.get("task", {}).get("kind") == SPARSE:
            own["task"]["examples"] = own["task"].get("examples", TaskSection().examples) * workers
    simulation = own.setdefault("simulation", {})
    if "per_example" not in simulation:
        training = simulation.get("training", SimulationSection().training)
        simulation["per_example"] = training / (steps * batch)
    if paradigm.every_step:
        own["rounds"] = own.get("rounds", 60) * steps
        measured = own.setdefault("eval", {})
        measured["every"] = measured.get("every", 5) * steps
    return checked(own, where)


def _kept(paradigm: Paradigm) -> set[str]:
    return {paradigm.section, "algorithm"} if paradigm.section == "topology" else {paradigm.section}


def _section(given: Content, section: str, workers: int) -> dict[str, Any]:
    """Return the paradigm's own section with the default number of participants."""
    if section == "topology":
        graph = given.get("graph", "ring")
        small = {1: "none", 2: "complete"}
        return {"graph": small.get(workers, graph) if graph == "ring" else graph, "n": workers}
    size = RUN_KINDS[section].size.partition(".")[2]
    if section == "coordinator" and "secure" not in given:
        return {size: workers, "secure": {"on": False}}
    return {size: workers}


def _put(content: dict[str, Any], path: str, values: Content) -> None:
    for key in path.split("."):
        content = content.setdefault(key, {})
    content.update(values)
