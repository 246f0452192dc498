"""The experiment file, typed: keys, their meanings, and their defaults.

The sections that all kinds of run have are here; the others are in `run_sections`.

The text below a key is its meaning: `fedgossip explain` and docs/reference/reference.md print it, with what `limits`
allow.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import parse_qsl, urlencode

import msgspec

from fedgossip.base import seeds
from fedgossip.base.limits import ABOVE_0, MOST, KnownNames, OneOf, Within, Words
from fedgossip.base.scores import ACCURACY, NO_SCORE, Score
from fedgossip.base.untrusted_text import masked
from fedgossip.core import run_format
from fedgossip.data import data
from fedgossip.data.columns.table_schema import AGREED, FEDERATED, LEVELS, MISSING, REFUSE, TEST
from fedgossip.data.custom import NamesCode, code_in, is_function
from fedgossip.data.objectives import (
    AS_THE_DATA,
    CODE,
    CONVEX,
    KINDS,
    LOOP,
    OF_FORMULAS,
    SPARSE,
    SUMS,
    Objective,
    is_of_model,
    objective_of,
    score_of,
    score_of_loops,
)
from fedgossip.experiment.run_sections import (
    WEIGHT_MAX,
    AdversarySection,
    AlgorithmSection,
    CoordinatorSection,
    ForecastSection,
    OuterSection,
    ParallelSection,
    PrivacySection,
    SecureSection,
    SimulationSection,
    TopologySection,
)
from fedgossip.faults import Fault
from fedgossip.learning.models import architectures
from fedgossip.learning.one_model.flat import LORA
from fedgossip.learning.personal.methods import OF_LOGITS
from fedgossip.learning.settings import TrainSettings

GIVEN = "given"
"""Stands for a graph or an algorithm that is an object, given in Python."""

ENDLESS = MOST
"""Rounds of a run that lasts as long as its users' loops."""
ENDLESS_WORD = "endless"
"""Their notation in a file."""

VALIDATION = "validation"
"""The value of eval.on for data.validation instead of the test set."""

LAST, BEST = "last", "best"
"""Values of eval.keep: the models that a run saves."""


class ModelSection(msgspec.Struct, forbid_unknown_fields=True):
    """[model]: the model."""

    source: Annotated[str, architectures.CODE] = "softmax"
    """`softmax`, `mlp:64-32-10` (inputs, hidden, outputs), `cnn:small`, `cnn:small-bn`, `cnn:16-32-64` (channels,
    channels, hidden), `resnet:20`, `resnet:20-gn`, `chars:WIDTH`, `gpt:2-64-4` (characters; layers, width, heads),
    `module:function`; `mlp:64-32-10?exit=1` and `cnn:16-32-64?exit=1` with an early exit (docs/use/edge.md);
    `gpt:2-64-4?experts=4&top=2` with experts (docs/together/parallel.md);
    `words:ROWS-WIDTH-CLASSES`, at parameter servers; `glm:logistic`, `glm:linear`, `glm:poisson`, `glm:gamma`, and
    trees:100x6 (number and depth of boosted trees), kaplan-meier?every=30&until=720&by=COLUMN (survival),
    cox?every=30&until=720 (proportional hazards), table1?by=COLUMN, correlations, meta-analysis?family=logistic,
    multinomial, ordinal, negative-binomial, firth, elastic-net?family=logistic and weibull, for `fedgossip fit`
    (docs/sites/glm.md, docs/sites/survival.md, docs/sites/trees.md, docs/sites/statistics.md)."""
    formula: str = ""
    """The columns of a model of tables of the sites' own, "ill ~ age + sex + age:bmi": a short way of writing label and
    keep of data.source and data.test, made columns of data.columns, offset and strata (docs/sites/tables.md)."""
    sources: Annotated[list[str], architectures.CODE] = msgspec.field(default_factory=list)
    """Models of unlike participants, which exchange logits (feddf, fedmd): participant i has the one at i modulo their
    number, and `source` is that of the model distilled from the mean of all.  Empty: all have `source`
    (docs/use/unlike.md)."""


