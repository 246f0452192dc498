"""Creates the plan of an experiment with a [coordinator], or raises an error for invalid settings."""

from __future__ import annotations

import math
from typing import Any

from fedgossip.algorithms.codecs.base import LinearCodec
from fedgossip.algorithms.codecs.sparse import DeepGradient
from fedgossip.algorithms.federated import names
from fedgossip.algorithms.federated.base import Federated
from fedgossip.algorithms.federated.cocoa import DualAscent
from fedgossip.algorithms.federated.fedavg import Normalised, Training
from fedgossip.algorithms.federated.robust_aggregation import ByRule
from fedgossip.algorithms.federated.scaffold import Controlled, Dynamic
from fedgossip.algorithms.federated.sums import Mean
from fedgossip.algorithms.sampling import participating
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.data.custom import is_function
from fedgossip.data.objectives import CONVEX, SPARSE, SUMS
from fedgossip.experiment import CoordinatorSection, Experiment, FederatedExperiment
from fedgossip.experiment.run_sections import BY_LOSSES
from fedgossip.learning.linear.convex import LASSO
from fedgossip.learning.personal.methods import OF_LOGITS
from fedgossip.learning.settings import TrainSettings
from fedgossip.plans.federated.federation import FEDBUFF, FederationPlan
from fedgossip.plans.federated.secure_encoding import ROOM
from fedgossip.plans.federated.tree import Tree, tree_of
from fedgossip.plans.own_parts import codec_named, make_federated
from fedgossip.plans.tasks import check_personal_clients
from fedgossip.secure import graph
from fedgossip.secure.session import N_MIN

MOST_PARTICIPANTS = 100_000
"""Maximum number of clients and leaf coordinators of a run with tiers: the common roster has an entry for each."""

COARSEST = 0.1
"""Maximum rounding step of an update's element: weights of a model seldom exceed a few units."""


def federation_plan(experiment: FederatedExperiment) -> FederationPlan:
    """Return the plan of a federated run, with its algorithm and numbers.  Raises ConfigError."""
    s = experiment.coordinator
    federated = _algorithm(s, 1 / experiment.task.smooth if experiment.task.loss == LASSO else 0.0)
    _check_hiding(s, federated)
    _check_gradients(experiment, federated)
    _check_steps(experiment, federated)
    _check_codec(s, federated, experiment.task.kind)
    _check_dual(experiment, federated)
    check_personal_clients(experiment, federated.clients)
    if s.secure.on:
        _check_secure(s, federated)
    cohort = s.cohort or participating(s.clients, s.participation)
    if cohort > s.clients:
        raise ConfigError(f"coordinator.cohort = {cohort} of {s.clients} clients", "Make it at most that many.")
    tree = tree_of(s)
    if not tree.flat:
        _check_tiers(experiment, tree)
    smallest, hidden = min(cohort, tree.smallest_leaf), s.secure.on and tree.groups[0].secure
    least = s.min_clients or (min(5, smallest) if hidden else 1)
    if least > smallest < cohort:
        text = f"coordinator.min_clients = {least}, and a leaf coordinator has {smallest} clients: it could form no sum"
        raise ConfigError(text, "Lower coordinator.min_clients, or make the leaves larger.")
    if least > cohort:
        advice = "A round needs as many: lower coordinator.min_clients, or raise participation."
        raise ConfigError(f"coordinator.min_clients = {least}, and {cohort} clients are wanted in a round", advice)
    needed = federated.aggregation.least if isinstance(federated.aggregation, ByRule) else 1
    if needed > cohort:
        text = f"{s.algorithm} compares at least {needed} updates, and {cohort} clients are wanted in a round"
        raise ConfigError(text, "Invite more, or let the rule bear fewer faulty ones: coordinator.options.")
    plan = FederationPlan(experiment, s, federated, cohort, least)
    if s.secure.on:
        _check_sum(plan)
    _check_privacy(plan)
    if experiment.endless and experiment.budget:
        text = 'rounds = "endless" with a privacy budget: noise and epsilon follow from the number of rounds'
        raise ConfigError(text, "Give a number: rounds = 60, or --rounds 60.")
    _check_sampling(plan)
    if plan.buffered and plan.goal > s.clients:
        raise ConfigError(f"coordinator.goal = {plan.goal} of {s.clients} clients", "Make it at most that many.")
    return plan


