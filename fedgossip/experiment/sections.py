"""The experiment file, typed: keys, their meanings, and their defaults.

This file has the sections of all kinds of run; `run_sections` has the others.

The text below a key is its meaning: `fedgossip explain` and docs/reference/reference.md print it, with the values that
`limits` allow.
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
"""Placeholder for a graph or an algorithm given as a Python object."""

ENDLESS = MOST
"""Value of `rounds` for a run that ends with its users' loops."""
ENDLESS_WORD = "endless"
"""Its notation in a file."""

VALIDATION = "validation"
"""Value of eval.on for data.validation instead of the test set."""

LAST, BEST = "last", "best"
"""Values of eval.keep: the models that a run saves."""


class ModelSection(msgspec.Struct, forbid_unknown_fields=True):
    """[model]: the model."""

    source: Annotated[str, architectures.CODE] = "softmax"
    """`softmax`, `mlp:64-32-10` (inputs, hidden, outputs), `cnn:small`, `cnn:small-bn`, `cnn:16-32-64` (channels,
    channels, hidden), `resnet:20`, `resnet:20-gn`, `chars:WIDTH`, `gpt:2-64-4` (characters; layers, width, heads),
    `module:function`; `mlp:64-32-10?exit=1` and `cnn:16-32-64?exit=1` with an early exit (docs/use/edge.md);
    `gpt:2-64-4?experts=4&top=2` with experts (docs/together/parallel.md); `words:ROWS-WIDTH-CLASSES`, at parameter
    servers; `glm:logistic`, `glm:linear`, `glm:poisson`, `glm:gamma`, and trees:100x6 (number and depth of boosted
    trees), kaplan-meier?every=30&until=720&by=COLUMN (survival), cox?every=30&until=720 (proportional hazards),
    table1?by=COLUMN, correlations, meta-analysis?family=logistic, multinomial, ordinal, negative-binomial, firth,
    elastic-net?family=logistic, weibull, mixed?by=COLUMN, mixed-logistic and gee?by=COLUMN&family=logistic, for
    `fedgossip fit` (docs/sites/glm.md, docs/sites/survival.md, docs/sites/trees.md, docs/sites/statistics.md).
    """
    formula: str = ""
    """Columns of a model of the sites' own tables, "ill ~ age + sex + age:bmi": short for the label and keep options of
    data.source and data.test, and for derived columns in data.columns, offset and strata (docs/sites/tables.md).
    """
    sources: Annotated[list[str], architectures.CODE] = msgspec.field(default_factory=list)
    """Different models of the participants, which exchange logits (feddf, fedmd): participant i has entry i modulo
    their number, and `source` is the model distilled from the mean of all.  Empty: all have `source`
    (docs/use/unlike.md).
    """


class EvalSection(msgspec.Struct, forbid_unknown_fields=True):
    """[eval]: when models are measured."""

    every: Annotated[int, Within(1, MOST)] = 5
    """Rounds between two evaluations; the last round is always evaluated."""
    on: Annotated[str, OneOf(("test", VALIDATION))] = "test"
    """Data for measuring models: the test set, or the examples of data.validation, with the test set left unread. The
    records call either the test set; the summary names the one used.
    """
    keep: Annotated[str, OneOf((LAST, BEST))] = LAST
    """Model that a run saves.  last: the final one, in model/.  best: also model-best/, the model of the evaluated
    round with the best score on data.validation or, without it, on the clients' held-out examples (data.local_test):
    their mean, a secure sum if sums are secure.  Commands that take a run directory then use model-best/.
    """
    watch: bool | None = None
    """Whether a simulation measures the disagreement in every round, which takes longer than mixing; false: only in
    evaluated rounds.  Left out: every round if all models together are small, or if the run has a forecast.
    """


class StopSection(msgspec.Struct, forbid_unknown_fields=True):
    """[stop]: conditions that end a run before its last round."""

    patience: Annotated[int, Within(0, MOST)] = 0
    """Maximum number of consecutive evaluations without a better score before the run ends; 0: no early end.  The score
    is that of eval.keep = "best".  Only for a [coordinator], which decides, and for a simulated [topology]: a real peer
    does not have all models.
    """


STUDY_LETTERS, STUDY_SITES = 500, 1024


