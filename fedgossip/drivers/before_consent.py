"""The description of a proposed run before a person agrees to it: made from its declarations alone.

It builds no graph, opens no file and imports nothing; values that only code determines appear by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fedgossip.algorithms.gossip.names import METHODS, Told, make
from fedgossip.base.errors import ConfigError
from fedgossip.core.messages import INVITED_MAX
from fedgossip.data.custom import importing_nothing
from fedgossip.data.named_code import code_by_key, code_in
from fedgossip.drivers.members import is_open_to
from fedgossip.experiment import (
    CoordinatorSection,
    Experiment,
    FederatedExperiment,
    GossipExperiment,
    ParallelExperiment,
)
from fedgossip.experiment.coordinator_sections import CODEC_CODE
from fedgossip.experiment.gossip_sections import GRAPH_CODE
from fedgossip.plans import compose
from fedgossip.plans.gossip.gossip_words import terms_of
from fedgossip.plans.plan import JoiningTerms


@dataclass(frozen=True)
class DeclaredRun:
    """Properties of a proposed run shown before consent: the part of a `Plan` that needs neither graph nor code."""

    experiment: Experiment
    name: str
    gradients: bool
    terms: Callable[[int, int], JoiningTerms]
    """Of a model of so many numbers of so many bytes each."""


def declared_run(experiment: Experiment) -> DeclaredRun:
    """Return the declarations of a proposed experiment.  Raises ConfigError for one that cannot be run."""
    with importing_nothing("the organiser's experiment"):
        if isinstance(experiment, GossipExperiment):
            return _of_peers(experiment)
        plan = compose.plan(_without_code(experiment))
        if isinstance(experiment, FederatedExperiment):
            names = [one for key, one in code_by_key(experiment.coordinator) if key != "sampling"]
            name = experiment.coordinator.algorithm if names else plan.name
            return DeclaredRun(experiment, name, plan.gradients, _by(names, plan.terms))
        codec = CODEC_CODE.named_by(experiment.parallel.codec) if isinstance(experiment, ParallelExperiment) else ""
        return DeclaredRun(experiment, plan.name, plan.gradients, _by([codec] if codec else [], plan.terms))


def _of_peers(e: GossipExperiment) -> DeclaredRun:
    n, name = e.topology.n, _graph(e.topology.graph)
    if n is not None and n > INVITED_MAX:
        raise ConfigError(f"the organiser's experiment is of {n:,} peers", f"An invite is for {INVITED_MAX} at most.")
    method = METHODS.get(e.algorithm.name)
    if method is None:  # the contents of its messages follow from its code alone
        return DeclaredRun(e, name, False, lambda _numbers, _size: terms_of(e, name, n, 0))
    codes = [one for key, one in code_by_key(e.algorithm) if key == "options"]
    options = {key: value for key, value in e.algorithm.options.items() if value not in codes}
    made = make(e.algorithm.name, method, Told(n or 2), options)
    vectors = sum(slot.length is None for slot in made.slots)
    come_and_go = "; others may come and go" if is_open_to(e, made.needs) else ""

    def terms(numbers: int, size: int) -> JoiningTerms:
        said = terms_of(e, name, n, numbers * size * vectors)
        return replace(said, how=f"{said.how}{come_and_go}")

    return DeclaredRun(e, name, False, _by(codes, terms))


def _graph(graph: str) -> str:
    """Return the name of a graph before it is built: a word, a function, or the file that came with the proposal."""
    return graph if GRAPH_CODE.named_by(graph) or "/" not in graph else "a graph that the organiser sends"


def _without_code(e: Experiment) -> Experiment:
    """Return an experiment with built-in parts in place of code: rates, rules, codecs, filters."""
    usual_steps: dict[str, Any] = {"train.schedule": "constant", "train.optimizer": "sgd"}
    steps = {key.partition(".")[2]: usual_steps[key] for key, _ in code_by_key(e) if key in usual_steps}
    e = msgspec.structs.replace(e, train=dataclasses.replace(e.train, **steps)) if steps else e
    if isinstance(e, FederatedExperiment):
        named = {key for key, _ in code_by_key(e.coordinator)}
        usual: dict[str, Any] = {key: getattr(CoordinatorSection(e.coordinator.clients), key) for key in named}
        usual |= {"options": {}} if "algorithm" in named else {}
        return msgspec.structs.replace(e, coordinator=msgspec.structs.replace(e.coordinator, **usual))
    if not isinstance(e, ParallelExperiment) or not (own := code_in(e.parallel)):
        return e
    server, codec = e.parallel.server, "" if e.parallel.codec in own else e.parallel.codec
    kept = msgspec.structs.replace(server, filters=[one for one in server.filters if one not in own])
    return msgspec.structs.replace(e, parallel=msgspec.structs.replace(e.parallel, server=kept, codec=codec))


def _by(own: Sequence[str], terms: Callable[[int, int], JoiningTerms]) -> Callable[[int, int], JoiningTerms]:
    """Return the terms of a run; what its own rules and codec make of a participant's training their code decides."""
    names = " and ".join(own)

    def by_code(numbers: int, size: int) -> JoiningTerms:
        usual = terms(numbers, size)
        sent = f"what the code of {names} makes of it; without that code: {usual.sent}"
        return replace(usual, how=f"by the code of {names}; without it: {usual.how}", sent=sent)

    return by_code if own else terms
