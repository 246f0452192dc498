"""The experiment file's sections, typed: what may be written, what it means, and what stands there by default.

The text below a key is its meaning: `fedgossip explain` and docs/reference.md print it, with what `limits` allow.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from fedgossip import seeds
from fedgossip.algorithms.attacks import ATTACKS
from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.algorithms.combine import COMBINATIONS
from fedgossip.algorithms.descent.names import DESCENTS
from fedgossip.algorithms.fragments import FRAGMENTS_MAX
from fedgossip.algorithms.names import METHODS
from fedgossip.experiment.coordinator_sections import CoordinatorSection, PrivacySection
from fedgossip.experiment.data_section import DataSection
from fedgossip.faults import Fault
from fedgossip.learning.mesh_settings import MeshSettings
from fedgossip.learning.objectives import (
    AS_THE_DATA,
    CONVEX,
    KINDS,
    LOOP,
    SPARSE,
    SUMS,
    Objective,
    objective_of,
    score_of_loops,
)
from fedgossip.learning.settings import HOGWILD, TrainSettings
from fedgossip.limits import ABOVE_0, LONGEST_SECONDS, MOST, OneOf, Within
from fedgossip.messages import SERVERS_MAX, SHARDS_MAX, WORKERS_MAX
from fedgossip.protocols.peer_sampling import RULES
from fedgossip.scores import ACCURACY, NO_SCORE, Score

GIVEN = "given"
"""Stands for a graph or an algorithm that is an object, given in Python."""


ENDLESS = MOST
"""Rounds of a run that goes on as long as the loops of its users do."""
ENDLESS_WORD = "endless"
"""What stands for them in a file."""


VALIDATION = "validation"
"""What eval.on says to measure on data.validation, and not on the test set."""

Seconds = Annotated[float, Within(ABOVE_0, LONGEST_SECONDS)]
SecondsOr0 = Annotated[float, Within(0, LONGEST_SECONDS)]
SecondsOr0Given = Annotated[float | None, Within(0, LONGEST_SECONDS)]
Rate = Annotated[float | None, Within(ABOVE_0)]


class ModelSection(msgspec.Struct, forbid_unknown_fields=True):
    """[model]: what learns."""

    source: str = "softmax"
    """`softmax`, `mlp:64-32-10` (inputs, hidden, outputs), `cnn:small`, `cnn:small-bn`, `cnn:16-32-64` (channels,
    channels, hidden), `chars:WIDTH`, `gpt:2-64-4` (characters; layers, width, heads), `module:function`;
    `words:ROWS-WIDTH-CLASSES`, at parameter servers; `glm:logistic`, `glm:linear`, `glm:poisson`, and
    trees:100x6 (boosted trees, and how deep),
    kaplan-meier?every=30&until=720&by=COLUMN (survival), cox?every=30&until=720 (proportional hazards),
    for `fedgossip fit` (docs/glm.md, docs/survival.md, docs/trees.md)."""


class TopologySection(msgspec.Struct, forbid_unknown_fields=True):
    """[topology]: peers of a graph."""

    graph: str
    """A family (ring, torus:4x4, regular:3, ...), a schedule (base:1, matcha:0.5:torus, ...), a ready graph of
    `fedgossip topology list`, the path of a file, or module:function, of n and the seed (docs/topologies.md)."""
    n: int | None = None
    """Number of peers, where the graph leaves it open."""
    weights: str | None = None
    """`metropolis`, `max-degree`, `uniform`, `lazy`, `best-constant`, `fmmc`, `fdla`, `sinkhorn`, `inverse`, `pi:FILE`;
    `sizes`, as `pi` by the peers' numbers of examples; `push`, for push-sum on directed graphs; `module:function`, of
    the graph; none: what the graph's file says, or metropolis (docs/topologies.md)."""
    seed: int | None = None
    """The seed of a graph that is drawn at random, such as regular:3; none: the experiment's seed.  Give it to keep the
    graph while the seed changes.  `fedgossip topology show` and the function `resolve` draw with 1."""
    allow_disconnected: bool = False
    """Whether a graph that falls apart is run: its parts never agree.  For comparisons, and controls."""


MODES = tuple(dict.fromkeys(mode for method in METHODS.values() for mode in method.modes))
"""That some method has."""


