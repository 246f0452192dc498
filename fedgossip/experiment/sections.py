"""The experiment file's sections, typed: what may be written, what it means, and what stands there by default."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from fedgossip import seeds
from fedgossip.faults import Fault
from fedgossip.learning.objectives import LOOP, Objective, objective_of, score_of_loops
from fedgossip.learning.settings import TrainSettings
from fedgossip.scores import ACCURACY, NO_SCORE, Score

GIVEN = "given"
"""Stands for a graph or an algorithm that is an object, given in Python."""


ENDLESS = 2**31 - 1
"""Rounds of a run that goes on as long as the loops of its users do."""


class DataSection(msgspec.Struct, forbid_unknown_fields=True):
    """[data]: which examples there are, and who has which."""

    source: str = "digits"
    """digits | breast-cancer | diabetes | mnist | fashion-mnist | csv:PATH?label=COLUMN | npz:PATH | text:PATH |
    parquet:PATH?label=COLUMN | images:FOLDER | cifar10:PATH | femnist:PATH | huggingface:FOLDER?label=COLUMN |
    module:function; with {peer} in it, a file of each peer's own, see learning/per_peer.py"""
    partition: dict[str, Any] = msgspec.field(default_factory=lambda: {"kind": "iid"})
    """kind = iid | dirichlet | shard | pathological | size-skewed | natural | own, and that kind's own keys."""
    test: float | str = 0.2
    """The common test set: a share of the examples, between 0 and 1, or "own", the one that the source brings,
    or a source."""
    local_test: float = 0.0
    """The share of its examples that every client keeps to test on; the model that it is sent is tested there.  The
    coordinator is told the mean of all, but where single records are hidden (coordinator.privacy)."""


class ModelSection(msgspec.Struct, forbid_unknown_fields=True):
    """[model]"""

    source: str = "softmax"
    """softmax | mlp:IN-HIDDEN-OUT | cnn:small | cnn:small-bn | cnn:CHANNELS-CHANNELS-HIDDEN | chars:WIDTH |
    module:function"""


class TopologySection(msgspec.Struct, forbid_unknown_fields=True):
    """[topology]"""

    graph: str
    """A family (ring, torus:4x4, regular:3, ...), a name of `fedgossip topology list`, a path, or module:function, of n
    and the seed."""
    n: int | None = None
    """Number of peers, for families that do not fix it."""
    weights: str | None = None
    """metropolis | max-degree | uniform | lazy | best-constant | module:function, of the graph; without it the file's
    rule, or metropolis."""
    seed: int | None = None
    """Of a graph that is drawn at random; without it the experiment's seed."""


class AlgorithmSection(msgspec.Struct, forbid_unknown_fields=True):
    """[algorithm]"""

    name: str = "dsgd"
    """dsgd | push-sum (directed graphs too) | window-doubling (with the graph of that name) | module:Class"""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """The algorithm's own."""
    mode: str = "sync"
    """sync: rounds that wait for the neighbours.  async: pairwise exchanges beside training; nobody waits."""
    partner: str = "uniform"
    """Whom an asynchronous peer meets next: uniform | matching (in turn) | speed (who answers sooner, more often)."""
    exchanges: int = 1
    """That an asynchronous peer begins per round of training."""
    deadline: float = 30.0
    """The longest wait for neighbours' models in a round, in seconds; above the slowest peer's training time."""
    least_deadline: float = 5.0
    """The shortest: between the two the deadline follows the rounds that a peer has seen."""
    start_timeout: float = 300.0
    """Seconds to wait for all neighbours before the first round."""
    private: bool = False
    """Peers learn the sum of their neighbours' models, and no model; dsgd in sync mode, 3 neighbours or more each."""
    bound: float = 64.0
    """Private: no weight of a model is larger, or the peer stops; a smaller bound rounds finer (bound / 2^29)."""


