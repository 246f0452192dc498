"""The numbers by which sites judge one model together: whole, so that their sum is exact and is all that is seen.

    first round     number of sites, and of sites per group of records
    second round    over records: right answers, losses, confusion; per outcome, histograms of its probability among
                    the records with it and without it; the same per group with enough sites; the hundredth of the
                    range that contains a site's own score

Under a budget there is one round alone, of numbers with noise (`noisy_evaluation`).

A number x counts as the whole number nearest to x 2^104, so figures of the sums equal those of all records in one
place, to 1e-12 and better.  An AUROC follows from histograms, to the width of their bins.

How well a model answers for each record: its loss there, and whether it is right.  No torch here.

A LocalTask with vectors of the sums by which sites judge a model: two rounds, or one with noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.sums_task import Draw, PooledSumsTask, from_system, named_places
from fedgossip.data.objectives import CLASSIFICATION, MULTI_LABEL, REGRESSION
from fedgossip.secure.exact_sums import ExactSums, as_vector, integers_of, words_in, words_of
from fedgossip.sites.evaluation import noisy_evaluation
from fedgossip.sites.evaluation.noisy_evaluation import (
    DECILES,
    RECORDS,
    SHIFT,
    Name,
    NoisyNumbers,
    Numbers,
    Values,
    whole,
)

BINS = 256
"""Number of bins of a probability histogram: steps of log-odds from -16 to 16; the end bins are open."""
EDGES = 1 / (1 + np.exp(-np.linspace(-16, 16, BINS - 1)))
PLACES = 100
"""Parts of the range of a site's own score."""
LARGEST = 40
"""Bits of the largest label or prediction of a regression."""
SITES = 3
"""Minimum number of sites with a group for its counts: a sum over fewer discloses each site's."""
OUTCOMES = 100
"""Maximum number of classes, or of labels."""


@dataclass(frozen=True, eq=False)
class SiteAnswers:
    """A model's answers at one site: `answers` [m, k] as `LoadedModel` gives them, for records with labels y.

    `groups`: the place of each record's group in the layout, [m].  `trained`: (loss, right) of the records that this
    site trained on, where `y` are others; `flagged`: whether its own membership test distinguishes them.
    """

    answers: Values
    y: npt.NDArray[np.generic]
    groups: npt.NDArray[np.int64] | None = None
    trained: tuple[Values, npt.NDArray[np.bool_] | None] | None = None
    flagged: bool | None = None


class EvaluationLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """The position of each number in a vector.  Raises ConfigError for too many outcomes, and for text."""

    model: str
    """sha256 of the evaluated weights."""
    kind: str
    classes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    group_column: str = ""
    groups: tuple[str, ...] = ()
    kept: bool = False
    """Whether the records are those that each site held out from its training."""
    named: int = 0
    """Number of sites with scores reported by id; 0: none."""
    noise: float = 0.0
    """Noise on each site's sums, in units of one record's maximum contribution; 0: exact sums."""

    def __post_init__(self) -> None:
        if self.kind not in (CLASSIFICATION, MULTI_LABEL, REGRESSION):
            raise ConfigError(f"a model of {self.kind} has no records to be judged on", "Judge it on a common file.")
        if self.noise and self.kind != CLASSIFICATION:
            text = f"a model of {self.kind}: nobody knows how much one record adds to its errors, so no noise hides it"
            raise ConfigError(text, "If the sites allow exact sums:  --set coordinator.privacy.unit=none")
        if len(self.outcomes) > OUTCOMES:
            text = f"{len(self.outcomes)} classes; at most {OUTCOMES} are judged by sums"
            raise ConfigError(text, "Judge the model on a common file: fedgossip evaluate MODEL FILE.csv.")

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Names of the outcomes with a probability: the second of two classes, each of several classes, each label."""
        if self.kind == CLASSIFICATION:
            return self.classes[1:] if len(self.classes) == 2 else self.classes
        return self.labels if self.kind == MULTI_LABEL else ()

    @property
    def score(self) -> str:
        """Name of the score of a site and of a group."""
        return {CLASSIFICATION: "accuracy", MULTI_LABEL: "all labels right", REGRESSION: "R²"}[self.kind]

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]

    @cached_property
    def bounds(self) -> Mapping[Name, int]:
        """Return the largest magnitude of each number of a site, in the order of the vector."""
        found: dict[Name, int] = {("sites",): 1}
        if self.noise:
            return {**found, **self.noisy.bounds}
        found |= {("at", group): 1 for group in self.groups}
        found |= self._of_records(())
        for group in self.groups:
            found |= self._of_records(("group", group))
        if self.kind == CLASSIFICATION:
            found |= {("confusion", true, answer): RECORDS for true in self.classes for answer in self.classes}
        for outcome in self.outcomes:
            for part in range(DECILES):
                found |= {("part", outcome, str(part), what): RECORDS for what in ("records", "positives")}
                found["part", outcome, str(part), "said"] = RECORDS << SHIFT
        found |= {("place", str(place)): 1 for place in range(PLACES)}
        for site in map(str, range(self.named)):
            found |= {("site", site, "records"): RECORDS, ("site", site, "score"): 2 << SHIFT}
        found |= {("tested",): 1, ("flagged",): 1, ("trained", "records"): RECORDS, ("trained", "right"): RECORDS}
        found["trained", "loss"] = self._loss
        return found

    @cached_property
    def noisy(self) -> NoisyNumbers:
        """Return the numbers of a model that is evaluated under a budget."""
        return NoisyNumbers(self.classes, self.outcomes, self.groups, self.noise)

    @property
    def bins(self) -> int:
        """Return the number of bins of a histogram."""
        return noisy_evaluation.BINS if self.noise else BINS

    @property
    def _loss(self) -> int:
        bits = 2 * (LARGEST + 1) if self.kind == REGRESSION else 17
        return RECORDS << (SHIFT + bits)

    def _of_records(self, where: Name) -> dict[Name, int]:
        """Return the numbers of all records, or of a group."""
        found = {(*where, "records"): RECORDS, (*where, "right"): RECORDS, (*where, "loss"): self._loss}
        for label in self.labels if self.kind == REGRESSION else ():
            found |= {(*where, "squared", label): self._loss, (*where, "absolute", label): self._loss}
            found |= {(*where, "sum", label): self._loss, (*where, "squares", label): self._loss}
        for outcome in self.outcomes:
            found[*where, "positives", outcome] = RECORDS
            found |= {(*where, what, outcome): RECORDS << SHIFT for what in ("said", "brier")}
            found |= {(*where, what, outcome, str(k)): RECORDS for what in ("with", "without") for k in range(BINS)}
        return found

    @property
    def exact(self) -> ExactSums:
        return ExactSums(tuple(self.bounds.values()), layout=self.digest)

    def vector(self, numbers: Numbers) -> Vector:
        """Return a vector of the numbers; absent names are 0."""
        return as_vector(words_of([numbers.get(name, 0) for name in self.bounds]))

    def numbers(self, vector: Vector) -> Numbers:
        """Return the numbers of a vector by their names.  Raises ConfigError for a vector without such numbers."""
        words = words_in(vector)
        if words is None or words.size != self.exact.length:
            raise ConfigError("what came holds no sums of an evaluation", "Were all started with the same files?")
        return dict(zip(self.bounds, integers_of(words), strict=True))


def presence(layout: EvaluationLayout, site: SiteAnswers) -> dict[Name, int]:
    """Return a site's numbers of the first round."""
    there = set() if site.groups is None else set(site.groups.tolist())
    return {("sites",): 1} | {("at", group): int(place in there) for place, group in enumerate(layout.groups)}


