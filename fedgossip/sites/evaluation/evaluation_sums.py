"""The whole numbers that sites sum to evaluate one model together: only their exact sum is visible.

    first round     number of sites, and of sites per group of records
    second round    over records: right outputs, losses, confusion; per outcome, histograms of its probability for
                    the records with it and without it; the same per group with enough sites; the hundredth of the
                    range that contains a site's own score

A number x counts as the whole number nearest to x 2^104: figures equal those of all records in one place to 1e-12.  An
AUROC is exact to the width of its histograms' bins.

Under a budget there is one round.  Each site adds noise to its numbers that hides every record from all participants:
one release of a Gaussian mechanism (`column_sums`).  The numbers are few, because each increases the noise on all.  No
torch here.
"""

from __future__ import annotations

import hashlib
import math
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
from fedgossip.data.agreed.column_sums import GRAIN, MOST, divided, grains_of, hidden
from fedgossip.data.agreed.sums_task import Draw, PooledSumsTask, draw_system_entropy, find_places
from fedgossip.data.objectives import CLASSIFICATION, MULTI_LABEL, REGRESSION
from fedgossip.secure.encoding import ExactSums, as_vector, integers_of, words_in, words_of
from fedgossip.secure.primitives import Entropy

BINS = 256
"""Number of bins of a probability histogram: steps of log-odds from -16 to 16; the end bins are open."""
EDGES = 1 / (1 + np.exp(-np.linspace(-16, 16, BINS - 1)))
PLACES = 100
"""Number of parts of the range of a site's own score."""
LARGEST = 40
"""Bits of the largest label or prediction of a regression."""
SITES = 3
"""Minimum number of sites with a group for its counts: a sum over fewer discloses each site's."""
OUTCOMES = 100
"""Maximum number of classes, or of labels."""

NOISY_BINS = 20
"""Number of bins of a probability histogram: steps of log-odds from -5 to 5; the end bins are open."""
NOISY_EDGES = 1 / (1 + np.exp(-np.linspace(-5, 5, NOISY_BINS - 1)))
DECILES = 10
"""Number of parts of equal width that compare predicted probabilities with observed shares."""
SHIFT = 104
"""Number of fractional bits."""
RECORDS = 1 << 31
"""Maximum number of records of a site."""

Name = tuple[str, ...]
Numbers = Mapping[Name, int]
Values = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def whole(values: Values) -> int:
    """Return the sum of numbers, each as the whole number nearest to it times 2^SHIFT."""
    return sum(int(value) for value in np.rint(np.ldexp(values, SHIFT)).tolist())