def _check_sampling(plan: FederationPlan) -> None:
    s, by_choice = plan.section, plan.section.sampling == "power-of-choice"
    if plan.buffered and s.sampling != "uniform":
        text = f"coordinator.sampling = {s.sampling!r} with fedbuff, which invites every client that is free"
        raise ConfigError(text, "Leave one of them out.")
    if plan.buffered and s.available is not None:
        text = f"coordinator.available = {s.available!r} goes by the round, and fedbuff invites at any time"
        raise ConfigError(text, "Take fedavg, or leave it out.")
    of_cohorts = s.cohort not in (None, s.clients) or s.participation < 1 or s.over_selection > 1
    if plan.buffered and of_cohorts:
        text = "coordinator.cohort, participation or over_selection with fedbuff, whose rounds have no cohort"
        raise ConfigError(text, "Leave it out; coordinator.at_once is the number that train at the same time.")
    if s.candidates is not None and not by_choice:
        text = f"coordinator.candidates = {s.candidates} with coordinator.sampling = {s.sampling!r}"
        raise ConfigError(text, 'It belongs to sampling = "power-of-choice": set that, or leave it out.')
    if s.candidates is not None and not plan.invited <= s.candidates <= s.clients:
        text = f"coordinator.candidates = {s.candidates}, of which {plan.invited} are invited, of {s.clients} clients"
        raise ConfigError(text, f"Set it to {plan.invited} to {s.clients}.")


def _check_tiers(experiment: FederatedExperiment, tree: Tree) -> None:
    s, out = experiment.coordinator, "Leave coordinator.tiers out."
    if not s.secure.on:
        text = "coordinator.secure.on = false with coordinator.tiers: coordinators add the integers of secure sums"
        raise ConfigError(text, "Leave it on; set secure = false in a tier whose coordinators may see single summands.")
    asked = s.cohort not in (None, s.clients) or s.participation < 1 or s.over_selection > 1
    if asked or s.sampling != "uniform":
        text = (
            "coordinator.tiers invite all clients to each round: no participation, cohort, over_selection or sampling"
        )
        raise ConfigError(text, f"Leave these out, or: {out}")
    if s.available is not None:
        raise ConfigError(
            f"coordinator.available = {s.available!r} with coordinator.tiers: these invite all clients", out
        )
    if s.secure.threshold is not None:
        text = f"coordinator.secure.threshold = {s.secure.threshold} with coordinator.tiers: each group has its own"
        raise ConfigError(text, "Leave the threshold out.")
    if s.privacy.adaptive:
        raise ConfigError("coordinator.privacy.adaptive with coordinator.tiers: the clip is sent to no leaf", out)
    if experiment.loops:
        raise ConfigError("loops of your own with coordinator.tiers", out)
    if experiment.task.kind in SUMS and not tree.groups[0].secure:
        text = f"coordinator.tiers: {SUMS[experiment.task.kind]}, which are secure ones of the first tier's clients"
        raise ConfigError(text, "Leave secure = false out of the first tier.")
    if tree.root > MOST_PARTICIPANTS:
        raise ConfigError(f"{tree.root:,} clients and leaf coordinators; at most {MOST_PARTICIPANTS:,}", out)


def _algorithm(s: CoordinatorSection, threshold: float) -> Federated[Any]:
    options = dict(s.options)
    name = s.algorithm
    if name == FEDBUFF:
        name = "fedavg"
    elif name in OF_LOGITS:  # its options are those of the method, see Experiment.personal
        name, options = "fedavg", {"weighting": "clients"}
    elif is_function(name):
        return make_federated(name, options, s.clients)
    elif name not in names.ALGORITHMS:
        known = [*names.ALGORITHMS, FEDBUFF, *OF_LOGITS]
        raise ConfigError(f"coordinator.algorithm = {name!r} is not known", nearest(name, known))
    try:
        return names.make(name, clients=s.clients, threshold=threshold, **options)
    except TypeError as error:
        raise ConfigError(f"coordinator.options = {options}: {error}", "Numbers and words, by name.") from None