def judged_sums(layout: EvaluationLayout, site: SiteAnswers, pooled: Numbers, node: int, least: int) -> dict[Name, int]:
    """Return a site's numbers of the second round, by the sums of the first; `least` records make a group of a site's.

    Raises ConfigError where numbers are too large.
    """
    found = _of_records(layout, site, ()) | _trained(site)
    for place, group in enumerate(layout.groups):
        if site.groups is not None and pooled["at", group] >= SITES:
            found |= _of_records(layout, _chosen(site, site.groups == place), ("group", group))
    if layout.kind == CLASSIFICATION:
        table = np.zeros((len(layout.classes),) * 2, np.int64)
        np.add.at(table, (site.y.astype(np.int64), site.answers.argmax(axis=1)), 1)
        for true, row in zip(layout.classes, table.tolist(), strict=True):
            found |= {("confusion", true, answer): count for answer, count in zip(layout.classes, row, strict=True)}
    for outcome, answer, positive in _outcomes(layout, site):
        parts = np.minimum((answer * DECILES).astype(np.int64), DECILES - 1)
        for part in range(DECILES):
            inside = parts == part
            found["part", outcome, str(part), "records"] = int(inside.sum())
            found["part", outcome, str(part), "positives"] = int(positive[inside].sum())
            found["part", outcome, str(part), "said"] = whole(answer[inside])
    score = score_of(layout, found, ())
    if score is not None and len(site.y) >= least:
        found["place", str(min(int(max(score, 0.0) * PLACES), PLACES - 1))] = 1
        if layout.named:
            found["site", str(node), "records"] = len(site.y)
            found["site", str(node), "score"] = whole(np.array([max(score, -1.0)]))
    return found


def _chosen(site: SiteAnswers, rows: npt.NDArray[np.bool_]) -> SiteAnswers:
    return SiteAnswers(site.answers[rows], site.y[rows])


def _outcomes(layout: EvaluationLayout, site: SiteAnswers) -> Sequence[tuple[str, Values, npt.NDArray[np.bool_]]]:
    """Return per outcome its name, its probability and its presence, of each record."""
    if layout.kind == MULTI_LABEL:
        return [(name, site.answers[:, k], site.y[:, k] == 1) for k, name in enumerate(layout.labels)]
    places = [(layout.classes.index(name), name) for name in layout.outcomes]
    return [(name, site.answers[:, k], site.y == k) for k, name in places]


def _of_records(layout: EvaluationLayout, site: SiteAnswers, where: Name) -> dict[Name, int]:
    losses, right = losses_of(layout.kind, site.answers, site.y), right_of(layout.kind, site.answers, site.y)
    if layout.kind == REGRESSION and max(map(_largest, (site.answers, site.y))) > 2.0**LARGEST:
        raise ConfigError(f"numbers beyond 2^{LARGEST}", "Give the label in a larger unit.")
    found: dict[Name, int] = {(*where, "records"): len(site.y), (*where, "loss"): whole(losses)}
    found[*where, "right"] = 0 if right is None else int(right.sum())
    for k, label in enumerate(layout.labels if layout.kind == REGRESSION else ()):
        truth, error = site.y[:, k].astype(np.float64), np.abs(site.answers[:, k] - site.y[:, k].astype(np.float64))
        found |= {(*where, "squared", label): whole(error * error), (*where, "absolute", label): whole(error)}
        found |= {(*where, "sum", label): whole(truth), (*where, "squares", label): whole(truth * truth)}
    for outcome, answer, positive in _outcomes(layout, site) if layout.outcomes else ():
        found[*where, "positives", outcome] = int(positive.sum())
        found |= {(*where, "said", outcome): whole(answer), (*where, "brier", outcome): whole((answer - positive) ** 2)}
        for what, rows in (("with", positive), ("without", ~positive)):
            counts = np.bincount(np.searchsorted(EDGES, answer[rows], side="right"), minlength=BINS)
            found |= {(*where, what, outcome, str(k)): count for k, count in enumerate(counts.tolist())}
    return found


def _largest(values: npt.NDArray[np.generic]) -> float:
    return float(np.abs(values.astype(np.float64)).max(initial=0.0))


def _trained(site: SiteAnswers) -> dict[Name, int]:
    """Return a site's numbers of its training records: the loss gap to the others, and its test's verdict."""
    if site.trained is None:
        return {}
    losses, right = site.trained
    found: dict[Name, int] = {("trained", "records"): len(losses), ("trained", "loss"): whole(losses)}
    found["trained", "right"] = 0 if right is None else int(right.sum())
    return found | ({} if site.flagged is None else {("tested",): 1, ("flagged",): int(site.flagged)})