class AlgorithmSection(msgspec.Struct, forbid_unknown_fields=True):
    """[algorithm]: how peers of a graph come to agree."""

    name: str = "dsgd"
    """`dsgd`; `push-sum` (directed graphs too); `window-doubling` (with the graph of that name); `gradient-tracking`
    (agrees on the optimum however unlike the data are, for two vectors a message); `d2` (so too, for one vector, with
    weights = "lazy" and no losses); `dsgdm`, `qg-dsgdm`, `decentlam` (momentum); `slowmo` (slow momentum
    round another); `diloco` (an outer step after long local work); `two-tap`; `push-diging` (gradient tracking on
    directed graphs); `choco` (only what has changed, in fewer bytes); `relaysgd` (on a tree: every model counts once in
    every mean, however unlike the data are); module:Class,
    your own ([algorithms.md](algorithms.md))."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """The algorithm's own, as { order = "cta" } of dsgd, { beta = 0.9 } of dsgdm, { slem = 0.9 } of two-tap,
    { momentum = "mixed" } of push-sum, { codec = "top-k:0.1" } of choco,
    { base = "qg-dsgdm", every = 12, beta = 0.7 } of slowmo, { lr = 0.7, beta = 0.9 } of diloco,
    which takes fragments too, or a codec and gamma."""
    mode: Annotated[str, OneOf(MODES)] = "sync"
    """sync: rounds that wait for the neighbours.  async: pairwise exchanges beside training; nobody waits."""
    partner: Annotated[str, OneOf(RULES)] = "uniform"
    """Whom an asynchronous peer meets next: uniform, any neighbour; matching, in turn; speed, who answers sooner more
    often."""
    exchanges: Annotated[int, Within(1, 1000)] = 1
    """Exchanges that an asynchronous peer begins per round of training."""
    combine: Annotated[str, OneOf(tuple(COMBINATIONS))] = "linear"
    """How a round's models are put together.  linear: the weighted sum.  Against peers that lie: clipped (what is far
    is scaled down), trimmed-mean, median, geometric-median, nna (the nearest alone); of these clipped alone uses the
    weights, and the mean of all peers moves ([algorithms.md](algorithms.md))."""
    combine_options: dict[str, Any] = msgspec.field(default_factory=dict)
    """{ f = 1 } of clipped, trimmed-mean and nna: how many neighbours may lie; { tau = 2.0 } of clipped: a length, or
    "adaptive", by f; { steps = 8 } of geometric-median."""
    deadline: Seconds = 30.0
    """The longest wait for neighbours' models in a round, in seconds; above the slowest peer's training time."""
    least_deadline: SecondsOr0 = 5.0
    """The shortest, in seconds: between the two the deadline follows the rounds that a peer has seen (eight times their
    median, and their spread)."""
    start_timeout: Seconds = 300.0
    """Seconds to wait for all neighbours before the first round."""
    private: bool = False
    """Peers learn the sum of their neighbours' models, and no model; dsgd in sync mode, 3 neighbours or more each
    (docs/private-gossip.md)."""
    bound: Annotated[float, Within(ABOVE_0)] = 64.0
    """Private: no weight of a model is larger, or the peer stops; a smaller bound rounds finer (bound / 2^29)."""


class AdversarySection(msgspec.Struct, forbid_unknown_fields=True):
    """[adversary]: peers of a graph that lie; scores and distances are then of the honest ones alone."""

    peers: list[Annotated[int, Within(0, MOST)]] = msgspec.field(default_factory=list)
    """Their ids; none: all are honest."""
    attack: Annotated[str, OneOf(tuple(ATTACKS))] = "sign-flip"
    """What they send in the place of their models: sign-flip, noise, label-flip, ipm, alie, dissensus
    ([algorithms.md](algorithms.md))."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """The attack's own: { scale = 0.5 } of noise, ipm and dissensus, { z = 1.5 } of alie."""
    knowledge: Annotated[str, OneOf(("neighbours", "all"))] = "neighbours"
    """Whose models of the round they have before they speak: their honest neighbours'; or, on stacked arrays alone,
    those of all honest peers."""


FORECAST_AUTO, FORECAST_NONE = "auto", "none"
FORECAST_FOLLOWED = "followed"
FORECAST_LEVELS = "probe", "shadow", FORECAST_FOLLOWED
"""How a run is forecast."""