@dataclass(frozen=True)
class NoisyNumbers:
    """The numbers of a classification model; `noise`: a multiple of the length of one record's contribution."""

    classes: tuple[str, ...]
    outcomes: tuple[str, ...]
    groups: tuple[str, ...]
    noise: float

    @cached_property
    def units(self) -> Mapping[Name, int]:
        """Return one record's maximum contribution to each number."""
        found: dict[Name, int] = {("confusion", true, answer): 1 for true in self.classes for answer in self.classes}
        found |= {("group", group, what): 1 for group in self.groups for what in ("right", "wrong")}
        for where in ((), *(("group", group) for group in self.groups)):
            for one in self.outcomes:
                found |= {(*where, what, one, str(k)): 1 for what in ("with", "without") for k in range(NOISY_BINS)}
                found |= {(*where, what, one): 1 << SHIFT for what in (("said", "brier") if where else ("brier",))}
        for one in self.outcomes:
            for part in map(str, range(DECILES)):
                found |= {("part", one, part, "having"): 1, ("part", one, part, "lacking"): 1}
                found["part", one, part, "said"] = 1 << SHIFT
        return found

    @property
    def length(self) -> float:
        """Return the maximum length of one record's contribution, in units: one cell of the confusion, per outcome one
        bin and part.

        Class probabilities sum to at most 1, their squared differences from the truth to 2; in its group the same
        again, without parts.
        """
        k = len(self.outcomes)
        answer, brier = min(k, 1), min(k, 2)
        return math.sqrt(1 + 2 * k + answer + brier + (1 + k + answer + brier if self.groups else 0))

    @property
    def grains(self) -> float:
        """Return the standard deviation of a site's noise on each number, in grains of its unit."""
        return grains_of(self.length, len(self.units), self.noise)

    @property
    def bounds(self) -> Mapping[Name, int]:
        """Return the maximum magnitude of each number of a site."""
        room = math.ceil(MOST * (self.grains / GRAIN + 1))
        return {name: (RECORDS + room) * unit for name, unit in self.units.items()}

    # --- at a site ------------------------------------------------------------------------------------------------

    def of_records(self, answers: Values, y: npt.NDArray[np.generic], groups: Places | None) -> dict[Name, int]:
        """Return the noiseless numbers of records with labels y [m], outputs [m, k] and indices of their groups [m]."""
        table = np.zeros((len(self.classes),) * 2, np.int64)
        truth, answered = y.astype(np.int64), answers.argmax(axis=1)
        np.add.at(table, (truth, answered), 1)
        found: dict[Name, int] = {
            ("confusion", true, answer): count
            for true, row in zip(self.classes, table.tolist(), strict=True)
            for answer, count in zip(self.classes, row, strict=True)
        }
        everybody = np.ones(len(truth), bool)
        found |= self._of_outcomes((), answers, truth, everybody)
        for place, group in enumerate(self.groups):
            rows = everybody & False if groups is None else groups == place
            right = int((truth[rows] == answered[rows]).sum())
            found |= {("group", group, "right"): right, ("group", group, "wrong"): int(rows.sum()) - right}
            found |= self._of_outcomes(("group", group), answers, truth, rows)
        return found

    def _of_outcomes(self, where: Name, answers: Values, truth: Places, rows: npt.NDArray[np.bool_]) -> dict[Name, int]:
        found: dict[Name, int] = {}
        for one in self.outcomes:
            place = self.classes.index(one)
            answer, positive = answers[rows, place].clip(0, 1), truth[rows] == place
            found[*where, "brier", one] = whole((answer - positive) ** 2)
            for what, some in (("with", positive), ("without", ~positive)):
                counts = np.bincount(np.searchsorted(NOISY_EDGES, answer[some], side="right"), minlength=NOISY_BINS)
                found |= {(*where, what, one, str(k)): count for k, count in enumerate(counts.tolist())}
            if where:
                found[*where, "said", one] = whole(answer)
                continue
            parts = np.minimum((answer * DECILES).astype(np.int64), DECILES - 1)
            for part in range(DECILES):
                inside = parts == part
                found["part", one, str(part), "having"] = int(positive[inside].sum())
                found["part", one, str(part), "lacking"] = int((~positive[inside]).sum())
                found["part", one, str(part), "said"] = whole(answer[inside])
        return found

    def hidden(self, numbers: Numbers, entropy: Entropy) -> Numbers:
        """Return a site's numbers with noise, as sent."""
        return hidden(numbers, lambda name: self.units[name], self.grains, entropy)

    # --- of all sites ---------------------------------------------------------------------------------------------

    def moved(self, numbers: Numbers, sites: int, draw: np.random.Generator) -> Numbers:
        """Return the sums over `sites` with a further draw of noise added."""
        grains = np.rint(draw.normal(0, self.grains * math.sqrt(sites), len(self.units))).astype(np.int64).tolist()
        return {name: numbers[name] + divided(one * unit, GRAIN)
                for (name, unit), one in zip(self.units.items(), grains, strict=True)}  # fmt: skip

    def completed(self, numbers: Numbers) -> dict[Name, int]:
        """Return the numbers of an exact evaluation, without losses, from noisy sums, clipped to their ranges."""
        cells = {(true, answer): numbers["confusion", true, answer] for true in self.classes for answer in self.classes}
        records = max(0, sum(cells.values()))
        found: dict[Name, int] = {
            ("records",): records,
            ("right",): _within(sum(cells[one, one] for one in self.classes), records),
        }
        found |= {("confusion", *names): max(0, count) for names, count in cells.items()}
        for one in self.outcomes:
            positives = sum(cells[one, answer] for answer in self.classes)
            parts = [("part", one, str(part)) for part in range(DECILES)]
            answer = sum(numbers[*part, "said"] for part in parts)
            found |= self._of_one((), one, numbers, records, (positives, answer))
            for part in parts:
                having, lacking = (max(0, numbers[*part, what]) for what in ("having", "lacking"))
                found |= {(*part, "records"): having + lacking, (*part, "positives"): having}
                found[*part, "said"] = _inside(part, numbers[*part, "said"], having + lacking)
        for group in self.groups:
            where = ("group", group)
            count = max(0, numbers[*where, "right"] + numbers[*where, "wrong"])
            found |= {(*where, "records"): count, (*where, "right"): _within(numbers[*where, "right"], count)}
            for one in self.outcomes:
                positives = sum(numbers[*where, "with", one, str(k)] for k in range(NOISY_BINS))
                found |= self._of_one(where, one, numbers, count, (positives, numbers[*where, "said", one]))
        return found

    def _of_one(self, where: Name, one: str, numbers: Numbers, records: int, sums: tuple[int, int]) -> dict[Name, int]:
        positives, answer = sums
        found: dict[Name, int] = {(*where, "positives", one): _within(positives, records)}
        found[*where, "said", one] = _within(answer, records << SHIFT)
        found[*where, "brier", one] = _within(numbers[*where, "brier", one], records << SHIFT)
        bins: Sequence[Name] = [(*where, what, one, str(k)) for what in ("with", "without") for k in range(NOISY_BINS)]
        return found | {name: numbers[name] for name in bins}