class StudySection(msgspec.Struct, forbid_unknown_fields=True):
    """[study]: the participants' agreement on the study: part of the plan and its hash, shown with the plan, on the
    card and in the release; no effect on the run.
    """

    sites: Annotated[list[str], Words(100, STUDY_SITES)] = msgspec.field(default_factory=list)
    """Names of the sites, in any order; one per participant."""
    purpose: Annotated[str, Words(STUDY_LETTERS)] = ""
    """Purpose of the study."""
    legal_basis: Annotated[str, Words(STUDY_LETTERS)] = ""
    """Legal basis of the processing at the sites."""
    retention: Annotated[str, Words(STUDY_LETTERS)] = ""
    """How long the model, the logs and the approvals are kept, and the responsible party."""
    contact: Annotated[str, Words(STUDY_LETTERS)] = ""
    """Person or office that answers questions on the study."""


TRACKERS = ("csv", "tensorboard", "mlflow", "wandb")
"""Trackers; a colon and a destination may follow."""


class TrackSection(msgspec.Struct, forbid_unknown_fields=True):
    """[track]: further destinations for the record of a run."""

    to: list[str] = msgspec.field(default_factory=list)
    """`csv`, `tensorboard`, `mlflow:URI`, `wandb:PROJECT` (docs/use/trackers.md)."""


IN_THE_RUN = "csv", "tensorboard"
"""Trackers that write into the run's folder if no destination is given; wandb sends to a server, mlflow writes next to
the folder.
"""


def _plain(train: TrainSettings) -> dict[str, Any]:
    """Return [train] as plain data; a mesh without context or expert has its earlier shape, for the same hash."""
    content = dataclasses.asdict(train)
    if train.mesh.context == 1:
        del content["mesh"]["context"], content["mesh"]["attention"]
    if train.mesh.expert == 1:
        del content["mesh"]["expert"]
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
"""Keys of later releases with their defaults; omitted at these, so that the hash stays the same."""

SHARE = 0.9
"""Largest share of examples that can be held out."""

RANK, NAMED = "rank", "named"

OF_STATISTICS = ("scale", "agreed", "missing", "where", "categories", "columns", "suppress")
"""Keys for statistics that sites agree on."""

OF_JUDGING = ("groups", "site_scores")
"""Keys for the joint evaluation of a model by sites."""


LATER_KEYS = ("validation", "buckets", "levels", "file", "common", "where")
"""Keys that runs of earlier releases do not have."""


def is_standard(source: str) -> bool:
    """Return whether a source requests scaled columns: scale=standard."""
    return ("scale", "standard") in parse_qsl(source.partition("?")[2])