class ForecastSection(msgspec.Struct, forbid_unknown_fields=True):
    """[forecast]: what is to be known of a synchronous gossip run before it begins (docs/numerics.md, section 7)."""

    level: Annotated[str, OneOf((FORECAST_AUTO, FORECAST_NONE, *FORECAST_LEVELS))] = FORECAST_AUTO
    """shadow: one training at the peers' mean; followed: that, and a third of a training more for each graph, with
    edges much nearer to each other; probe: three jobs a peer; none.  auto: `fedgossip run` makes a probe
    where that is the whole answer, as of quadratics, and nothing else does."""
    rounds: Annotated[int, Within(0, MOST)] = 0
    """Rounds that it is of, from the first on; 0: all.  A shadow of few costs as few trainings."""
    memory: Annotated[float, Within(ABOVE_0)] = 4.0
    """Gigabytes that the models of a shadow may take."""
    realised: bool = True
    """Whether a run in which messages or peers were lost is forecast again at its end, of the rounds as they were
    mixed: a second curve of the report, for as many trainings as a shadow."""


SERVED, MAPREDUCE, ASYNC = "parameter-server", "mapreduce", "async"
"""What parallel.method and parallel.server.staleness may be beside the collectives, and a number of rounds."""


class ServerSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel.server]: servers of the model, for parallel.method = "parameter-server" alone (docs/parallel.md)."""

    servers: Annotated[int, Within(1, SERVERS_MAX)] = 1
    """Their number; each has a part of the model."""
    virtual_nodes: Annotated[int, Within(1, SHARDS_MAX // SERVERS_MAX)] = 64
    """Points of each server on the circle of consistent hashing; more make their parts more alike."""
    replication: Annotated[int, Within(1, SERVERS_MAX)] = 1
    """Servers that have each part; from 2 on a manager says who takes the place of one that is gone."""
    staleness: int | str = 0
    """Rounds by which a worker may be ahead of the slowest; 0: a step per round, on the mean of all; "async": any."""
    placement: Annotated[str, OneOf(("ranges", "tensors"))] = "ranges"
    """What is not divided between servers: single elements, or whole tensors, as lars and lamb need them."""
    damp: bool = False
    """A push goes at the rate divided by 1 + the steps made since what it was computed from; not with staleness 0."""
    filters: list[str] = msgspec.field(default_factory=list)
    """Of a table's rows, what is not worth sending, one after the other: `key-cache`, `threshold:T`, `random-skip:P`,
    `kkt`, `kkt:T`, `module:function` (docs/parallel.md)."""

    pull_codec: str = ""
    """How servers give the model back in fewer bytes: `bf16`, `fp16`, `int8:BLOCK`; after the last round it comes
    whole; empty: as it is.  How gradients go up: parallel.codec."""


class OuterSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel.outer]: workers train alone by [train] in every round, and take an outer step along the mean of what
    that came to: DiLoCo (docs/outer.md)."""

    lr: Annotated[float, Within(0)] = 0.0
    """How far along: 0.7 is usual, 1 with beta = 0 is the mean of their models.  0: there is no outer step, and workers
    share every step."""
    beta: float = 0.9
    """The share of the last step that is kept, from 0 to below 1."""
    nesterov: bool = True
    """Look ahead."""
    delay: Annotated[int, Within(0, 1)] = 0
    """1: the mean of a round travels while the next one is trained, and counts at its end; nobody waits for links that
    take less time than the training."""
    fragments: Annotated[int, Within(1, FRAGMENTS_MAX)] = 1
    """The model is cut in so many fragments, of which one goes out in a round, each in its turn: with 4, and
    train.local_steps = 10, each travels every 40 steps, and a round sends a quarter of the bytes."""


class ParallelSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel]: workers that take one step on the mean of all their gradients in every round (docs/parallel.md)."""

    workers: Annotated[int, Within(1, WORKERS_MAX)]
    """Their number; all know each other."""
    method: Annotated[str, OneOf((*COLLECTIVES, MAPREDUCE, SERVED, HOGWILD))] = "ring"
    """How the mean comes to all; mapreduce: by a server, which takes the step; hogwild: nothing is sent, the workers
    are processes of one participant, which step on one model in its memory and wait for nobody."""
    descent: Annotated[str, OneOf(("", *DESCENTS))] = ""
    """What takes the step, with train.lr; empty: train.optimizer."""
    l1: Annotated[float, Within(0)] = 0.0
    """ftrl: the sum of gradients below which a weight stays 0; more makes more weights 0."""
    accumulate: Annotated[int, Within(1, MOST)] = 1
    """Batches of train.batch_size that a worker's gradient is the mean of; train.local_steps does not count here."""
    backups: Annotated[int, Within(0, WORKERS_MAX - 1)] = 0
    """mapreduce: so many workers of a round, the last to answer, are not waited for."""
    bucket: Annotated[int | None, Within(0, MOST)] = None
    """Bytes of a stretch of the gradient that is summed by itself; none: 1 MiB per worker; 0: all at once."""
    codec: str = ""
    """Gradients in fewer bytes: `bf16`, `fp16`, `int8:BLOCK`, `top-k:SHARE`, `random-k:SHARE`, `dgc:SHARE`,
    `qsgd:LEVELS`, `terngrad`, `sign`, `powersgd:RANK`; what is left out is sent later.  Of collectives random-k and
    powersgd go by every one, the others by ring and all-to-all; servers take all but powersgd; empty: gradients as they
    are (docs/codecs.md)."""
    overlap: bool = False
    """Whether buckets leave while the rest of the gradient is computed, last layers first; the bits are the same."""
    deadline: Seconds = 30.0
    """The longest wait for a round, in seconds; above the slowest worker's gradient."""
    least_deadline: SecondsOr0 = 5.0
    """The shortest, in seconds: between the two the deadline follows the rounds that were seen."""
    start_timeout: Seconds = 300.0
    """Seconds to wait for all workers before the first round, and for enough of them, or for one, to be back later."""
    outer: OuterSection = msgspec.field(default_factory=OuterSection)
    """Local training, and an outer step along its mean, in place of a step on the mean gradient; by a collective."""

    @property
    def local(self) -> bool:
        """Whether what is brought to a round is what training came to, and no gradient."""
        return self.outer.lr > 0 or self.races

    @property
    def races(self) -> bool:
        """Whether the workers are processes of one participant."""
        return self.method == HOGWILD

    @property
    def participants(self) -> int:
        """Their number as others count them."""
        return 1 if self.races else self.workers

    @property
    def collective(self) -> str:
        """By which of the collectives participants add; one alone has nothing to do in any."""
        return "ring" if self.races else self.method

    server: ServerSection = msgspec.field(default_factory=ServerSection)
    """Servers that have the model, where workers do not reduce it among themselves."""


class EvalSection(msgspec.Struct, forbid_unknown_fields=True):
    """[eval]: when models are measured."""

    every: Annotated[int, Within(1, MOST)] = 5
    """Rounds between two evaluations; the last round is always evaluated."""
    on: Annotated[str, OneOf(("test", VALIDATION))] = "test"
    """What models are measured on: the test set, or the examples of data.validation, with the test set left unread.
    The records call it the test set in both cases; the summary says which it was."""
    watch: bool | None = None
    """Whether a simulation measures the disagreement in every round, which takes longer than mixing; false: in the
    evaluated ones alone.  Left out: where all models together have few numbers, or the run has a forecast."""


Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]


class DeviceSection(msgspec.Struct, forbid_unknown_fields=True):
    """[[simulation.classes]]: nodes whose links or processors are not as the rest; what is left out is as the rest."""

    nodes: str
    """Node ids and ranges of them: "0-3, 7"; a coordinator is the last."""
    bandwidth: Positive | None = None
    """Bytes per second that such a node can send, over all its links."""
    downlink: Positive | None = None
    """Bytes per second that it can receive."""
    latency: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """Seconds of its links, one way."""
    slower: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    """Their training takes so many times as long."""


TRACKERS = ("csv", "tensorboard", "mlflow", "wandb")
"""Where a record can go; a colon and a place may follow."""


class TrackSection(msgspec.Struct, forbid_unknown_fields=True):
    """[track]: where else the record of a whole run goes while it is written."""

    to: list[str] = msgspec.field(default_factory=list)
    """`csv`, `tensorboard`, `mlflow:URI`, `wandb:PROJECT` (docs/trackers.md)."""