class SecureSection(msgspec.Struct, forbid_unknown_fields=True):
    """[coordinator.secure]: the coordinator sees the sum of a round's contributions, and none of them."""

    on: bool = True
    """false: the coordinator sees every client's update.  The robust algorithms and fedbuff need that."""
    threshold: int | None = None
    """Answers that a round needs to its end, of each share group; without it the smallest that clients accept, more
    than two thirds."""
    neighbours: int | None = None
    """Clients that each client shares masks with, an even number, where more than 64 are invited."""
    bound: float = 1.0
    """No element of what a client sends is larger: it is cut to this.  Smaller rounds finer."""
    bits: int | None = None
    """Of an element, rounded at random; without it 24 for up to 100 clients, 20 above."""
    weight_max: int = 10_000
    """The most examples that a client may have; larger rounds coarser."""
    score_max: float = 64.0
    """No loss of a client, and no score that is not between 0 and 1, counts as more; larger rounds coarser."""


class PrivacySection(msgspec.Struct, forbid_unknown_fields=True):
    """[coordinator.privacy]: differential privacy, of a record at its site or of a whole client."""

    unit: str = "none"
    """record | client | none"""
    clip: float = 1.0
    """The longest gradient of one example (record), or update of one client (client)."""
    noise: float = 1.0
    """Standard deviation of the noise, in units of clip; more protects better and learns worse."""
    delta: float = 1e-5
    """The chance that the promise does not hold; well below one in the number of units."""
    max_epsilon: float = 8.0
    """The round that would cross it is refused."""
    test_noise: float = 0.0
    """record: standard deviation of the noise on how many of the examples kept for tests (data.local_test) are right,
    which each client then tells in evaluated rounds, out of the same budget; 0: it tells nothing of them."""
    adaptive: bool = False
    """client: let the clip follow the median length of the updates; begins with clip."""


class CoordinatorSection(msgspec.Struct, forbid_unknown_fields=True):
    """[coordinator]: a federated run, in place of [topology]."""

    clients: int
    """All that may ever take part: ids 0 to clients - 1; the coordinator is the next."""
    participation: float = 1.0
    """The share of the clients that is wanted in a round."""
    cohort: int | None = None
    """Their number, in place of participation."""
    over_selection: float = 1.0
    """So many times as many are invited; the round ends with the first that are wanted."""
    sampling: str = "uniform"
    """uniform | size (clients with more examples more often) | poisson (each alone: cohorts vary in size)"""
    min_clients: int | None = None
    """A round of fewer is abandoned.  Without it 5, or the cohort where that is smaller; 1 without a secure sum."""
    algorithm: str = "fedavg"
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """The algorithm's own, such as { mu = 0.1 } or { lr = 0.01 }."""
    deadline: float = 300.0
    """The longest wait in one phase of a round, in seconds; above the slowest client's training."""
    least_deadline: float = 5.0
    """The shortest: between the two the deadline follows the rounds that were seen."""
    start_timeout: float = 300.0
    """Seconds to wait for all clients before the first round, and for enough of them whenever too few are left."""
    return_timeout: float = 10.0
    """Seconds that a coordinator that is started again waits for all, before it goes on with those that are back."""
    silence: float = 600.0
    """Seconds without a link after which a client gives the coordinator up."""
    at_once: int | None = None
    """fedbuff: clients that train at any time; without it twice the goal."""
    goal: int | None = None
    """fedbuff: answers per step; without it 10, or half of the clients where that is fewer."""
    most_stale: int = 20
    """fedbuff: steps since a client was invited; an older answer is dropped."""
    secure: SecureSection = msgspec.field(default_factory=SecureSection)
    privacy: PrivacySection = msgspec.field(default_factory=PrivacySection)


class ParallelSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel]: workers that take one step on the mean of all their gradients in every round."""

    workers: int
    """Their number; all know each other."""
    method: str = "ring"
    """How the mean comes to all: ring | ring-naive | halving-doubling | recursive-doubling | tree | star |
    all-to-all"""
    descent: str = ""
    """What takes the step, with train.lr: sgd | adam | adamw | adagrad | lars | lamb; "": train.optimizer."""
    accumulate: int = 1
    """Batches of train.batch_size that a worker's gradient is the mean of."""
    bucket: int | None = None
    """Bytes of a stretch that is summed by itself; without it 1 MiB per worker; 0: all at once."""
    deadline: float = 30.0
    """The longest wait for a round, in seconds; above the slowest worker's gradient."""
    least_deadline: float = 5.0
    """The shortest: between the two the deadline follows the rounds that were seen."""
    start_timeout: float = 300.0
    """Seconds to wait for all workers before the first round."""