class DataSection(msgspec.Struct, forbid_unknown_fields=True):
    """[data]: the examples, and their partition."""

    source: Annotated[str, data.CODE, KnownNames({one.form: one.what for one in data.SOURCES.values()})] = "digits"
    """A source below (docs/use/data.md), or `module:function`; with {peer} in it, each peer reads its own file:
    csv:site-{peer}.csv?label=COLUMN.
    """
    buckets: list[int] = msgspec.field(default_factory=list)
    """For a source of lines: lengths in characters, ascending, including the end of a line.  A step draws its lines
    from one bucket and pads them to its length; lines longer than the last bucket are cut.  Empty: 16, 32, 64, 128.
    """
    partition: Annotated[dict[str, Any], NamesCode()] = msgspec.field(default_factory=lambda: {"kind": "iid"})
    """Partition of the examples, of kind `iid`, `dirichlet` (`alpha`, `min_size`), `shard` (`shards_per_peer`),
    `pathological` (`classes_per_peer`), `similar` (`share` at random, the rest by label), `size-skewed` (`exponent` or
    `sigma`), `natural` (whole groups), `own` (for a source with {peer}, or for a `module:function` of the client's
    number); `module:function`, your own (docs/use/experiments.md).
    """
    test: Annotated[float | str, data.CODE] = 0.2
    """The common test set: a share of the examples, between 0 and 1; "own", the test set of the source (MNIST's t10k
    files); or another source, required with {peer}.
    """
    common: Annotated[float | str, NamesCode((data.RANDOM, *data.SOURCES).__contains__)] = f"{data.RANDOM}:500"
    """Unlabelled examples: all participants of feddf and fedmd compute logits on them.  `random:500`, 500 drawn by the
    seed in the range of the test set; another source; or a share of the training examples, between 0 and 1, which no
    participant then trains on (docs/use/unlike.md).
    """
    local_test: float = 0.0
    """Share of each client's examples held out to test the received model.  The coordinator receives the mean over
    clients, except with record privacy (coordinator.privacy).
    """
    scale: Annotated[str, OneOf(("source", TEST, FEDERATED))] = "source"
    """source: as the source specifies.  test, for sources with {peer} and for sites that join by an invite: columns
    have mean 0 and deviation 1 over the common test set; selected by scale=standard in the source.  federated, for CSV
    files with {peer}: columns are found by name and have mean 0 and deviation 1 over all sites, by the statistics of
    `fedgossip data agree`.
    """
    agreed: str = run_format.AGREED
    """File of these statistics, relative to the experiment file."""
    missing: Annotated[str, KnownNames(MISSING)] = REFUSE
    """With scale = "federated", treatment of an empty cell of a feature.  refuse: the table is refused.  mean: the mean
    of its column over all sites.  indicator: the same, with a further feature set to 1 for an empty cell, if at least
    `suppress` records at three sites or more have one.  drop: rows with an empty cell or label are left out and
    counted.  impute:K: of a fit of glm:..., cells are drawn K times by chained equations, and K fits pooled.
    """
    where: str = ""
    """With scale = "federated", condition on the records of every site, "age >= 18 and ward != north": the other
    records take part in no step (docs/sites/tables.md).  Empty: all records.
    """
    categories: Annotated[str, OneOf((REFUSE, AGREED))] = REFUSE
    """With scale = "federated", columns of words: refuse, or agreed, one feature per category of the common test file
    or of data.columns.
    """
    columns: dict[str, Any] = msgspec.field(default_factory=dict)
    """With scale = "federated", declarations of columns: "heart rate" = { unit = "1/min", low = 0, high = 300 }, sex =
    { categories = ["f", "m"] }.  A site's file has the unit in its first line: heart rate [1/min].  Further rules
    convert cells to the common form: aliases, missing, synonyms, recode, date, since, factor, units, order, cuts,
    merge, rest (docs/sites/tables.md).
    """
    file: dict[str, str] = msgspec.field(default_factory=dict)
    """Format of tables, if it cannot be detected: delimiter, decimal, encoding, sheet; short for the options of these
    names in data.source and data.test.  A site declares its own format next to its table (docs/sites/tables.md).
    """
    suppress: Annotated[int, Within(1, MOST)] = 5
    """With scale = "federated", minimum number of records: no smaller count is published, nor a number that reveals
    one, and a site with fewer records takes no part.
    """
    levels: Annotated[int, Within(2, 1000)] = LEVELS
    """With scale = "federated", a numeric column with at most this many different values counts as categorical when
    rare categories are refused: codes such as 0 and 1.
    """
    groups: str = ""
    """Column of the sites' own CSV files, such as sex, by which `fedgossip evaluate` groups records, with a score for
    each group; it need not be a feature.  Empty: no groups.
    """
    site_scores: Annotated[str, OneOf((RANK, NAMED))] = RANK
    """Scores of single sites in the report of `fedgossip evaluate`.  rank: anonymous scores to a hundredth, the worst
    first; named: the score and the number of records of each site.
    """
    validation: Annotated[float, Within(0, SHARE)] = 0.0
    """Share of the training examples excluded from training, drawn by the seed before the partition: eval.on =
    "validation" measures on them, so that hyperparameters are chosen without the test set.
    """

    @property
    def by_test(self) -> bool:
        """Whether the sites' own examples are scaled by the common test set."""
        own = self.partition.get("kind") == "own" and self.scale != FEDERATED
        return self.scale == TEST or (own and any(map(is_standard, (self.source, str(self.test)))))

    @property
    def without_statistics(self) -> Sequence[str]:
        """Keys for statistics, if the run has none; omitted so that runs of earlier releases have the same hash."""
        return [key for key in self._usual(OF_STATISTICS) if self.scale != FEDERATED]

    @property
    def unset(self) -> Sequence[str]:
        """Keys omitted from a run's hash, so that runs of earlier releases have the same."""
        return list(dict.fromkeys([*self._usual(LATER_KEYS), *self.without_statistics, *self._usual(OF_JUDGING)]))

    def _usual(self, keys: Sequence[str]) -> Sequence[str]:
        usual = DataSection()
        return [key for key in keys if getattr(self, key) == getattr(usual, key)]


TASKS = (AS_THE_DATA, *KINDS, CONVEX, *OF_FORMULAS, LOOP, *SUMS)