def _check_gradients(experiment: Experiment, federated: Federated[Any]) -> None:
    if federated.clients.gradient and not experiment.train.plain:
        t, usual = experiment.train, TrainSettings()
        names = ("optimizer", "momentum", "weight_decay", "clip_norm")
        named = ", ".join(f"train.{name}" for name in names if getattr(t, name) != getattr(usual, name))
        advice = f"Leave {named} out, or take fedavg with train.local_steps = 1."
        raise ConfigError(f"clients of fedsgd send gradients and take no steps, and {named} is of steps", advice)


def _check_steps(experiment: FederatedExperiment, federated: Federated[Any]) -> None:
    """Raise ConfigError for local steps that the rule's formula does not cover."""
    t, rule = experiment.train, federated.clients
    if experiment.task.kind == "loop":
        if isinstance(rule, Dynamic):
            text = "feddyn corrects each step of the built-in training, and a loop of your own takes its own steps"
            raise ConfigError(text, "Take fedprox, or scaffold with plain SGD.")
        return
    pulls = isinstance(rule, Controlled | Dynamic) or (isinstance(rule, Training) and rule.mu > 0)
    if pulls and experiment.task.kind == SPARSE:
        name = experiment.coordinator.algorithm
        text = f"{name} changes every element at each step, and a step of {SPARSE} changes a few rows"
        raise ConfigError(text, "Take fedavg, or a server such as fedadam.")
    if isinstance(rule, Controlled) and (t.optimizer != "sgd" or t.momentum):
        key, value = ("optimizer", repr(t.optimizer)) if t.optimizer != "sgd" else ("momentum", f"{t.momentum:g}")
        text = f"scaffold reads gradients off the steps of plain SGD, and train.{key} = {value}"
        raise ConfigError(text, f"Leave train.{key} out, or take fedavg, fedprox or fedadam.")
    if isinstance(rule, Normalised) and t.optimizer == "sgd" and t.momentum != rule.momentum:
        named = f"coordinator.options.momentum = {rule.momentum:g}"
        text = f"fednova counts with {named}, and train.momentum = {t.momentum:g}"
        raise ConfigError(text, f"Set coordinator.options.momentum = {t.momentum:g}.")


def _check_codec(s: CoordinatorSection, federated: Federated[Any], kind: str) -> None:
    """Raise ConfigError for a codec that is unknown, or unsuitable for these updates."""
    if not s.codec:
        return
    try:
        codec = codec_named(s.codec)
    except ConfigError as error:
        raise ConfigError(f"coordinator.codec: {error}", error.advice) from None
    where, out = f"coordinator.codec = {s.codec!r}", "Leave coordinator.codec out."
    if kind in SUMS:
        raise ConfigError(f"{where}, and {SUMS[kind]} of whole numbers, none of which may be left out", out)
    if s.algorithm == FEDBUFF:
        text = f"{where} with fedbuff, whose clients do not learn which of their answers counted"
        raise ConfigError(text, "Take fedavg: a codec's stored error depends on the counted answers.")
    if not isinstance(federated.aggregation, Mean):
        text = f"{where} with {s.algorithm}, which compares whole updates, and a codec sends parts of them"
        raise ConfigError(text, f"{out[:-1]}, or take fedavg.")
    if federated.clients.vectors > 1:
        text = f"{where} with {s.algorithm}, which sends {federated.clients.vectors} vectors that belong together"
        raise ConfigError(text, f"{out[:-1]}, or take fedavg.")
    if isinstance(codec, DeepGradient):
        text = f"{where} applies the momentum of single steps, and an update is of many"
        raise ConfigError(text, f'Set coordinator.codec = "top-k:{codec.share:g}".')
    if s.secure.on and not isinstance(codec, LinearCodec):
        text = f"{where} with a secure sum, which can only add elements that all clients draw equally"
        raise ConfigError(text, 'Set coordinator.codec = "random-k:0.1", or coordinator.secure.on = false.')
    if s.privacy.unit == "client":
        text = f"{where} with coordinator.privacy.unit = 'client', whose clip and noise are of whole updates"
        raise ConfigError(text, out)