class EvalSection(msgspec.Struct, forbid_unknown_fields=True):
    """[eval]: when models are measured."""

    every: Annotated[int, Within(1, MOST)] = 5
    """Rounds between two evaluations; the last round is always evaluated."""
    on: Annotated[str, OneOf(("test", VALIDATION))] = "test"
    """Data for measuring models: the test set, or the examples of data.validation, with the test set left unread. The
    records call it the test set in both cases; the summary says which it was."""
    keep: Annotated[str, OneOf((LAST, BEST))] = LAST
    """The models that a run leaves: the last one, model/; best: model-best/ beside it, the model of the evaluated round
    with the best score, by which the run is judged, on data.validation; or, without it, on the examples that clients
    keep (data.local_test): their mean, a secure sum where sums are secure.  Commands that are given the run directory
    take model-best/."""
    watch: bool | None = None
    """Whether a simulation measures the disagreement in every round, which takes longer than mixing; false: in the
    evaluated ones alone.  Left out: where all models together have few numbers, or the run has a forecast."""


class StopSection(msgspec.Struct, forbid_unknown_fields=True):
    """[stop]: conditions that end a run before its last round."""

    patience: Annotated[int, Within(0, MOST)] = 0
    """Number of evaluations in a row without a better score than before, after which the run ends; 0: it makes all its
    rounds.  The score is the one by which eval.keep = "best" chooses.  Of a [coordinator], which decides; peers of a
    [topology] end so in a simulation alone, for none of them has all models."""


STUDY_LETTERS, STUDY_SITES = 500, 1024


class StudySection(msgspec.Struct, forbid_unknown_fields=True):
    """[study]: what people have agreed on beside the run: part of the plan and its hash, shown wherever the plan is, on
    the card and in the release; no effect on the run."""

    sites: Annotated[list[str], Words(100, STUDY_SITES)] = msgspec.field(default_factory=list)
    """Names of the sites, in any order; as many as take part."""
    purpose: Annotated[str, Words(STUDY_LETTERS)] = ""
    """Purpose of the study."""
    legal_basis: Annotated[str, Words(STUDY_LETTERS)] = ""
    """Legal basis of the processing at the sites."""
    retention: Annotated[str, Words(STUDY_LETTERS)] = ""
    """How long the model, the logs and the approvals are kept, and by whom."""
    contact: Annotated[str, Words(STUDY_LETTERS)] = ""
    """Person or office that answers questions."""


TRACKERS = ("csv", "tensorboard", "mlflow", "wandb")
"""Trackers; a colon and a place may follow."""


class TrackSection(msgspec.Struct, forbid_unknown_fields=True):
    """[track]: further destinations of a whole run's record."""

    to: list[str] = msgspec.field(default_factory=list)
    """`csv`, `tensorboard`, `mlflow:URI`, `wandb:PROJECT` (docs/use/trackers.md)."""


IN_THE_RUN = "csv", "tensorboard"
"""Trackers that write in the folder of a run where no place is named; wandb sends to a server, mlflow writes beside."""


def _plain(train: TrainSettings) -> dict[str, Any]:
    """Return [train] as plain data; a mesh without parts of texts in its former shape."""
    content = dataclasses.asdict(train)
    if train.mesh.context == 1:
        del content["mesh"]["context"], content["mesh"]["attention"]
    return content


MESHLESS = {"mesh": _plain(TrainSettings())["mesh"], "microbatches": 4}

SINCE: dict[str, dict[str, Any]] = {
    "task": {
        "loss": "",
        "metrics": [],
        "examples": 1000,
        "nonzeros": 20,
        "lam": 1e-3,
        "positive": "",
        "smooth": 0.1,
        "exchange": "",
        "options": {},
    },
    "model": {"sources": [], "formula": ""},
    "eval": {"on": "test", "keep": LAST},
    "train": {"accumulate": 1, "scaling": "none", "base_batch": 256, "count_lost": False, "slowed": 1.0, **MESHLESS},
}
"""Keys added by later releases, left out at their defaults."""

SHARE = 0.9
"""The largest share of examples that can be kept apart."""

RANK, NAMED = "rank", "named"

OF_STATISTICS = ("scale", "agreed", "missing", "categories", "columns", "suppress")
"""Keys of statistics that sites agree on."""

OF_JUDGING = ("groups", "site_scores")
"""Keys of the joint evaluation of a model by sites."""


LATER_KEYS = ("validation", "buckets", "levels", "file", "common")
"""Keys that runs from before them do not have."""


def is_standard(source: str) -> bool:
    """Return whether a source requests scaled columns: scale=standard."""
    return ("scale", "standard") in parse_qsl(source.partition("?")[2])