class TaskSection(msgspec.Struct, forbid_unknown_fields=True):
    """[task]: the problem and its metric; or a problem with a known solution (pure numpy)."""

    kind: Annotated[str, NamesCode(), OneOf(TASKS, own=True)] = AS_THE_DATA
    """learning: learn from the data; convex: a linear model of the data with a certificate, without torch
    (docs/use/convex.md); averaging, quadratic: problems with a known solution, without torch; sparse-logistic: random
    clicks, with rows at parameter servers, otherwise whole tables; loop: your own training loop (docs/use/own-loop.md);
    `module:Class`: your own task, with the methods of LocalTask (docs/use/experiments.md); statistics, evaluation: set
    by `fedgossip data agree` and `fedgossip evaluate`.
    """
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Options of your own task, in addition to n, seed and rounds."""
    loss: Annotated[str, CODE] = ""
    """`cross-entropy`, `mse`, `mae`, `huber`, `bce`; `module:function`, called with (outputs, labels), returning the
    mean over a batch; empty: the default of the kind, cross-entropy, mse or bce (docs/use/tasks.md).  Convex: `hinge`,
    `logistic`, `squares`, `lasso`.
    """
    lam: Annotated[float, Within(ABOVE_0)] = 1e-3
    """Convex: weight of lam/2 |w|^2 added to the mean loss; a smaller one fits closer and takes more rounds."""
    smooth: Annotated[float, Within(ABOVE_0)] = 0.1
    """Lasso: adds lam smooth/2 |w|^2 to lam |w|_1, which the certificate requires; a smaller one is nearer to the lasso
    and takes more rounds.
    """
    positive: str = ""
    """Convex, hinge and logistic: the class to separate from all others, if the source has more than two."""
    metrics: Annotated[list[str], CODE] = msgspec.field(default_factory=list)
    """`accuracy`, `f1`, `auroc`, `rmse`, `mae`, `r2`, `loss`, `gap`; `module:function?better=lower`, called with arrays
    (outputs, labels) or, with of=model, with (model, task) of any task; for your own loop or task, names of numbers
    that it reports.  The first is the score of reports.  Empty: the default of the kind (docs/use/tasks.md).
    """
    exchange: Annotated[str, OneOf(("", *LORA))] = ""
    """Loop: exchange of adapters (lora_A, lora_B): `lora`, which is `lora:ffa`; `lora:both`, `lora:product`,
    `lora:stack` (docs/use/own-loop.md); empty: as given in the script's join, otherwise like all parameters.
    """
    dim: Annotated[int, Within(1, MOST)] = 1
    """Averaging, quadratic: elements of a vector.  Sparse-logistic: features, each a row of the model."""
    dtype: Annotated[str, OneOf(("float32", "float64"))] = "float32"
    """Averaging, quadratic: type of the elements; learning is always float32."""
    eta: float = 0.1
    """Quadratic: step size."""
    sigma: float = 0.0
    """Quadratic: standard deviation of the gradient noise per coordinate."""
    placement: str = "smooth"
    """Quadratic: order of the targets b_i along the node ids: `smooth`, `alternating`, `random`."""
    examples: Annotated[int, Within(1, 10**7)] = 1000
    """Sparse-logistic: examples per worker."""
    nonzeros: Annotated[int, Within(1, 10**4)] = 20
    """Sparse-logistic: features per example."""


UNUSED = {"stop": StopSection(), "forecast": ForecastSection()}
"""Sections that a file without them is stored without: runs of earlier releases have the same hash."""


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """The sections common to all kinds of run; see each section."""

    kind: ClassVar[str] = ""
    """Section of this kind of run: the field of a class below that identifies it."""

    seed: int = seeds.USUAL
    """Seed of all random numbers of the run."""
    rounds: Annotated[int, Within(1, MOST)] = 60
    """Rounds of training and averaging.  "endless", for your own loops: until they end."""
    name: str = ""
    """Name for the run directory and the report; empty: the graph's name."""
    data: DataSection = msgspec.field(default_factory=DataSection)
    model: ModelSection = msgspec.field(default_factory=ModelSection)
    train: TrainSettings = msgspec.field(default_factory=TrainSettings)
    eval: EvalSection = msgspec.field(default_factory=EvalSection)
    stop: StopSection = msgspec.field(default_factory=StopSection)
    track: TrackSection = msgspec.field(default_factory=TrackSection)
    study: StudySection = msgspec.field(default_factory=StudySection)
    simulation: SimulationSection = msgspec.field(default_factory=SimulationSection)
    task: TaskSection = msgspec.field(default_factory=TaskSection)
    forecast: ForecastSection = msgspec.field(default_factory=ForecastSection)
    faults: list[Fault] = msgspec.field(default_factory=list)
    """[[faults]]: faults, their times and participants; in the simulator and in real processes on one machine."""

    @property
    def learns(self) -> bool:
        """Whether the run learns from data; otherwise its problem has a known solution, or the user's code does the
        training.
        """
        return self.task.kind not in (*OF_FORMULAS, LOOP, *SUMS) and not self.own_task

    @property
    def selects(self) -> bool:
        """Whether rounds are compared by score: to keep the best model, or to end the run."""
        return self.eval.keep == BEST or self.stop.patience > 0

    @property
    def selects_at_clients(self) -> bool:
        """Whether clients measure the scores on their own held-out examples, as there is no common validation set."""
        return self.eval.on != VALIDATION and self.data.local_test > 0

    @property
    def loops(self) -> bool:
        """Whether the users' own training loops take part."""
        return self.task.kind == LOOP

    @property
    def own_task(self) -> bool:
        """Whether the task is the user's own class, "module:Class"."""
        return is_function(self.task.kind)

    @property
    def endless(self) -> bool:
        """Whether the run lasts until the users' own loops end."""
        return self.rounds == ENDLESS and self.loops and self.kind in ("topology", "coordinator")

    @property
    def objective(self) -> Objective:
        """Learning kind of the task.  Raises ConfigError for a loss or a metric of another kind."""
        return objective_of(self.task.kind, self.task.loss, self.task.metrics, self.data.source)

    @property
    def budget(self) -> PrivacySection | None:
        """Privacy budget; None without one."""
        return None

    @property
    def personal(self) -> str | None:
        """Method for the participants' personal models; None without them."""
        return None

    @property
    def exchanges_logits(self) -> bool:
        """Whether participants send logits on common examples instead of models."""
        return bool(self.personal) and str(self.personal).partition("?")[0] in OF_LOGITS

    @property
    def named_code(self) -> Sequence[str]:
        """The user's own functions and classes, "module:function"; participants must have the same source of them."""
        return code_in(self)

    @property
    def reaches(self) -> Sequence[str]:
        """References outside a run's folder: the user's own code, and the destinations of [track]."""
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
        for section, since in SINCE.items():  # so that runs of earlier releases have the same hash
            for key, usual in since.items():
                if content[section][key] == usual:
                    del content[section][key]
        for key in self.data.unset:
            del content["data"][key]
        content = {
            name: one for name, one in content.items() if name not in UNUSED or UNUSED[name] != getattr(self, name)
        }
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
        else:  # the stored and shown form: `track` itself has the passwords
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

    @property
    def personal(self) -> str | None:
        return self.algorithm.personal

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved experiment as `Experiment.to_dict`, with the same hash as earlier releases for unchanged
        rules.
        """
        content = super().to_dict()
        if self.algorithm.combine == "linear":
            del content["algorithm"]["combine"]
        if not self.algorithm.combine_options:
            del content["algorithm"]["combine_options"]
        if not self.adversary.peers:
            del content["adversary"]
        return content


class FederatedExperiment(Experiment, forbid_unknown_fields=True, kw_only=True):
    """Clients of a coordinator."""

    kind: ClassVar[str] = "coordinator"

    coordinator: CoordinatorSection

    def to_dict(self) -> dict[str, Any]:
        """Return the experiment as `Experiment.to_dict` does; without tiers, with the hash of earlier releases."""
        content = super().to_dict()
        if not self.coordinator.tiers:
            del content["coordinator"]["tiers"]
        return content

    def shared(self) -> dict[str, Any]:
        """Return `to_dict` without the keys that each participant may set itself, with the hash of earlier releases."""
        content = self.to_dict()
        for key in ("start_timeout", "return_timeout", "silence"):
            content["coordinator"].pop(key, None)
        if not self.coordinator.privacy.test_noise:  # missing in folders and policies of earlier releases
            content["coordinator"]["privacy"].pop("test_noise", None)
        if self.coordinator.secure.score_max == SecureSection().score_max:
            content["coordinator"]["secure"].pop("score_max", None)
        if not self.coordinator.codec:
            content["coordinator"].pop("codec", None)
        if (available := self.coordinator.available) and available.startswith("trace:"):  # each may keep it elsewhere
            content["coordinator"]["available"] = f"trace:{Path(available.removeprefix('trace:')).name}"
        content["coordinator"]["secure"].setdefault("weight_max", WEIGHT_MAX)  # as in earlier releases
        content.pop("track", None)  # each participant sets its own
        return content

    @property
    def personal(self) -> str | None:
        s = self.coordinator
        return f"{s.algorithm}?{urlencode(s.options)}" if s.algorithm in OF_LOGITS else s.personal

    @property
    def budget(self) -> PrivacySection | None:
        return None if self.coordinator.privacy.unit == "none" else self.coordinator.privacy


class ParallelExperiment(Experiment, forbid_unknown_fields=True, kw_only=True):
    """Workers that step on the mean of their gradients."""

    kind: ClassVar[str] = "parallel"

    parallel: ParallelSection


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value