def _check_dual(experiment: FederatedExperiment, federated: Federated[Any]) -> None:
    """Raise ConfigError for CoCoA with a task that is not convex, or with clipped sums."""
    s = experiment.coordinator
    if not isinstance(federated.clients, DualAscent):
        return
    if experiment.task.kind != CONVEX:
        text = f"cocoa goes by dual variables, and task.kind = {experiment.task.kind!r} has none"
        raise ConfigError(text, f'Set task.kind = "{CONVEX}", with its loss: hinge, logistic or squares.')
    if s.codec:
        text = f"coordinator.codec = {s.codec!r} with cocoa, whose certificate is of whole sums"
        raise ConfigError(text, "Leave coordinator.codec out.")
    if s.privacy.unit != "none":
        raise ConfigError("cocoa keeps no privacy budget", "Leave coordinator.privacy.unit out, or take fedsgd.")
    if s.secure.on:
        text = (
            "cocoa sums examples and objectives in addition to its model, and a secure sum clips numbers to its bound"
        )
        raise ConfigError(text, "Set coordinator.secure.on = false: the coordinator then sees every client's update.")


def _check_secure(s: CoordinatorSection, federated: Federated[Any]) -> None:
    """Raise ConfigError for settings that a secure sum does not support."""
    off = "Set coordinator.secure.on = false: the coordinator then sees every client's update."
    if s.algorithm == FEDBUFF:
        raise ConfigError("fedbuff has no cohort whose sum could be secure", off)
    if not isinstance(federated.aggregation, Mean):
        raise ConfigError(f"{s.algorithm} needs to see each contribution, which a secure sum hides", off)
    if is_function(s.sampling):
        text = f"coordinator.sampling = {s.sampling!r}: cohorts of a secure sum keep their size, and yours promise none"
        raise ConfigError(text, off)
    if s.sampling in BY_LOSSES:
        raise ConfigError(
            f"coordinator.sampling = {s.sampling!r} needs each client's loss, which a secure sum hides", off
        )
    if s.sampling == "poisson":
        advice = 'Set coordinator.sampling = "uniform", or coordinator.secure.on = false.'
        raise ConfigError("cohorts of a secure sum keep their size: one client more or less would show it", advice)


def _check_hiding(s: CoordinatorSection, federated: Federated[Any]) -> None:
    if s.privacy.unit == "client" and (s.algorithm == FEDBUFF or not isinstance(federated.aggregation, Mean)):
        advice = "Take fedavg, or another algorithm that sums updates; or leave coordinator.privacy.unit out."
        raise ConfigError(f"{s.algorithm} cannot hide clients: their noise is added inside a secure sum", advice)
    if s.privacy.unit != "none" and (is_function(s.sampling) or s.sampling in BY_LOSSES):
        text = f"coordinator.sampling = {s.sampling!r}: a budget counts on cohorts that are drawn as it knows them"
        raise ConfigError(text, 'Set coordinator.sampling = "uniform", or leave coordinator.privacy.unit out.')
    if s.privacy.unit != "none" and s.available is not None:
        text = f"coordinator.available = {s.available!r}: a budget counts on cohorts that are drawn from all clients"
        raise ConfigError(text, "Leave it out, or leave coordinator.privacy.unit out.")
    if s.privacy.adaptive and s.privacy.unit != "client":
        text = f"coordinator.privacy.adaptive = true moves the clip of clients, and unit is {s.privacy.unit!r}"
        raise ConfigError(text, 'Leave it out, or set coordinator.privacy.unit = "client".')


