"""The kinds of run that an experiment file can describe: one line each, by the section that this kind alone has.

A kind has its experiment, with that section in it, and the checks of it.  Its plan stands on a higher floor, so it is
named here, and imported when a file asks for it: `plans/compose` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgossip.base.errors import ConfigError
from fedgossip.experiment.checks import check_federated, check_gossip, check_parallel
from fedgossip.experiment.sections import COMPARE, Experiment, FederatedExperiment, GossipExperiment, ParallelExperiment


@dataclass(frozen=True)
class RunKind:
    """The kind of run that a section of an experiment file selects."""

    experiment: type[Experiment]
    """The class with a field of the section's name."""
    plan: str
    """module:function, which takes such an experiment and returns its plans.plan.Plan."""
    least: str
    """The minimal content of the section."""
    members: str
    """The participants, in the words of advice."""
    size: str
    """The key for the number of participants."""
    check: Callable[[Any, str], None]
    """Raises ConfigError for an invalid experiment of this kind; called with its file."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Sections of other kinds, and what to write in place of each."""


RUN_KINDS: dict[str, RunKind] = {
    "topology": RunKind(
        GossipExperiment,
        "fedgossip.plans.gossip.gossip:gossip_plan",
        'graph = "ring"  n = 8',
        "peers that talk to neighbours",
        "topology.n",
        check_gossip,
    ),
    "coordinator": RunKind(
        FederatedExperiment,
        "fedgossip.plans.federated.federation_checks:federation_plan",
        "clients = 8",
        "clients of a coordinator",
        "coordinator.clients",
        check_federated,
        {"algorithm": "The algorithm of a federated run is coordinator.algorithm, with coordinator.options."},
    ),
    "parallel": RunKind(
        ParallelExperiment,
        "fedgossip.plans.parallel.parallel:parallel_plan",
        "workers = 4",
        "workers that share every step",
        "parallel.workers",
        check_parallel,
        {"algorithm": "The method of a parallel run is parallel.method, and train.optimizer takes the step."},
    ),
}
"""By the section of the file that each of them alone has."""


def kind_in(content: Mapping[str, object], where: str) -> RunKind:
    """Return the kind of run that the sections of a file describe.  Raises ConfigError for none, and for several."""
    given = [section for section in RUN_KINDS if section in content]
    if not given:
        least = ",  or:  ".join(f"[{section}]  {kind.least}" for section, kind in RUN_KINDS.items())
        raise ConfigError(f"{where}: {_all('no', RUN_KINDS)}", f"Give at least:  {least}")
    if len(given) > 1:
        keep = ", ".join(f"[{section}] for {RUN_KINDS[section].members}" for section in given)
        advice = f"Keep one: {keep}.  Or compare them: fedgossip compare {where}"
        raise ConfigError(f"{where}: {_all('a', given)} in one file", advice)
    kind = RUN_KINDS[given[0]]
    if COMPARE in content:
        advice = f"Run it: fedgossip compare {where}"
        raise ConfigError(f"{where}: [{COMPARE}], so this is a comparison of several runs", advice)
    for section in content:
        if section not in kind.experiment.__struct_fields__:
            advice = kind.instead.get(section, "Leave it out.")
            raise ConfigError(f"{where}: [{section}] is a section of other runs than [{given[0]}]", advice)
    return kind


def _all(word: str, sections: Mapping[str, object] | list[str]) -> str:
    """ "no [topology] and no [coordinator]"."""
    return " and ".join(f"{word} [{section}]" for section in sections)
