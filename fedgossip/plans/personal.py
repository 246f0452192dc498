"""Models of the participants' own in a run: checks of the experiment, and the task that trains them."""

from __future__ import annotations

from fedgossip.algorithms.federated.base import ClientRule
from fedgossip.algorithms.federated.fedavg import Training
from fedgossip.base.errors import ConfigError
from fedgossip.core.task import LocalTask
from fedgossip.data.objectives import CONVEX
from fedgossip.experiment import Experiment, FederatedExperiment, GossipExperiment
from fedgossip.learning.personal.base import PersonalMethod, check_steps
from fedgossip.learning.personal.clusters import Ifca
from fedgossip.learning.personal.names import method_of
from fedgossip.learning.personal.personal_task import PersonalTask
from fedgossip.plans.own_parts import codec_named


def personal_of(e: Experiment) -> PersonalMethod | None:
    """Return the personal method of an experiment; None without one.  Raises ConfigError for an unknown one."""
    return method_of(_key(e), e.personal) if e.personal else None


def with_personal(e: Experiment, task: LocalTask) -> LocalTask:
    """Return the task with models of the participants' own, where the experiment has them."""
    method = personal_of(e)
    compared = e.eval.every if e.data.local_test else 0
    if method is None:
        return task
    return PersonalTask(task, method, e.train, rounds=e.rounds, seed=e.seed, score=e.score, compared=compared)


def check_personal_clients(e: FederatedExperiment, rule: ClientRule) -> None:
    """Raise ConfigError for a personal method that the rest of a federated run does not go with."""
    method = _checked(e)
    if method is None:
        return
    s, where = e.coordinator, f"coordinator.personal = {e.personal!r}"
    plain = isinstance(rule, Training) and not rule.mu
    if rule.gradient or not (plain or method.follows):
        text = f"{where} with coordinator.algorithm = {s.algorithm!r}, whose clients train by a rule of its own"
        raise ConfigError(text, "Take fedavg, or a server such as fedavgm or fedadam.")
    if isinstance(method, Ifca) and method.clusters > s.clients:
        text = f"{where}: {method.clusters} clusters of {s.clients} clients"
        raise ConfigError(text, f"Write ifca?clusters={min(2, s.clients)}, or fewer than clients.")
    if s.codec and codec_named(s.codec).remembers:
        text = f"{where} with coordinator.codec = {s.codec!r}, which adds what it left out to a later update"
        raise ConfigError(text, "Leave coordinator.codec out, or take one without a memory: bf16.")
    if e.budget and e.budget.unit == "record" and not method.private:
        text = f"{where} with coordinator.privacy.unit = 'record': it reads losses and gradients beside the training"
        raise ConfigError(text, "Take ditto, mr-mtl or finetune.")


def check_personal_peers(e: GossipExperiment) -> None:
    """Raise ConfigError for a personal method that the rest of a gossip run does not go with."""
    method = _checked(e)
    if method is None:
        return
    a, where = e.algorithm, f"algorithm.personal = {e.personal!r}"
    changed = a.name != "dsgd" or a.mode != "sync" or a.options.get("order", "atc") != "atc"
    if changed and not method.follows:  # a peer sends x + update, which the method has made
        name = " ".join([repr(a.name), a.mode, *map(str, a.options.values())])
        text = f"{where} with algorithm.name = {name}, which goes by updates of usual training"
        raise ConfigError(text, "Take dsgd with its usual order, in sync mode; or ditto or finetune.")
    if isinstance(method, Ifca) and e.topology.n is not None and method.clusters > e.topology.n:
        raise ConfigError(f"{where}: {method.clusters} clusters of {e.topology.n} peers", "Write ifca?clusters=2.")


def _checked(e: Experiment) -> PersonalMethod | None:
    """Return the method.  Raises ConfigError for what no run with it can have."""
    method = personal_of(e)
    if method is None:
        return None
    where = f"{_key(e)} = {e.personal!r}"
    if not (e.learns and e.task.kind != CONVEX) and e.task.kind != "quadratic":
        text = f"{where} with task.kind = {e.task.kind!r}, which trains no model of a participant's own"
        raise ConfigError(text, "Leave it out, or learn a model from data.")
    if e.train.personal:
        text = f"{where} with train.personal = {e.train.personal!r}: both keep parameters at their node"
        raise ConfigError(text, "Leave train.personal out; fedrep?head=PATTERNS keeps layers, and trains them apart.")
    check_steps(method, str(e.personal), e.train)
    return method


def _key(e: Experiment) -> str:
    return "coordinator.personal" if isinstance(e, FederatedExperiment) else "algorithm.personal"