def _inside(part: Name, answer: int, records: int) -> int:
    number = int(str(part[-1]))
    least, most = ((records * end << SHIFT) // DECILES for end in (number, number + 1))
    return min(max(answer, least), most)


def _within(value: int, most: int) -> int:
    return min(max(value, 0), most)


@dataclass(frozen=True, eq=False)
class SiteAnswers:
    """A model's outputs at one site: `answers` [m, k] from `LoadedModel`, for records with labels y.

    `groups`: each record's group index, [m].  `trained`: (loss, right) of the site's training records, if `y` are
    others; `flagged`: whether its membership test distinguishes them.
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
            text = f"a model of {self.kind}: one record's part in its errors is unbounded, so no noise hides it"
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
        """Return the maximum magnitude of each number of a site, in the order of the vector."""
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
        """Return the numbers of a model evaluated under a budget."""
        return NoisyNumbers(self.classes, self.outcomes, self.groups, self.noise)

    @property
    def bins(self) -> int:
        """Return the number of bins of a histogram."""
        return NOISY_BINS if self.noise else BINS

    @property
    def _loss(self) -> int:
        bits = 2 * (LARGEST + 1) if self.kind == REGRESSION else 17
        return RECORDS << (SHIFT + bits)

    def _of_records(self, where: Name) -> dict[Name, int]:
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
            raise ConfigError(
                "the received vector holds no sums of an evaluation", "Were all started with the same files?"
            )
        return dict(zip(self.bounds, integers_of(words), strict=True))


def presence(layout: EvaluationLayout, site: SiteAnswers) -> dict[Name, int]:
    """Return a site's numbers of the first round."""
    there = set() if site.groups is None else set(site.groups.tolist())
    return {("sites",): 1} | {("at", group): int(place in there) for place, group in enumerate(layout.groups)}


def judged_sums(layout: EvaluationLayout, site: SiteAnswers, pooled: Numbers, node: int, least: int) -> dict[Name, int]:
    """Return a site's numbers of the second round; `least` records make a group of a site.  Raises ConfigError for
    numbers that are too large.
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
        right = found["right",]
        if layout.kind == REGRESSION or min(right, len(site.y) - right) >= least:  # else it would give a small count
            found["place", str(min(int(max(score, 0.0) * PLACES), PLACES - 1))] = 1
        if layout.named:
            found["site", str(node), "records"] = len(site.y)
            found["site", str(node), "score"] = whole(np.array([max(score, -1.0)]))
    return found


def _chosen(site: SiteAnswers, rows: npt.NDArray[np.bool_]) -> SiteAnswers:
    return SiteAnswers(site.answers[rows], site.y[rows])


def _outcomes(layout: EvaluationLayout, site: SiteAnswers) -> Sequence[tuple[str, Values, npt.NDArray[np.bool_]]]:
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
    """Return a site's numbers of its training records: the loss gap, and its test's verdict."""
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
"""Minimum probability in a loss, which is then at most 691."""

Answers = npt.NDArray[np.float64]


def losses_of(kind: str, answers: Answers, y: npt.NDArray[np.generic]) -> Answers:
    """Return the loss of each record, float64 [m], of outputs [m, k] from `LoadedModel`.

    Minus the log probability of the true class; of several labels the sum; of numbers the mean squared error, in the
    labels' units.  Raises ConfigError for text.
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
    """Return whether each output is right, bool [m]: of several labels all of them; None if outputs are numbers."""
    if kind == CLASSIFICATION:
        return np.asarray(answers.argmax(axis=1) == y)
    if kind == MULTI_LABEL:
        return np.asarray(((answers > 0.5) == (y == 1)).all(axis=1))
    return None


ROUNDS = 2


class EvaluationTask(PooledSumsTask):
    """The model's outputs at the local sites, by their ids; other sites run elsewhere."""

    again = "Evaluate"

    def __init__(
        self,
        layout: EvaluationLayout,
        sites: Mapping[NodeId, SiteAnswers],
        least: int,
        draw: Draw = draw_system_entropy,
    ) -> None:
        super().__init__(layout.exact, layout.digest)
        self.layout, self._sites, self._least, self._draw = layout, sites, least, draw
        self._sent: dict[NodeId, Vector] = {}
        """Noisy sums are drawn once per site; a repeated request returns the same numbers."""

    def sums(self, job: Job) -> Vector:
        """Return a site's sums of a round.  Raises TrainingError if the first round collected nothing."""
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
        return find_places(self.layout.bounds, lambda name: noisy or (name[0] in ("sites", "at")) == (round == 0))

    def counts(self) -> npt.NDArray[np.bool_]:
        signed = {"sum", "score"}
        return find_places(self.layout.bounds, lambda name: not self.layout.noise and not signed & {*name})

    def _hidden(self, node: NodeId) -> Vector:
        if node not in self._sent:
            site, noisy = self._sites[node], self.layout.noisy
            numbers = noisy.hidden(noisy.of_records(site.answers, site.y, site.groups), self._draw(node, 0))
            self._sent[node] = self.layout.vector({("sites",): 1} | dict(numbers))
        return self._sent[node]