class DataSection(msgspec.Struct, forbid_unknown_fields=True):
    """[data]: the examples, and their partition."""

    source: Annotated[str, data.CODE, KnownNames({one.form: one.what for one in data.SOURCES.values()})] = "digits"
    """A source below (docs/use/data.md), or `module:function`; with {peer} in it, each peer reads a file of its own:
    csv:site-{peer}.csv?label=COLUMN."""
    buckets: list[int] = msgspec.field(default_factory=list)
    """Of a source of lines: lengths in characters, ascending, the end of a line counted.  A step draws its lines from
    one bucket and pads them to its length; longer ones than the last are cut.  Empty: 16, 32, 64, 128."""
    partition: Annotated[dict[str, Any], NamesCode()] = msgspec.field(default_factory=lambda: {"kind": "iid"})
    """Partition of the examples: of kind `iid`, `dirichlet` (`alpha`, `min_size`), `shard` (`shards_per_peer`),
    `pathological` (`classes_per_peer`), `similar` (`share` at random, the rest by label), `size-skewed` (`exponent` or
    `sigma`), `natural` (whole groups), `own` (for a source with {peer}, or for a
    `module:function` of the client's number); `module:function`, your own
    (docs/use/experiments.md)."""
    test: Annotated[float | str, data.CODE] = 0.2
    """The common test set: a share of the examples, between 0 and 1; or "own", the one that the source brings (MNIST's
    t10k files); or another source, as a source with {peer} needs."""
    common: Annotated[float | str, NamesCode((data.RANDOM, *data.SOURCES).__contains__)] = f"{data.RANDOM}:500"
    """The examples that all participants of feddf and fedmd answer, without labels: `random:500`, so many drawn by the
    seed in the range of the test set; another source; or a share of the training examples, which no participant then
    has, between 0 and 1 (docs/use/unlike.md)."""
    local_test: float = 0.0
    """Share of each client's examples held out for tests of the received model.  The coordinator receives the mean of
    all, except with record privacy (coordinator.privacy)."""
    scale: Annotated[str, OneOf(("source", TEST, FEDERATED))] = "source"
    """source: as the source specifies.  test, of sources with {peer} and of each one's own by an invite: columns have
    mean 0 and deviation 1 over the common test set of all; scale=standard of such a source selects it.  federated, of
    CSV files with {peer}: columns are found by their names and have mean 0 and deviation 1 over all sites, by the
    statistics of `fedgossip data agree`."""
    agreed: str = run_format.AGREED
    """The file of these statistics, beside the experiment's."""
    missing: Annotated[str, OneOf(MISSING)] = REFUSE
    """With scale = "federated", an empty cell of a feature: refuse; mean, that of its column over all sites; indicator,
    the same with a further feature that is 1 where a cell is empty, if at least `suppress` records at three sites or
    more have such a cell; drop, rows with an empty cell, or an empty label, are left out and counted."""
    categories: Annotated[str, OneOf((REFUSE, AGREED))] = REFUSE
    """With scale = "federated", columns of words: refuse, or agreed, a feature for each category of the common test
    file or of data.columns."""
    columns: dict[str, Any] = msgspec.field(default_factory=dict)
    """With scale = "federated", declarations of columns: "heart rate" = { unit = "1/min", low = 0, high = 300 }, sex =
    { categories = ["f", "m"] }.  A site's file has the unit in its first line: heart rate [1/min].  Further rules bring
    cells into the common form: aliases, missing, synonyms, recode, date, since, factor, units, order, cuts, merge, rest
    (docs/sites/tables.md)."""
    file: dict[str, str] = msgspec.field(default_factory=dict)
    """The format of tables, where it is not to be detected: delimiter, decimal, encoding, sheet; short for options of
    that name in data.source and data.test.  A site's own format is declared beside its table (docs/sites/tables.md)."""
    suppress: Annotated[int, Within(1, MOST)] = 5
    """With scale = "federated": no count of fewer records is published, nor what one could be computed from, and a
    site with fewer takes no part."""
    levels: Annotated[int, Within(2, 1000)] = LEVELS
    """With scale = "federated": a column of numbers with at most so many different ones counts as one of categories
    where rare ones are refused: codes such as 0 and 1."""
    groups: str = ""
    """A column of the sites' own CSV files, such as sex, that groups the records of `fedgossip evaluate` by its values,
    with a score for each group; a feature or not.  Empty: no groups."""
    site_scores: Annotated[str, OneOf((RANK, NAMED))] = RANK
    """What `fedgossip evaluate` reports of single sites.  rank: anonymous scores to a hundredth, the worst first;
    named: the score and the number of records of each site."""
    validation: Annotated[float, Within(0, SHARE)] = 0.0
    """Share of the training examples excluded from training, drawn by the seed before the partition: eval.on =
    "validation" measures on them, so that hyperparameters are chosen without the test set."""

    @property
    def by_test(self) -> bool:
        """Whether examples of each one's own are scaled by the common test set."""
        own = self.partition.get("kind") == "own" and self.scale != FEDERATED
        return self.scale == TEST or (own and any(map(is_standard, (self.source, str(self.test)))))

    @property
    def without_statistics(self) -> Sequence[str]:
        """The keys of statistics, where there are none: runs from before them have the same hash."""
        return [key for key in self._usual(OF_STATISTICS) if self.scale != FEDERATED]

    @property
    def unset(self) -> Sequence[str]:
        """The keys that are left out of a run's hash: runs from before them have the same."""
        return (*self._usual(LATER_KEYS), *self.without_statistics, *self._usual(OF_JUDGING))

    def _usual(self, keys: Sequence[str]) -> Sequence[str]:
        usual = DataSection()
        return [key for key in keys if getattr(self, key) == getattr(usual, key)]


