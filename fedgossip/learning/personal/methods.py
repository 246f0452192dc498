"""The personal methods by name (METHODS): APFL, FedRep, pFedMe, finetuning, Ditto, mean-regularised models, IFCA.

**APFL, FedRep and pFedMe** take each step of plain SGD themselves, on gradients of the task.  Each step of a node uses
the next batch of its line; g(x) is the gradient there, eta = train.lr.

    apfl     w <- w - eta g(w);   v <- v - eta alpha g(alpha v + (1 - alpha) w);   w is sent
             alpha <- alpha - eta <v - w, g(alpha v + (1 - alpha) w)>, in [0, 1], at the first step of a round
    fedrep   `steps` steps of the head only, then the round's steps of the body only; the body is sent
    pfedme   theta <- `steps` steps of eta along g(theta) + lambda (theta - w)
             w <- w - rate lambda (w - theta);   w is sent

APFL: Deng, Kamani and Mahdavi, Adaptive personalized federated learning, 2020, algorithm 1 with its adaptive alpha.
FedRep: Collins, Hassani, Mokhtari and Shakkottai, ICML 2021, algorithm 1.  pFedMe: Dinh, Tran and Nguyen, NeurIPS 2020,
algorithm 1; all its steps on one batch, theta from w; beta is lr of coordinator.options.

**Finetuning, Ditto and mean-regularised models** train whole models by the usual local training:

    finetune    after the exchange: `epochs` local trainings from the shared model w, the baseline of every paper
    ditto       w as usual;  v_i <- trained from v_i on f_i(v) + (lambda / 2) ||v - w||^2
    mr-mtl      v_i as in Ditto, and v_i itself is sent: w is the mean of all v_i

Ditto: Li, Hu, Beirami and Smith, ICML 2021, algorithm 1.  MR-MTL: Liu, Hu, Wu and Smith, On privacy and personalization
in cross-silo federated learning, NeurIPS 2022, algorithm 1.  A quadratic f_i = 1/2 ||v - b_i||^2 has Ditto's fixed
point v_i = (b_i + lambda w) / (1 + lambda).

**IFCA** has k models; each participant trains the one that fits its examples best:

    client i    j = argmin over the k received models of the loss on the round's batches;  trains w_j
                sends [0, ..., w_j' - w_j, ..., 0], k * d elements
    server      the weighted mean of these, as usual

Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, algorithm 1 by gradient averaging: the sum is divided by the weight of
all clients, so no choice is visible in a secure sum.  A cluster of a share p moves by p times its mean update; lr of
coordinator.options can compensate.  The models start at the usual one, each with different noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.limits import ABOVE_0, Within, limits_of
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector, frozen, linear, subtract
from fedgossip.core.task import Job, Segment, Update, statistics_in
from fedgossip.learning.personal.base import OfWholeModels, OwnModels, PersonalMethod
from fedgossip.learning.personal.logits import FedDF, FedMD

ALPHA = "alpha"


@dataclass(frozen=True)
class Stepped(OfWholeModels):
    """The common part of methods with their own steps."""

    private = False
    stepped = True

    def select_sent(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """Return all tensors.  Raises ConfigError for running statistics, which have no gradient."""
        if statistics_in(segments):
            text = "a personal method with its own steps, and running statistics in the messages"
            raise ConfigError(text, 'Take a model without them, or train.buffers = "local".')
        return tuple(segments)


@dataclass(frozen=True)
class Apfl(Stepped):
    """Predicts with a mixture of a personal model and the shared one."""

    alpha: Annotated[float, Within(0, 1)] = 0.5
    """Initial share of the personal model in the mixture."""
    adapts: Annotated[int, Within(0, 1)] = 1
    """1: alpha is learned; 0: it is constant."""

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        nodes = [job.node for job in jobs]
        shared, own = [job.vector for job in jobs], [models.model(job) for job in jobs]
        alphas, losses = [self._alpha(models, job) for job in jobs], []
        eta = models.rate(jobs[0].round)
        for k in range(models.steps):
            step = jobs[0].round * models.steps + k
            for_shared = models.gradients(nodes, step, shared)
            mixed = [_mixture(*one) for one in zip(alphas, own, shared, strict=True)]
            for_mixed = models.gradients(nodes, step, mixed)
            losses.append([update.metrics["loss"] for update in for_shared])
            if self.adapts and k == 0:
                learned = zip(alphas, own, shared, for_mixed, strict=True)
                alphas = [_learned(a, v, w, eta, _get_difference(update)) for a, v, w, update in learned]
            stepped = zip(alphas, own, for_mixed, strict=True)
            own = [linear((1, v), (-eta * a, _get_difference(update))) for a, v, update in stepped]
            shared = [_stepped(w, eta, _get_difference(update)) for w, update in zip(shared, for_shared, strict=True)]
        for job, v, a in zip(jobs, own, alphas, strict=True):
            models.keep(job.node, own=v, alpha=np.array(a))
        return [
            _update(update, job, w, loss, models.steps, eta)
            for update, job, w, loss in zip(for_shared, jobs, shared, zip(*losses, strict=True), strict=True)
        ]

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        return [_mixture(self._alpha(models, job), models.model(job), job.vector) for job in jobs]

    def _alpha(self, models: OwnModels, job: Job) -> float:
        return float(models.get(job.node).get(ALPHA, self.alpha))


@dataclass(frozen=True)
class PFedMe(Stepped):
    """Predicts with the minimum of the loss plus a pull to the shared model, as in the Moreau envelope."""

    pull: Annotated[float, Within(ABOVE_0)] = 15.0
    """lambda: a larger one keeps the personal model closer to the shared one."""
    steps: Annotated[int, Within(1, 1000)] = 5
    """Number of steps to the minimum, on one batch."""
    rate: Annotated[float, Within(ABOVE_0)] = 0.005
    """Learning rate of the shared model; it moves by rate times lambda of the distance to the personal model."""

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        nodes, shared = [job.node for job in jobs], [job.vector for job in jobs]
        eta, losses = models.rate(jobs[0].round), []
        for k in range(models.steps):
            own, step = shared, jobs[0].round * models.steps + k
            for _ in range(self.steps):
                found = models.gradients(nodes, step, own)
                away = zip(own, shared, found, strict=True)
                own = [
                    _stepped(v, eta, linear((1, _get_difference(one)), (self.pull, v), (-self.pull, w)))
                    for v, w, one in away
                ]
            losses.append([update.metrics["loss"] for update in found])
            share = self.rate * self.pull
            shared = [linear((1 - share, w), (share, v)) for w, v in zip(shared, own, strict=True)]
        for job, v in zip(jobs, own, strict=True):
            models.keep(job.node, own=v)
        return [
            _update(update, job, w, loss, models.steps, eta)
            for update, job, w, loss in zip(found, jobs, shared, zip(*losses, strict=True), strict=True)
        ]

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        return [models.model(job) for job in jobs]


@dataclass(frozen=True)
class FedRep(Stepped):
    """Keeps a personal head, and sends the body."""

    head: str = ""
    """Patterns of the head's tensors, separated by commas; "": the last layer's."""
    steps: Annotated[int, Within(0, 100_000)] = 0
    """Steps of the head in a round; 0: the same number as the body's."""

    whole = False
    kept = 0  # the head alone

    def select_sent(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        found, start = [], 0
        for one in self._body(segments):
            found.append(replace(one, start=start))
            start += one.stop - one.start
        return tuple(found)

    def first(self, models: OwnModels, x: Vector) -> Vector:
        return frozen(x[~self._mark_head(models)])

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        head, nodes = self._mark_head(models), [job.node for job in jobs]
        eta, losses = models.rate(jobs[0].round), []
        first = self.steps or models.steps
        whole = self.answers(models, jobs)
        for k in range(first + models.steps):
            step = jobs[0].round * (first + models.steps) + k
            found = models.gradients(nodes, step, whole)
            moving = head if k < first else ~head
            whole = [
                _stepped(x, eta, np.where(moving, _get_difference(one), 0)) for x, one in zip(whole, found, strict=True)
            ]
            losses.append([update.metrics["loss"] for update in found])
        for job, x in zip(jobs, whole, strict=True):
            models.keep(job.node, head=x[head])
        return [
            _update(update, job, frozen(x[~head]), loss[first:], models.steps, eta)
            for update, job, x, loss in zip(found, jobs, whole, zip(*losses, strict=True), strict=True)
        ]

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        return [self._join(models, job.vector, models.get(job.node).get("head")) for job in jobs]

    def shared(self, models: OwnModels, vector: Vector) -> list[Vector]:
        """Return the model with every node's initial head."""
        return [self._join(models, vector, None)]

    def _join(self, models: OwnModels, body: Vector, head: npt.NDArray[Any] | None) -> Vector:
        where, whole = self._mark_head(models), models.task.initial(0).copy()
        whole[~where] = body
        if head is not None:
            whole[where] = head
        return frozen(whole)

    def _body(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the sent tensors.  Raises ConfigError for patterns that match none, or all."""
        if statistics_in(segments):
            text = "personal = 'fedrep' with running statistics in the messages: its steps are of parameters"
            raise ConfigError(text, "Take a model without them.")
        names = [one.name for one in segments]
        layer = names[-1].rpartition(".")[0]
        patterns = [one.strip() for one in self.head.split(",") if one.strip()] or [f"{layer}.*"]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                advice = f"There are: {', '.join(names)}."
                raise ConfigError(f"personal = 'fedrep': no parameter matches {pattern!r}", advice)
        body = [one for one in segments if not any(fnmatchcase(one.name, pattern) for pattern in patterns)]
        if not body:
            advice = "Take a model of several layers, or name a head: fedrep?head=layer2.*."
            raise ConfigError(f"personal = 'fedrep': the head {', '.join(patterns)} leaves no body to send", advice)
        return body

    def _mark_head(self, models: OwnModels) -> npt.NDArray[np.bool_]:
        """Return which elements of the model are the head's, [d]."""
        found = np.ones(models.task.initial(0).size, np.bool_)
        for one in self._body(models.segments):
            found[one.start : one.stop] = False
        return found


def _get_difference(update: Update) -> Vector:
    assert update.difference is not None, "a gradient is one"
    return update.difference


def _stepped(x: Vector, eta: float, gradient: Vector) -> Vector:
    return linear((1, x), (-eta, gradient))


def _mixture(alpha: float, own: Vector, shared: Vector) -> Vector:
    return linear((alpha, own), (1 - alpha, shared))


def _learned(alpha: float, own: Vector, shared: Vector, eta: float, gradient: Vector) -> float:
    """Return alpha after a step; float32 products are summed exactly, so the block of nodes does not matter."""
    slope = math.fsum(subtract(own, shared).astype(np.float64) * gradient.astype(np.float64))
    return min(1.0, max(0.0, alpha - eta * slope))


def _update(found: Update, job: Job, sent: Vector, losses: Sequence[float], steps: int, eta: float) -> Update:
    metrics = {"loss": float(np.mean(losses)), "steps": steps, "rate": eta}
    return Update(subtract(sent, job.vector), found.examples, metrics)


@dataclass(frozen=True)
class Finetune(OfWholeModels):
    """Predicts with the shared model after further training at the node, at the rates of the run's first rounds."""

    epochs: Annotated[int, Within(1, 1000)] = 1
    """Number of local trainings from the shared model, each as long as a round's."""

    follows = True
    kept = 0

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        return list(models.train(jobs))

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        found = [job.vector for job in jobs]
        for epoch in range(self.epochs):
            asked = [replace(job, round=epoch) for job in jobs]  # a schedule may end at rate 0
            found = [model for model, _ in models.pulled(asked, found, 0.0, "finetuned")]
        for job in jobs:  # every prediction starts without optimiser state
            del models.memories[job.node, "finetuned"]
        return found


@dataclass(frozen=True)
class Ditto(OfWholeModels):
    """Trains a personal model in addition to the shared one."""

    pull: Annotated[float, Within(0)] = 0.1
    """lambda: 0 trains without exchange; a large one follows the shared model."""

    follows = True

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        updates = models.train(jobs)
        trained = models.pulled(jobs, [models.model(job) for job in jobs], self.pull)
        for job, (model, _) in zip(jobs, trained, strict=True):
            models.keep(job.node, own=model)
        return list(updates)

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        return [models.model(job) for job in jobs]


@dataclass(frozen=True)
class MeanRegularised(OfWholeModels):
    """Trains a personal model, pulled to the mean of all, and sends it."""

    pull: Annotated[float, Within(0)] = 0.1
    """lambda: 0 trains without exchange; a large one is federated averaging."""

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        updates = []
        trained = models.pulled(jobs, [models.model(job) for job in jobs], self.pull)
        for job, (model, update) in zip(jobs, trained, strict=True):
            models.keep(job.node, own=model)
            updates.append(replace(update, difference=subtract(model, job.vector)))
        return updates

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        return [models.model(job) for job in jobs]


@dataclass(frozen=True)
class Ifca:
    """Predicts with the model of its cluster."""

    clusters: Annotated[int, Within(2, 64)] = 2
    """k, the number of models."""
    spread: Annotated[float, Within(ABOVE_0)] = 0.1
    """Standard deviation of the noise between the first models."""

    follows = False
    private = False
    whole = False
    stepped = False
    kept = 0

    def select_sent(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        length = segments[-1].stop
        return tuple(
            replace(one, name=f"cluster{j}.{one.name}", start=one.start + j * length)
            for j in range(self.clusters)
            for one in segments
        )

    def first(self, models: OwnModels, x: Vector) -> Vector:
        noises = (stream(models.seed, "ifca", j).standard_normal(x.size) for j in range(self.clusters))
        return frozen(np.concatenate([x + (self.spread * noise).astype(x.dtype) for noise in noises]))

    def shared(self, models: OwnModels, vector: Vector) -> list[Vector]:  # noqa: ARG002
        return [frozen(part) for part in np.split(vector, self.clusters)]

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        parts = [self.shared(models, job.vector) for job in jobs]
        chosen = self._chosen(models, jobs, parts)
        asked = [replace(job, vector=part[j]) for job, part, j in zip(jobs, parts, chosen, strict=True)]
        updates = []
        for job, j, update in zip(asked, chosen, models.train(asked), strict=True):
            whole = np.zeros((self.clusters, job.vector.size), job.vector.dtype)
            if update.difference is not None:
                whole[j] = update.difference
            updates.append(replace(update, difference=frozen(whole.reshape(-1))))
        return updates

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        parts = [self.shared(models, job.vector) for job in jobs]
        return [part[j] for part, j in zip(parts, self._chosen(models, jobs, parts), strict=True)]

    def _chosen(self, models: OwnModels, jobs: Sequence[Job], parts: Sequence[Sequence[Vector]]) -> list[int]:
        """Return the cluster with the least loss on the round's batches, the first if equal."""
        losses = [models.losses(jobs, [part[j] for part in parts]) for j in range(self.clusters)]
        return [int(np.argmin(of_job)) for of_job in zip(*losses, strict=True)]


METHODS: Mapping[str, tuple[type[Any], str]] = {
    "finetune": (Finetune, "the shared model, trained further"),
    "ditto": (Ditto, "a model pulled to the shared one"),
    "mr-mtl": (MeanRegularised, "models pulled to their mean"),
    "apfl": (Apfl, "a learned mixture with the shared model"),
    "fedrep": (FedRep, "a head on a shared body"),
    "pfedme": (PFedMe, "the Moreau envelope's model"),
    "ifca": (Ifca, "the model of a cluster"),
    "feddf": (FedDF, "distilled from the mean logits for common examples"),
    "fedmd": (FedMD, "distilled from them, and trained further"),
}

OF_LOGITS = ("feddf", "fedmd")
"""Methods that exchange logits in place of models."""

PERSONAL: Mapping[str, str] = {name: what for name, (_, what) in METHODS.items()}

WRITTEN = {"lambda": "pull"}
"""Options whose names are Python keywords."""


def method_of(key: str, text: str) -> PersonalMethod:
    """Return the method of `key` = NAME?OPTION=VALUE&...  Raises ConfigError for unknown names."""
    name, _, query = text.partition("?")
    if name not in METHODS:
        raise ConfigError(f"{key} = {text!r} is not known", nearest(name, METHODS))
    made, _ = METHODS[name]
    types = {field.name: field.type for field in fields(made)}
    written = {option: word for word, option in WRITTEN.items()}
    limits, known = dict(limits_of(made)), [written.get(option, option) for option in types]
    options: dict[str, Any] = {}
    for word, value in parse_qsl(query, keep_blank_values=True):
        option = WRITTEN.get(word, word)
        if word not in known:
            raise ConfigError(f"{key} = {text!r}: {name} has no option {word!r}", nearest(word, known))
        options[option] = (
            value if option not in limits else _number(key, text, word, value, whole="int" in types[option])
        )
        limit = limits.get(option)
        if limit is not None and not limit.allows(options[option]):
            raise ConfigError(f"{key} = {text!r}: {word} = {value} {limit.refusal}", limit.advice(options[option]))
    found: PersonalMethod = made(**options)
    return found


def _number(key: str, text: str, word: str, value: str, *, whole: bool) -> float:
    try:
        return int(value) if whole else float(value)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise ConfigError(
            f"{key} = {text!r}: {word} = {value!r} is not {kind}", f"Write, for example, {word}=1."
        ) from None