def _check_privacy(plan: FederationPlan) -> None:
    s = plan.section
    if s.privacy.test_noise and not (plan.unit == "record" and plan.experiment.data.local_test):
        text = "coordinator.privacy.test_noise is of the examples that clients keep for tests, where records are hidden"
        raise ConfigError(text, 'Set data.local_test and coordinator.privacy.unit = "record", or leave it out.')
    if s.privacy.test_noise and plan.experiment.score.name != "accuracy":
        name = plan.experiment.score.name
        text = f"coordinator.privacy.test_noise is for a count of right answers, and the score is {name}"
        raise ConfigError(text, 'Put "accuracy" first in task.metrics, or leave test_noise out: no count is sent then.')
    trains = plan.experiment.learns and plan.experiment.task.kind != CONVEX
    if plan.unit == "record" and not trains and plan.experiment.task.kind not in SUMS:
        what = "cannot hide them" if plan.experiment.task.kind == CONVEX else "has none"
        text = f"coordinator.privacy.unit = record hides examples, and this task {what}"
        raise ConfigError(text, 'Set task.kind = "learning".')
    if plan.unit == "client" and not plan.hides(0):
        key = "secure in the first of coordinator.tiers" if plan.secure else "coordinator.secure.on"
        advice = f"Leave {key} at true: each client adds its part of the noise inside the sum."
        raise ConfigError("coordinator.privacy.unit = client hides clients in a secure sum, which is off", advice)
    if plan.unit == "client" and s.algorithm == "fednova":
        advice = "Take fedavg: how many steps each client takes would have to be hidden too."
        raise ConfigError("fednova sums the clients' steps in addition to their updates", advice)
    if plan.unit == "client" and plan.experiment.data.local_test:
        advice = "Leave data.local_test out: the clients' measurements would need noise too."
        raise ConfigError("data.local_test with coordinator.privacy.unit = client", advice)


def _check_sum(plan: FederationPlan) -> None:
    s, n = plan.section.secure, plan.invited
    more = f"Set coordinator.min_clients = {N_MIN} or more" if plan.cohort >= N_MIN else "Take more clients"
    off = f"{more}, or set coordinator.secure.on = false: the coordinator then sees every client's update."
    if plan.least < N_MIN and plan.tree.groups[0].secure:
        raise ConfigError(f"a sum over {plan.least} reveals each: a secure sum takes at least {N_MIN}", off)
    if n > graph.COHORT_MAX and plan.tree.flat:
        raise ConfigError(f"{n} clients in one secure sum; at most {graph.COHORT_MAX}", "Lower participation.")
    if s.threshold is not None and n <= graph.COMPLETE_MAX:
        smallest = graph.policy_threshold(n)
        if not smallest <= s.threshold <= n:
            advice = f"Set it from {smallest}, more than two thirds, to {n}; or leave it out."
            raise ConfigError(f"coordinator.secure.threshold = {s.threshold} of {n}", advice)
    if s.neighbours is not None and s.neighbours % 2:
        raise ConfigError(f"coordinator.secure.neighbours = {s.neighbours}", "Give an even number, or leave it out.")
    fixed = plan.numbers.fixed_point(1, "")
    if plan.numbers.reach(1, fixed.limit) >= ROOM:
        most = int(math.log2((1 << 31) / n)) + 1
        raise ConfigError(f"coordinator.secure.bits = {fixed.q_bits} for {n} clients", f"Set it to at most {most}.")
    if plan.exact is None and fixed.clip_inf > COARSEST * fixed.limit:
        text = f"coordinator.secure.bound = {s.bound:g} in {fixed.q_bits} bits rounds updates to steps of"
        advice = f"Set it to at most {COARSEST * fixed.limit:.0f}; or scale the columns, or labels that are numbers."
        raise ConfigError(f"{text} {fixed.clip_inf / fixed.limit:.3g}", advice)
    if fixed.weight_max > fixed.limit:  # one example would be rounded to zero
        text = f"coordinator.secure.bits = {fixed.q_bits}: up to {fixed.limit}, and weights up to {fixed.weight_max}"
        raise ConfigError(text, f"Set coordinator.secure.weight_max to at most {fixed.limit}, or leave bits out.")