TASKS = (AS_THE_DATA, *KINDS, CONVEX, *OF_FORMULAS, LOOP, *SUMS)


class TaskSection(msgspec.Struct, forbid_unknown_fields=True):
    """[task]: the problem and its metric; or a problem with a known answer (pure numpy)."""

    kind: Annotated[str, NamesCode(), OneOf(TASKS, own=True)] = AS_THE_DATA
    """learning: the data of the source; convex: a linear model of it that can be certified, without torch
    (docs/use/convex.md); averaging, quadratic: problems with a known answer, without torch; sparse-logistic: drawn
    clicks, with rows at parameter servers, else whole tables; loop: a training loop of your own (docs/use/own-loop.md);
    `module:Class`: a task of your own, with the methods of LocalTask (docs/use/experiments.md); statistics, evaluation:
    set by `fedgossip data agree` and `fedgossip evaluate`."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Options of a task of your own, beside n, seed and rounds."""
    loss: Annotated[str, CODE] = ""
    """`cross-entropy`, `mse`, `mae`, `huber`, `bce`; `module:function`, of (outputs, labels), the mean over a batch;
    empty: the kind's own, cross-entropy, mse or bce (docs/use/tasks.md).  Convex: `hinge`, `logistic`, `squares`,
    `lasso`."""
    lam: Annotated[float, Within(ABOVE_0)] = 1e-3
    """Convex: weight of lam/2 |w|^2 beside the mean loss; smaller fits closer, and takes more rounds."""
    smooth: Annotated[float, Within(ABOVE_0)] = 0.1
    """Lasso: beside lam |w|_1 stands lam smooth/2 |w|^2, without which nothing could be certified; smaller is nearer
    to the lasso, and takes more rounds."""
    positive: str = ""
    """Convex, hinge and logistic: the class to separate from all others, where the source has more than two."""
    metrics: Annotated[list[str], CODE] = msgspec.field(default_factory=list)
    """`accuracy`, `f1`, `auroc`, `rmse`, `mae`, `r2`, `loss`, `gap`; `module:function?better=lower`, of arrays
    (outputs, labels), with of=model of (model, task), of any task; of a loop or task of your own the names of numbers
    that it reports; the first is the score of reports.  Empty: the kind's own (docs/use/tasks.md)."""
    exchange: Annotated[str, OneOf(("", *LORA))] = ""
    """Loop: how adapters (lora_A, lora_B) travel: `lora`, which is `lora:ffa`; `lora:both`, `lora:product`
    (docs/use/own-loop.md); empty: as the script's join, or else like all parameters."""
    dim: Annotated[int, Within(1, MOST)] = 1
    """Averaging, quadratic: numbers in a vector.  Sparse-logistic: features, each a row of the model."""
    dtype: Annotated[str, OneOf(("float32", "float64"))] = "float32"
    """Averaging, quadratic: their type; learning is always float32."""
    eta: float = 0.1
    """Quadratic: step size."""
    sigma: float = 0.0
    """Quadratic: standard deviation of the gradient noise per coordinate."""
    placement: str = "smooth"
    """Quadratic: order of the targets b_i along the node ids: `smooth`, `alternating`, `random`."""
    examples: Annotated[int, Within(1, 10**7)] = 1000
    """Sparse-logistic: examples of each worker."""
    nonzeros: Annotated[int, Within(1, 10**4)] = 20
    """Sparse-logistic: features of an example."""


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """The sections common to all kinds of run; see each section."""

    kind: ClassVar[str] = ""
    """The section of this kind of run: a field of a class below, by which `kinds` identifies it."""

    seed: int = seeds.USUAL
    """Every random number of the run follows from it."""
    rounds: Annotated[int, Within(1, MOST)] = 60
    """Rounds of training and averaging.  "endless", of loops of your own: until they end."""
    name: str = ""
    """For the run directory and the report; the graph's name where empty."""
    data: DataSection = msgspec.field(default_factory=DataSection)
    model: ModelSection = msgspec.field(default_factory=ModelSection)
    train: TrainSettings = msgspec.field(default_factory=TrainSettings)
    eval: EvalSection = msgspec.field(default_factory=EvalSection)
    stop: StopSection = msgspec.field(default_factory=StopSection)
    track: TrackSection = msgspec.field(default_factory=TrackSection)
    study: StudySection = msgspec.field(default_factory=StudySection)
    simulation: SimulationSection = msgspec.field(default_factory=SimulationSection)
    task: TaskSection = msgspec.field(default_factory=TaskSection)
    faults: list[Fault] = msgspec.field(default_factory=list)
    """[[faults]]: faults, their times and participants; in the simulator and in real processes of one machine."""

    @property
    def learns(self) -> bool:
        """Whether something is learned from data; else it is a problem with a known answer."""
        return self.task.kind not in (*OF_FORMULAS, LOOP, *SUMS) and not self.own_task

    @property
    def selects(self) -> bool:
        """Whether rounds are compared by their scores: to keep the best one's model, or to end the run."""
        return self.eval.keep == BEST or self.stop.patience > 0

    @property
    def selects_at_clients(self) -> bool:
        """Whether the scores are those of clients, on examples of their own, for there is no common validation set."""
        return self.eval.on != VALIDATION and self.data.local_test > 0

    @property
    def loops(self) -> bool:
        """Whether training loops of the user's own take part."""
        return self.task.kind == LOOP

    @property
    def own_task(self) -> bool:
        """Whether the task is an object of the user's own, "module:Class"."""
        return is_function(self.task.kind)

    @property
    def endless(self) -> bool:
        """Whether it lasts as long as the user's own loops."""
        return self.rounds == ENDLESS and self.loops and self.kind in ("topology", "coordinator")

    @property
    def objective(self) -> Objective:
        """The learning kind of the task.  Raises ConfigError for a loss or a metric of another kind."""
        return objective_of(self.task.kind, self.task.loss, self.task.metrics, self.data.source)

    @property
    def budget(self) -> PrivacySection | None:
        """The privacy budget; None without one."""
        return None

    @property
    def personal(self) -> str | None:
        """The method by which participants keep models of their own; None: they have none."""
        return None

    @property
    def exchanges_logits(self) -> bool:
        """Whether participants send their answers to common examples, and no models."""
        return bool(self.personal) and str(self.personal).partition("?")[0] in OF_LOGITS

    @property
    def named_code(self) -> Sequence[str]:
        """The user's own functions and classes, "module:function"; their source must agree between participants."""
        return code_in(self)

    @property
    def reaches(self) -> Sequence[str]:
        """References outside a run's folder: named code, and places that [track] sends the record to."""
        return [*self.named_code, *(to for to in self.track.to if to not in IN_THE_RUN)]

    @property
    def score(self) -> Score:
        """The metric of the run."""
        first = next(iter(self.task.metrics), "")
        if is_of_model(first):
            return score_of(first)
        if self.loops:
            return score_of_loops(first) if first else ACCURACY
        if self.own_task:
            return score_of_loops(first or "loss")
        if self.task.kind == SPARSE:
            return ACCURACY
        return self.objective.score if self.learns else NO_SCORE

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved experiment as plain data, without keys that are None (TOML has no null)."""
        content = msgspec.to_builtins(self)
        content["train"] = _plain(self.train)  # msgspec leaves out the fields that it did not set itself
        for section, since in SINCE.items():  # runs from before them have the same hash
            for key, usual in since.items():
                if content[section][key] == usual:
                    del content[section][key]
        for key in self.data.unset:
            del content["data"][key]
        if self.stop == StopSection():
            del content["stop"]
        study = {key: one for key, one in content.pop("study").items() if one}
        content |= {"study": study} if study else {}
        if server := content.get("parallel", {}).get("server"):
            for key, usual in (("filters", []), ("pull_codec", ""), ("n_fetch", 1), ("n_push", 1)):
                server.pop(key) if server[key] == usual else None
            if content["parallel"]["outer"] == msgspec.to_builtins(OuterSection()):
                del content["parallel"]["outer"]
            for key in ("l1", "codec"):
                content["parallel"].pop(key) if not content["parallel"][key] else None
        if not self.track.to:
            del content["track"]
        else:  # what is kept, shown and handed on: `track` itself has the passwords
            content["track"]["to"] = [masked(one) for one in self.track.to]
        if self.endless:
            content["rounds"] = ENDLESS_WORD
        content = {self.kind: content.pop(self.kind), **content}
        return typing.cast("dict[str, Any]", _without_none(content))


class GossipExperiment(Experiment, forbid_unknown_fields=True, kw_only=True):
    """Peers of a graph."""

    kind: ClassVar[str] = "topology"

    topology: TopologySection
    algorithm: AlgorithmSection = msgspec.field(default_factory=AlgorithmSection)
    adversary: AdversarySection = msgspec.field(default_factory=AdversarySection)
    forecast: ForecastSection = msgspec.field(default_factory=ForecastSection)

    @property
    def personal(self) -> str | None:
        return self.algorithm.personal

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved experiment as `Experiment.to_dict`; runs from before rules other than sums hash alike."""
        content = super().to_dict()
        if self.algorithm.combine == "linear":
            del content["algorithm"]["combine"]
        if not self.algorithm.combine_options:
            del content["algorithm"]["combine_options"]
        if not self.adversary.peers:
            del content["adversary"]
        if self.forecast == ForecastSection():
            del content["forecast"]
        return content