class SimulationSection(msgspec.Struct, forbid_unknown_fields=True):
    """[simulation]: the virtual network and devices of `--on sim`; real runs ignore it."""

    latency: SecondsOr0 = 0.005
    """Seconds of a virtual link, one way."""
    jitter: SecondsOr0 = 0.0
    """Seconds by which that varies."""
    bandwidth: Rate = None
    """Bytes per second that a peer can send, over all its links; none: any number."""
    downlink: Rate = None
    """Bytes per second that a peer can receive, over all its links: a server that hears many waits for all of them;
    none: any number come in at once."""
    detection: SecondsOr0 = 1.0
    """Seconds of silence after which a peer is told that a link is lost; a shorter cut only delays what is sent."""
    training: SecondsOr0 = 0.05
    """Seconds of a round's training."""
    per_example: SecondsOr0Given = None
    """Seconds of training per example that it goes over, in place of `training`: a smaller batch is sooner done."""
    summing: SecondsOr0 = 0.0
    """Seconds per element that a participant adds up: in collectives, servers, coordinators, synchronous gossip."""
    training_jitter: Annotated[float, Within(0, 1e6)] = 0.0
    """The share by which that varies."""
    speed_spread: Annotated[float, Within(0, 10)] = 0.0
    """Speeds of peers are exp(N(0, spread²))."""
    classes: list[DeviceSection] = msgspec.field(default_factory=list)
    """Nodes whose links or processors are not as the rest: { nodes = "0-3, 7", bandwidth = 1e6, slower = 4.0 }."""


TASKS = (AS_THE_DATA, *KINDS, CONVEX, "averaging", "quadratic", SPARSE, LOOP, *SUMS)


class TaskSection(msgspec.Struct, forbid_unknown_fields=True):
    """[task]: what is learned, and what it is judged by; or a problem with a known answer (pure numpy)."""

    kind: Annotated[str, OneOf(TASKS)] = AS_THE_DATA
    """learning: what the source holds; convex: a linear model of it that can be certified, without torch
    (docs/convex.md); averaging, quadratic: problems with a known answer, without torch;
    sparse-logistic: drawn clicks, of which parameter servers hold the rows and all others whole tables;
    loop: a training loop of your own (docs/own-loop.md);
    statistics, evaluation: what `fedgossip data agree` and `fedgossip evaluate` make of an experiment."""
    loss: str = ""
    """`cross-entropy`, `mse`, `mae`, `huber`, `bce`; `module:function`, of (outputs, labels), the mean over a batch;
    empty: the kind's own, cross-entropy, mse or bce (docs/tasks.md).  Convex: `hinge`, `logistic`, `squares`,
    `lasso`."""
    lam: Annotated[float, Within(ABOVE_0)] = 1e-3
    """Convex: weight of lam/2 |w|^2 beside the mean loss; smaller fits closer, and takes more rounds."""
    smooth: Annotated[float, Within(ABOVE_0)] = 0.1
    """Lasso: beside lam |w|_1 stands lam smooth/2 |w|^2, without which nothing could be certified; smaller is nearer
    to the lasso, and takes more rounds."""
    positive: str = ""
    """Convex, hinge and logistic: the class that is told from all others, where the source has more than two."""
    metrics: list[str] = msgspec.field(default_factory=list)
    """`accuracy`, `f1`, `auroc`, `rmse`, `mae`, `r2`, `loss`, `gap`; `module:function?better=lower`, of arrays
    (outputs, labels); the first is the score of reports.  Empty: the kind's own (docs/tasks.md)."""
    dim: Annotated[int, Within(1, MOST)] = 1
    """Averaging, quadratic: numbers in a vector.  Sparse-logistic: features, each a row of the model."""
    dtype: Annotated[str, OneOf(("float32", "float64"))] = "float32"
    """Averaging, quadratic: their type; learning is always float32."""
    eta: float = 0.1
    """Quadratic: step size."""
    sigma: float = 0.0
    """Quadratic: standard deviation of the gradient noise per coordinate."""
    placement: str = "smooth"
    """Quadratic: how the targets b_i lie on the node ids: `smooth`, `alternating`, `random`."""
    examples: Annotated[int, Within(1, 10**7)] = 1000
    """Sparse-logistic: examples of each worker."""
    nonzeros: Annotated[int, Within(1, 10**4)] = 20
    """Sparse-logistic: features of an example."""