def score_of(layout: EvaluationLayout, numbers: Numbers, where: Name) -> float | None:
    """Return the score of all records, or of a group; None without records, and for labels without variance."""
    records = numbers[*where, "records"]
    if not records:
        return None
    if layout.kind != REGRESSION:
        return numbers[*where, "right"] / records
    explained = []
    for label in layout.labels:
        total, squares = numbers[*where, "sum", label], numbers[*where, "squares", label]
        spread = (squares * records << SHIFT) - total * total
        if spread <= 0:
            return None
        explained.append(1 - (numbers[*where, "squared", label] * records << SHIFT) / spread)
    return sum(explained) / len(explained)


TINY = 1e-300
"""A probability counts as no smaller: its loss is at most 691."""

Answers = npt.NDArray[np.float64]


def losses_of(kind: str, answers: Answers, y: npt.NDArray[np.generic]) -> Answers:
    """Return the loss of each record, float64 [m], of answers [m, k] as `LoadedModel` gives them.

    Of classes minus the logarithm of the probability of the true one; of several labels the sum of those; of numbers
    the mean squared error, in the labels' units.  Raises ConfigError for text, which has no records.
    """
    if kind == CLASSIFICATION:
        return -np.log(np.maximum(answers[np.arange(len(y)), y.astype(np.int64)], TINY))
    truth = y.astype(np.float64).reshape(answers.shape) if kind in (MULTI_LABEL, REGRESSION) else None
    if truth is None:
        raise ConfigError(f"a model of {kind}: its examples are no records", "Name a model of tables or pictures.")
    if kind == REGRESSION:
        return np.asarray(((answers - truth) ** 2).mean(axis=1))
    of_truth = np.where(truth == 1, answers, 1 - answers)
    return np.asarray(-np.log(np.maximum(of_truth, TINY)).sum(axis=1))


def right_of(kind: str, answers: Answers, y: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_] | None:
    """Return whether each answer is right, bool [m]: of several labels all of them; None where answers are numbers."""
    if kind == CLASSIFICATION:
        return np.asarray(answers.argmax(axis=1) == y)
    if kind == MULTI_LABEL:
        return np.asarray(((answers > 0.5) == (y == 1)).all(axis=1))
    return None


ROUNDS = 2


class EvaluationTask(PooledSumsTask):
    """Answers of the model at the local sites, by their ids; other sites run elsewhere."""

    again = "Evaluate"

    def __init__(
        self,
        layout: EvaluationLayout,
        sites: Mapping[NodeId, SiteAnswers],
        least: int,
        draw: Draw = from_system,
    ) -> None:
        super().__init__(layout.exact, layout.digest)
        self.layout, self._sites, self._least, self._draw = layout, sites, least, draw
        self._said: dict[NodeId, Vector] = {}
        """Noisy sums are drawn once per site; a repeated request returns the same numbers."""

    def sums(self, job: Job) -> Vector:
        """Return a site's sums of a round.  Raises TrainingError where the first round collected nothing."""
        if self.layout.noise:
            return self._hidden(job.node)
        site = self._sites[job.node]
        if job.round == 0:
            return self.layout.vector(presence(self.layout, site))
        pooled = self.layout.numbers(job.vector)
        if not pooled["sites",]:
            raise self.nothing_there(job.node)
        return self.layout.vector(judged_sums(self.layout, site, pooled, job.node, self._least))

    def places(self, round: int) -> npt.NDArray[np.bool_]:
        noisy = self.layout.noise > 0
        return named_places(self.layout.bounds, lambda name: noisy or (name[0] in ("sites", "at")) == (round == 0))

    def counts(self) -> npt.NDArray[np.bool_]:
        signed = {"sum", "score"}
        return named_places(self.layout.bounds, lambda name: not self.layout.noise and not signed & {*name})

    def _hidden(self, node: NodeId) -> Vector:
        """Return a site's noisy sums of the only round under a budget."""
        if node not in self._said:
            site, noisy = self._sites[node], self.layout.noisy
            numbers = noisy.hidden(noisy.of_records(site.answers, site.y, site.groups), self._draw(node, 0))
            self._said[node] = self.layout.vector({("sites",): 1} | dict(numbers))
        return self._said[node]