class FederatedExperiment(Experiment, forbid_unknown_fields=True, kw_only=True):
    """Clients of a coordinator."""

    kind: ClassVar[str] = "coordinator"

    coordinator: CoordinatorSection

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved experiment as `Experiment.to_dict`; runs from before tiers hash alike."""
        content = super().to_dict()
        if not self.coordinator.tiers:
            del content["coordinator"]["tiers"]
        return content

    def shared(self) -> dict[str, Any]:
        """Return `to_dict` without what each participant may set for itself; runs of releases before hash alike."""
        content = self.to_dict()
        for key in ("start_timeout", "return_timeout", "silence"):
            content["coordinator"].pop(key, None)
        if not self.coordinator.privacy.test_noise:  # folders and policies from before it
            content["coordinator"]["privacy"].pop("test_noise", None)
        if self.coordinator.secure.score_max == SecureSection().score_max:
            content["coordinator"]["secure"].pop("score_max", None)
        if not self.coordinator.codec:
            content["coordinator"].pop("codec", None)
        if (available := self.coordinator.available) and available.startswith("trace:"):  # each may keep it elsewhere
            content["coordinator"]["available"] = f"trace:{Path(available.removeprefix('trace:')).name}"
        content["coordinator"]["secure"].setdefault("weight_max", WEIGHT_MAX)  # as releases before had it
        content.pop("track", None)  # each may track for itself
        return content

    @property
    def personal(self) -> str | None:
        s = self.coordinator
        return f"{s.algorithm}?{urlencode(s.options)}" if s.algorithm in OF_LOGITS else s.personal

    @property
    def budget(self) -> PrivacySection | None:
        return None if self.coordinator.privacy.unit == "none" else self.coordinator.privacy


class ParallelExperiment(Experiment, forbid_unknown_fields=True, kw_only=True):
    """Workers that descend on the mean of their gradients."""

    kind: ClassVar[str] = "parallel"

    parallel: ParallelSection


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value