MESHLESS = {"mesh": dataclasses.asdict(MeshSettings()), "microbatches": 4}

SINCE: dict[str, dict[str, Any]] = {
    "task": {"loss": "", "metrics": [], "examples": 1000, "nonzeros": 20, "lam": 1e-3, "positive": "", "smooth": 0.1},
    "train": {"accumulate": 1, "scaling": "none", "base_batch": 256, "count_lost": False, **MESHLESS},
}
"""Keys that are left out where they are as usual, for they came later than others."""


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """What every experiment has, whatever kind of run it describes; see each section."""

    kind: ClassVar[str] = ""
    """The section that this kind of run alone has: a field of a class below, by which `kinds` knows it."""

    seed: int = seeds.USUAL
    """Every random number of the run follows from it."""
    rounds: Annotated[int, Within(1, MOST)] = 60
    """Rounds of training and averaging.  "endless", of loops of your own on a graph: as long as they go on."""
    name: str = ""
    """For the run directory and the report; the graph's name where empty."""
    data: DataSection = msgspec.field(default_factory=DataSection)
    model: ModelSection = msgspec.field(default_factory=ModelSection)
    train: TrainSettings = msgspec.field(default_factory=TrainSettings)
    eval: EvalSection = msgspec.field(default_factory=EvalSection)
    track: TrackSection = msgspec.field(default_factory=TrackSection)
    simulation: SimulationSection = msgspec.field(default_factory=SimulationSection)
    task: TaskSection = msgspec.field(default_factory=TaskSection)
    faults: list[Fault] = msgspec.field(default_factory=list)
    """[[faults]]: what goes wrong, when, and to whom; in the simulator and in real processes of one machine."""

    @property
    def learns(self) -> bool:
        """Whether something is learned from data; else it is a problem with a known answer."""
        return self.task.kind not in ("averaging", "quadratic", SPARSE, LOOP, *SUMS)

    @property
    def loops(self) -> bool:
        """Whether training loops of the user's own take part."""
        return self.task.kind == LOOP

    @property
    def endless(self) -> bool:
        """Whether it goes on as long as loops of the user's own do."""
        return self.rounds == ENDLESS and self.loops and self.kind == "topology"

    @property
    def objective(self) -> Objective:
        """What is learned from data.  Raises ConfigError for a loss or a metric that is not of the kind."""
        return objective_of(self.task.kind, self.task.loss, self.task.metrics, self.data.source)

    @property
    def budget(self) -> PrivacySection | None:
        """What may be spent of privacy; None where there is no such limit."""
        return None

    @property
    def named_code(self) -> Sequence[str]:
        """Values that may name a user's own function or class, whose source all must have alike."""
        if not self.learns:
            return []
        return [self.model.source, self.data.source, str(self.data.test), *self.objective.functions]

    @property
    def score(self) -> Score:
        """What the run is judged by."""
        if self.loops:
            return score_of_loops(self.task.metrics[0]) if self.task.metrics else ACCURACY
        if self.task.kind == SPARSE:
            return ACCURACY
        return self.objective.score if self.learns else NO_SCORE

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved experiment as plain data, without keys that are None (TOML has no null)."""
        content = msgspec.to_builtins(self)
        content["train"] = dataclasses.asdict(self.train)  # msgspec leaves out the fields that it did not set itself
        for section, since in SINCE.items():  # runs from before them have the same hash
            for key, usual in since.items():
                if content[section][key] == usual:
                    del content[section][key]
        for key in self.data.unset:
            del content["data"][key]
        if self.eval.on != VALIDATION:
            del content["eval"]["on"]
        if server := content.get("parallel", {}).get("server"):
            for key in ("filters", "pull_codec"):
                server.pop(key) if not server[key] else None
            if content["parallel"]["outer"] == msgspec.to_builtins(OuterSection()):
                del content["parallel"]["outer"]
            for key in ("l1", "codec"):
                content["parallel"].pop(key) if not content["parallel"][key] else None
        if not self.track.to:
            del content["track"]
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
    def named_code(self) -> Sequence[str]:
        return [*super().named_code, self.algorithm.name, self.topology.graph, self.topology.weights or ""]

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