class EvalSection(msgspec.Struct, forbid_unknown_fields=True):
    """[eval]"""

    every: int = 5
    """Rounds between two evaluations; the last round is always evaluated."""


Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]


class DeviceSection(msgspec.Struct, forbid_unknown_fields=True):
    """[[simulation.classes]]: nodes whose links or processors are not as the rest; what is left out is as the rest."""

    nodes: str
    """Node ids and ranges of them: "0-3, 7"; a coordinator is the last."""
    bandwidth: Positive | None = None
    downlink: Positive | None = None
    latency: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    slower: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    """Their training takes so many times as long."""


TRACKERS = ("csv", "tensorboard", "mlflow", "wandb")
"""Where a record can go; a colon and a place may follow."""


class TrackSection(msgspec.Struct, forbid_unknown_fields=True):
    """[track]: where else the record of a whole run goes while it is written."""

    to: list[str] = msgspec.field(default_factory=list)
    """csv | tensorboard | mlflow:URI | wandb:PROJECT"""


class SimulationSection(msgspec.Struct, forbid_unknown_fields=True):
    """[simulation]: the virtual network and devices of `--on sim`; real runs ignore it."""

    latency: float = 0.005
    jitter: float = 0.0
    bandwidth: float | None = None
    downlink: float | None = None
    """Bytes per second that a peer can receive, over all its links; without it any number come in at once."""
    detection: float = 1.0
    """Seconds of silence after which a peer is told that a link is lost; a shorter cut only delays what is sent."""
    training: float = 0.05
    training_jitter: float = 0.0
    speed_spread: float = 0.0
    classes: list[DeviceSection] = msgspec.field(default_factory=list)


class TaskSection(msgspec.Struct, forbid_unknown_fields=True):
    """[task]: what is learned, and what it is judged by; or a problem with a known answer (pure numpy)."""

    kind: str = "learning"
    """classification | regression | multi-label | language; learning: what the source holds; averaging | quadratic;
    loop: a training loop of the user's own, see fedgossip.join"""
    loss: str = ""
    """cross-entropy | mse | mae | huber | bce | module:function, of (outputs, labels), the mean over a batch; without
    it the kind's own: cross-entropy, mse or bce"""
    metrics: list[str] = msgspec.field(default_factory=list)
    """accuracy | f1 | auroc | rmse | mae | r2 | loss | module:function?better=lower&unit=WORDS, of arrays (outputs,
    labels); the first is the score of reports.  Without it the kind's own: see learning/objectives.py"""
    dim: int = 1
    dtype: str = "float32"
    """float32 | float64; learning is always float32."""
    eta: float = 0.1
    """Quadratic: step size."""
    sigma: float = 0.0
    """Quadratic: standard deviation of the gradient noise per coordinate."""
    placement: str = "smooth"
    """Quadratic: how the targets b_i lie on the node ids: smooth | alternating | random"""


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """What every experiment has, whatever kind of run it describes; see each section."""

    kind: ClassVar[str] = ""
    """The section that this kind of run alone has: a field of a class below, by which `kinds` knows it."""

    seed: int = seeds.USUAL
    """Every random number of the run follows from it."""
    rounds: int = 60
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
        return self.task.kind not in ("averaging", "quadratic", LOOP)

    @property
    def loops(self) -> bool:
        """Whether training loops of the user's own take part."""
        return self.task.kind == LOOP

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
        return self.objective.score if self.learns else NO_SCORE

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved experiment as plain data, without keys that are None (TOML has no null)."""
        content = msgspec.to_builtins(self)
        content["train"] = dataclasses.asdict(self.train)  # msgspec leaves out the fields that it did not set itself
        for key in ("loss", "metrics"):  # runs from before them have the same hash
            if not content["task"][key]:
                del content["task"][key]
        if not self.track.to:
            del content["track"]
        content = {self.kind: content.pop(self.kind), **content}
        return typing.cast("dict[str, Any]", _without_none(content))


class GossipExperiment(Experiment, forbid_unknown_fields=True, kw_only=True):
    """Peers of a graph."""

    kind: ClassVar[str] = "topology"

    topology: TopologySection
    algorithm: AlgorithmSection = msgspec.field(default_factory=AlgorithmSection)

    @property
    def named_code(self) -> Sequence[str]:
        return [*super().named_code, self.algorithm.name, self.topology.graph, self.topology.weights or ""]


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
