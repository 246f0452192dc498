"""The sections that not every run has: those of one kind, of simulations, and of a comparison.

gossip      [topology], [algorithm], [adversary], [forecast]
federated   [coordinator], and in it [secure] and [privacy]
parallel    [parallel], and in it [server] and [outer]
simulated   [simulation], and in it [[classes]] and [inside]
several     [compare]
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from fedgossip.algorithms.codecs.low_rank import LOW_RANK
from fedgossip.algorithms.codecs.names import CODECS, FORMS
from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.algorithms.descent.methods import DESCENTS
from fedgossip.algorithms.descent.row_filters import FILTERS
from fedgossip.algorithms.federated.names import ALGORITHMS
from fedgossip.algorithms.gossip.fragments import FRAGMENTS_MAX
from fedgossip.algorithms.gossip.names import METHODS
from fedgossip.algorithms.robust.attacks import ATTACKS
from fedgossip.algorithms.robust.robust_mixing import COMBINATIONS
from fedgossip.base.limits import ABOVE_0, LONGEST_SECONDS, MOST, KnownNames, OneOf, Seconds, SecondsOr0, Within
from fedgossip.core.messages import SERVERS_MAX, SHARDS_MAX, WORKERS_MAX
from fedgossip.data.custom import NamesCode
from fedgossip.learning.personal.methods import PERSONAL
from fedgossip.learning.settings import HOGWILD
from fedgossip.protocols.gossip.pairing import RULES
from fedgossip.topology import family_names, rule_names, schedule_names, weighted_names

GRAPH_CODE = NamesCode(lambda word: word.lower() in (*family_names(), *weighted_names(), *schedule_names()))
"""Of topology.graph: a word that is not built in names a user's function."""

WEIGHTS_CODE = NamesCode(("pi", *rule_names()).__contains__)
"""Of topology.weights."""


class TopologySection(msgspec.Struct, forbid_unknown_fields=True):
    """[topology]: peers of a graph."""

    graph: Annotated[str, GRAPH_CODE]
    """A family (ring, torus:4x4, regular:3, ...), a schedule (base:1, matcha:0.5:torus, ...), a ready graph of
    `fedgossip topology list`, the path of a file, or module:function, of n and the seed
    (docs/together/topologies.md)."""
    n: int | None = None
    """Number of peers, where the graph leaves it open."""
    weights: Annotated[str | None, WEIGHTS_CODE] = None
    """`metropolis`, `max-degree`, `uniform`, `lazy`, `best-constant`, `fmmc`, `fdla`, `sinkhorn`, `inverse`, `pi:FILE`;
    `sizes`, as `pi` by the peers' numbers of examples; `push`, for push-sum on directed graphs; `module:function`, of
    the graph; none: the weights of the graph's file, or metropolis (docs/together/topologies.md)."""
    seed: int | None = None
    """The seed of a graph that is drawn at random, such as regular:3; none: the experiment's seed.  Give it to keep the
    graph while the seed changes.  `fedgossip topology show` and the function `resolve` draw with 1."""
    allow_disconnected: bool = False
    """Whether a graph that falls apart is run: its parts never agree.  For comparisons, and controls."""


MODES = tuple(dict.fromkeys(mode for method in METHODS.values() for mode in method.modes))
"""That some method has."""


ALGORITHM_CODE = NamesCode()
"""Of algorithm.name: no built-in one has a colon."""

CODEC_CODE = NamesCode(CODECS.__contains__)
AVAILABLE_CODE = NamesCode(("day", "trace").__contains__)

BY_LOSSES = ("power-of-choice", "oort")
"""Sampling by reported losses."""

Count = Annotated[int | None, Within(1, MOST)]


WEIGHT_MAX = 10_000
"""Maximum number of examples of a client in a secure sum, by default."""


class SecureSection(msgspec.Struct, forbid_unknown_fields=True):
    """[coordinator.secure]: the coordinator sees the sum of a round's contributions, and none of them."""

    on: bool = True
    """`false`: the coordinator sees every client's update, as the run's first lines warn.  The robust algorithms and
    fedbuff require it."""
    threshold: Annotated[int | None, Within(1, 1000)] = None
    """Answers that a round needs to its end, of each share group; none: the smallest that clients accept, more than two
    thirds."""
    neighbours: Annotated[int | None, Within(2, 200)] = None
    """Clients that each client shares masks with, an even number, where more than 64 are invited."""
    bound: Annotated[float, Within(ABOVE_0)] = 1.0
    """No element of an update is larger: it is cut to this.  Smaller rounds finer.  Running statistics are not cut."""
    bits: Annotated[int | None, Within(2, 31)] = None
    """Bits of an element, rounded at random; none: 24 for up to 100 clients, 20 above."""
    weight_max: Annotated[int | None, Within(1, MOST)] = None
    """Maximum number of examples of a client: one with more is refused before it trains; larger values round coarser.
    none: 10,000; where the largest client is known from data.partition, the next sufficient one of 20,000, 50,000,
    100,000, ..."""
    score_max: Annotated[float, Within(ABOVE_0, 1e12)] = 64.0
    """No loss of a client, and no score that is not between 0 and 1 (rmse, mae, r2), counts as more; larger rounds
    coarser."""


class PrivacySection(msgspec.Struct, forbid_unknown_fields=True):
    """[coordinator.privacy]: differential privacy, of a record at its site or of a whole client."""

    unit: Annotated[str, OneOf(("none", "record", "client"))] = "none"
    """The unit that the budget protects."""
    clip: Annotated[float, Within(ABOVE_0)] = 1.0
    """The longest gradient of one example (record), or update of one client (client)."""
    noise: Annotated[float, Within(ABOVE_0, 1e6)] = 1.0
    """Standard deviation of the noise, in units of clip; more protects better and learns worse."""
    delta: Annotated[float, Within(ABOVE_0, 0.5)] = 1e-5
    """The chance that the promise does not hold; well below one in the number of units."""
    max_epsilon: Annotated[float, Within(ABOVE_0)] = 8.0
    """The round that would cross it is refused."""
    test_noise: Annotated[float, Within(0, 1e6)] = 0.0
    """Of records: standard deviation of the noise on the number of right answers on held-out examples
    (data.local_test), which each client reports in evaluated rounds, out of the same budget; 0: not reported."""
    adaptive: bool = False
    """Of clients: the clip follows the median length of the updates; it begins with clip."""


class TierSection(msgspec.Struct, forbid_unknown_fields=True):
    """[[coordinator.tiers]]: a tier of coordinators, the first one of clients, the last one of the root alone."""

    clients: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    """Participants of the tier below that each coordinator of this tier has, in the order of their ids."""
    groups: list[str] = msgspec.field(default_factory=list)
    """In place of `clients`: the participants of each coordinator, numbered in their tier: ["0-4", "5, 6, 7"]."""
    secure: bool = True
    """`false`: a coordinator of this tier sees what each of its participants sends, as the run's first lines warn: the
    sum of each coordinator below, or each client's update.  A tier of two needs it."""


class CoordinatorSection(msgspec.Struct, forbid_unknown_fields=True):
    """[coordinator]: a federated run, in place of [topology] (docs/together/coordinator.md)."""

    clients: Annotated[int, Within(1, 1_000_000)]
    """All that may ever take part: ids 0 to clients - 1; the coordinator is the next."""
    participation: Annotated[float, Within(ABOVE_0, 1)] = 1.0
    """The share of the clients that is wanted in a round."""
    cohort: Count = None
    """Their number, in place of participation."""
    over_selection: Annotated[float, Within(1, 100)] = 1.0
    """So many times as many are invited; the round ends with the first that are wanted."""
    sampling: Annotated[str, NamesCode(), OneOf(("uniform", "size", "poisson", *BY_LOSSES), own=True)] = "uniform"
    """Sampling of the cohort: size, clients with more examples more often; poisson, each client independently: cohorts
    vary in size, so not with a secure sum; power-of-choice and oort, by the losses that clients reported last,
    which the coordinator has to see; module:Class, your own."""
    candidates: Count = None
    """power-of-choice: number of clients of which those with the greatest losses are invited; none: twice as many."""
    available: Annotated[str | None, AVAILABLE_CODE] = None
    """Clients that can be invited to a round: `day:0.4?rounds=24`, each for 0.4 of every 24 rounds, from a place drawn
    for it; `trace:FILE.csv?round=T`, a table of client, start and end, where T units of the table are a round;
    module:function of (client, round), your own; none: all.  A secure sum is abandoned in rounds with fewer than it
    would invite."""
    min_clients: Count = None
    """A round of fewer is abandoned; none: 5, or the cohort where that is smaller; 1 without a secure sum.  With tiers
    it holds in each leaf: one with fewer clients contributes nothing to the round."""
    algorithm: Annotated[str, NamesCode(), KnownNames(dict.fromkeys(ALGORITHMS, ""))] = "fedavg"
    """The rule, or `fedbuff`, which averages the first updates to arrive; `cocoa` is for task.kind = "convex"
    (docs/use/convex.md).  Robust, without a secure sum: `median`, `trimmed-mean`, `krum`, `multi-krum`,
    `geometric-median`, `clipped-mean`.  module:function, rules of your own (docs/together/coordinator.md)."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """The algorithm's own, such as { mu = 0.1 } or { lr = 0.01 }."""
    personal: Annotated[str | None, KnownNames(PERSONAL)] = None
    """A model of its own at each client, beside the shared one: the method, with options behind a question mark,
    `ditto?lambda=0.1` (docs/use/personal.md)."""
    codec: Annotated[str, CODEC_CODE, KnownNames({form: "" for form in FORMS if not form.startswith("dgc")})] = ""
    """Codec of uploaded updates; a client sends the remainder later.  With a secure sum random-k alone; module:Class,
    your own; empty: uncoded (docs/together/codecs.md)."""
    deadline: Seconds = 300.0
    """The longest wait in one phase of a round, in seconds; above the slowest client's training."""
    least_deadline: Annotated[float, Within(0, LONGEST_SECONDS)] = 5.0
    """The shortest, in seconds: between the two the deadline follows the rounds that were seen."""
    start_timeout: Seconds = 300.0
    """Seconds to wait for all clients before the first round, and for enough of them whenever too few are left."""
    return_timeout: Annotated[float, Within(0, LONGEST_SECONDS)] = 10.0
    """Seconds that a restarted coordinator waits for all clients, before it continues with those present."""
    silence: Seconds = 600.0
    """Seconds without a link after which a client gives the coordinator up."""
    at_once: Count = None
    """fedbuff: clients that train at any time; none: twice the goal."""
    goal: Count = None
    """fedbuff: answers per step; none: 10, or half of the clients where that is fewer."""
    most_stale: Annotated[int, Within(0, MOST)] = 20
    """fedbuff: steps since a client was invited; an older answer is dropped."""
    tiers: list[TierSection] = msgspec.field(default_factory=list)
    """Coordinators between the clients and the root, from the clients upwards: [{ clients = 8 }, { clients = 4 }] is 4
    leaf coordinators of 8 clients each; the sizes multiply to `clients`.  Empty: one coordinator of all."""
    secure: SecureSection = msgspec.field(default_factory=SecureSection)
    privacy: PrivacySection = msgspec.field(default_factory=PrivacySection)


class AlgorithmSection(msgspec.Struct, forbid_unknown_fields=True):
    """[algorithm]: the consensus method of the peers."""

    name: Annotated[str, ALGORITHM_CODE, KnownNames({name: one.what for name, one in METHODS.items()})] = "dsgd"
    """The method; module:Class, your own (docs/together/algorithms.md)."""
    options: Annotated[dict[str, Any], CODEC_CODE] = msgspec.field(default_factory=dict)
    """The algorithm's own, as { order = "cta" } of dsgd, { beta = 0.9 } of dsgdm, { slem = 0.9 } of two-tap,
    { momentum = "mixed" } of push-sum, { codec = "top-k:0.1" } of choco, or module:Class,
    { base = "qg-dsgdm", every = 12, beta = 0.7 } of slowmo, { lr = 0.7, beta = 0.9 } of diloco,
    which takes fragments too, or a codec and gamma."""
    personal: Annotated[str | None, KnownNames(PERSONAL)] = None
    """A model of its own at each peer, beside the mixed one: the method, with options behind a question mark,
    `ditto?lambda=0.1` (docs/use/personal.md)."""
    mode: Annotated[str, OneOf(MODES)] = "sync"
    """sync: rounds that wait for the neighbours.  async: pairwise exchanges beside training, without waiting."""
    partner: Annotated[str, OneOf(RULES)] = "uniform"
    """Next partner of an asynchronous peer: uniform, any neighbour; matching, in turn; speed, quicker neighbours more
    often."""
    exchanges: Annotated[int, Within(1, 1000)] = 1
    """Exchanges that an asynchronous peer begins per round of training."""
    combine: Annotated[str, NamesCode(), OneOf(tuple(COMBINATIONS), own=True)] = "linear"
    """Combination of a round's models.  linear: the weighted sum.  Against malicious peers: clipped (far models are
    scaled down), trimmed-mean, median, geometric-median, nna (the nearest alone); of these clipped alone uses the
    weights, and the mean of all peers moves; module:Class, your own (docs/together/algorithms.md)."""
    combine_options: dict[str, Any] = msgspec.field(default_factory=dict)
    """{ f = 1 } of clipped, trimmed-mean and nna: number of malicious neighbours; { tau = 2.0 } of clipped: a length,
    or "adaptive", by f; { steps = 8 } of geometric-median."""
    deadline: Seconds = 30.0
    """The longest wait for neighbours' models in a round, in seconds; above the slowest peer's training time."""
    least_deadline: SecondsOr0 = 5.0
    """The shortest, in seconds: between the two the deadline follows the rounds that a peer has seen (eight times their
    median, and their spread)."""
    start_timeout: Seconds = 300.0
    """Seconds to wait for all neighbours before the first round."""
    private: bool = False
    """Peers learn the sum of their neighbours' models, and no model; dsgd in sync mode, 3 neighbours or more each
    (docs/privacy/private-gossip.md)."""
    bound: Annotated[float, Within(ABOVE_0)] = 64.0
    """Private: no weight of a model is larger, or the peer stops; a smaller bound rounds finer (bound / 2^29)."""


class AdversarySection(msgspec.Struct, forbid_unknown_fields=True):
    """[adversary]: peers of a graph that lie; scores and distances are then of the honest ones alone."""

    peers: list[Annotated[int, Within(0, MOST)]] = msgspec.field(default_factory=list)
    """Their ids; none: all are honest."""
    attack: Annotated[str, NamesCode(), OneOf(tuple(ATTACKS), own=True)] = "sign-flip"
    """Messages in place of their models: sign-flip, noise, label-flip, ipm, alie, dissensus,
    or module:Class, your own (docs/together/algorithms.md)."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """The attack's own: { scale = 0.5 } of noise, ipm and dissensus, { z = 1.5 } of alie."""
    knowledge: Annotated[str, OneOf(("neighbours", "all"))] = "neighbours"
    """Models of the round available to them before they send: their honest neighbours'; or, on stacked arrays alone,
    those of all honest peers."""


FORECAST_AUTO, FORECAST_NONE = "auto", "none"
FORECAST_FOLLOWED = "followed"
FORECAST_LEVELS = "probe", "shadow", FORECAST_FOLLOWED
"""Kinds of forecast of a run."""


class ForecastSection(msgspec.Struct, forbid_unknown_fields=True):
    """[forecast]: forecast of a synchronous gossip run before its start (docs/reference/numerics.md, section 7)."""

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


SERVED, MAPREDUCE, LBFGS, ASYNC = "parameter-server", "mapreduce", "lbfgs", "async"
"""Values of parallel.method beside the collectives, and of parallel.server.staleness beside a number."""


class ServerSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel.server]: servers of the model, for parallel.method = "parameter-server" alone
    (docs/together/parallel.md).
    """

    servers: Annotated[int, Within(1, SERVERS_MAX)] = 1
    """Their number; each has a part of the model."""
    virtual_nodes: Annotated[int, Within(1, SHARDS_MAX // SERVERS_MAX)] = 64
    """Points of each server on the circle of consistent hashing; more make their parts more alike."""
    replication: Annotated[int, Within(1, SERVERS_MAX)] = 1
    """Number of copies of each part; from 2 on a manager replaces lost servers."""
    staleness: int | str = 0
    """Rounds by which a worker may be ahead of the slowest; 0: a step per round, on the mean of all; "async": any."""
    placement: Annotated[str, OneOf(("ranges", "tensors"))] = "ranges"
    """Smallest unit of the partition between servers: single elements, or whole tensors, as lars and lamb require."""
    damp: bool = False
    """The rate of a push is divided by 1 + the steps since the model of its gradient; not with staleness 0."""
    n_fetch: Annotated[int, Within(1, MOST)] = 1
    """staleness "async": a worker takes so many steps on its own copy before it pulls the model (Downpour SGD)."""
    n_push: Annotated[int, Within(1, MOST)] = 1
    """staleness "async": a worker pushes the sum of so many gradients, a multiple of n_fetch; a round is one
    gradient, and rounds are a multiple of it."""
    filters: Annotated[list[str], NamesCode(FILTERS.__contains__)] = msgspec.field(default_factory=list)
    """Filters for a table's pushed rows, in sequence: `key-cache`, `threshold:T`, `random-skip:P`, `kkt`, `kkt:T`,
    `module:function` (docs/together/parallel.md)."""

    pull_codec: str = ""
    """Codec of the model from servers: `bf16`, `fp16`, `int8:BLOCK`; uncoded after the last round; empty: uncoded.  For
    gradients: parallel.codec."""


class OuterSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel.outer]: workers train alone by [train] in every round, and take an outer step along the mean
    displacement: DiLoCo (docs/together/outer.md)."""

    lr: Annotated[float, Within(0)] = 0.0
    """Length of the step: 0.7 is usual, 1 with beta = 0 is the mean of their models.  0: there is no outer step, and
    workers share every step."""
    beta: float = 0.9
    """The share of the last step that is kept, from 0 to below 1."""
    nesterov: bool = True
    """Look ahead."""
    delay: Annotated[int, Within(0, 1)] = 0
    """1: the mean of a round travels while the next one is trained, and counts at its end; links quicker than the
    training cause no waiting."""
    fragments: Annotated[int, Within(1, FRAGMENTS_MAX)] = 1
    """Number of fragments of the model, one sent per round in turn: with 4, and train.local_steps = 10, each is sent
    every 40 steps, and a round sends a quarter of the bytes."""


class ParallelSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel]: workers that take one step on the mean of all their gradients in every round
    (docs/together/parallel.md).
    """

    workers: Annotated[int, Within(1, WORKERS_MAX)]
    """Their number; all know each other."""
    method: Annotated[str, OneOf((*COLLECTIVES, MAPREDUCE, LBFGS, SERVED, HOGWILD))] = "ring"
    """Distribution of the mean; mapreduce: by a server, which takes the step; lbfgs: the same, and the server
    takes steps of L-BFGS, by gradients of all examples; hogwild: without messages, the workers
    are processes of one participant, which step on one model in shared memory without waiting."""
    descent: Annotated[str, OneOf(("", *DESCENTS))] = ""
    """Descent method of the step, with train.lr; empty: train.optimizer."""
    l1: Annotated[float, Within(0)] = 0.0
    """ftrl: the sum of gradients below which a weight stays 0; more makes more weights 0."""
    accumulate: Annotated[int, Within(1, MOST)] = 1
    """Batches of train.batch_size that a worker's gradient is the mean of; train.local_steps does not count here."""
    backups: Annotated[int, Within(0, WORKERS_MAX - 1)] = 0
    """mapreduce: so many workers of a round, the last to answer, are not waited for."""
    bucket: Annotated[int | None, Within(0, MOST)] = None
    """Bytes of a stretch of the gradient that is summed by itself; none: 1 MiB per worker; 0: all at once."""
    codec: Annotated[str, CODEC_CODE, KnownNames({**FORMS, f"{LOW_RANK}:RANK": ""})] = ""
    """Codec of gradients; the remainder is sent later.  Every collective supports random-k and powersgd, ring and
    all-to-all the others and `module:Class` too; servers support all but powersgd; empty: uncoded
    (docs/together/codecs.md)."""
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
        """Whether workers contribute the result of training to a round, not a gradient."""
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


SecondsOr0Given = Annotated[float | None, Within(0, LONGEST_SECONDS)]
Rate = Annotated[float | None, Within(ABOVE_0)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]


class DeviceSection(msgspec.Struct, forbid_unknown_fields=True):
    """[[simulation.classes]]: nodes with other links or processors; keys left out are as for all."""

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


class RacksSection(msgspec.Struct, forbid_unknown_fields=True):
    """simulation.racks: nodes in a row share a rack, of links to the other racks."""

    size: Annotated[int | None, Within(1, MOST)] = None
    """Nodes of a rack, has to be given: 0 to size - 1 are the first; a coordinator or server is in the last."""
    bandwidth: Positive | None = None
    """Bytes per second of a rack's link to all others, each way, which its nodes share: size * simulation.bandwidth /
    bandwidth is the oversubscription; none: no limit."""
    latency: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """Seconds between nodes of two racks, one way; none: as within one."""


LINKS = {
    "nvlink4": 18 * 25e9,
    "nvlink3": 12 * 25e9,
    "pcie5": 16 * 32e9 / 8 * 128 / 130,
    "pcie4": 16 * 16e9 / 8 * 128 / 130,
    "infiniband-ndr": 400e9 / 8,
    "ethernet-100g": 100e9 / 8,
}
"""Bytes per second each way that standards and makers name: 18 and 12 NVLinks of an H100 and an A100, 16 lanes of PCIe
with its code of 128 bits in 130, one port of a network."""


class InsideSection(msgspec.Struct, forbid_unknown_fields=True):
    """simulation.inside: the processes of one participant (train.processes, train.mesh), all alike, and their links."""

    flops: Positive | None = None
    """FLOP per second of a process; has to be given."""
    latency: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """Seconds of a message between two of them, one way; none: 0."""
    bandwidth: Positive | None = None
    """Bytes per second that a process can send to the others; none: any number."""
    links: Annotated[str | None, OneOf(LINKS)] = None
    """The bandwidth by the name of a link, in place of a number: nvlink4, pcie5."""
    memory: Positive | None = None
    """Bytes of a process: a model that needs more is refused."""
    pcie: Positive | None = None
    """Bytes per second between a process's device and host memory: train.offload copies by it, and has to have
    it."""
    zero: Annotated[int | None, Within(1, 1)] = None
    """1: the optimiser's memory is counted as ZeRO-1 divides it over the parts of a batch, in the same bytes; ddp
    alone.  ZeRO-2 and 3 are train.parallel = "fsdp"."""


class SimulationSection(msgspec.Struct, forbid_unknown_fields=True):
    """[simulation]: the virtual network and devices of `--on sim`; real runs ignore it."""

    latency: SecondsOr0 = 0.005
    """Seconds of a virtual link, one way."""
    jitter: SecondsOr0 = 0.0
    """Seconds by which that varies."""
    bandwidth: Rate = None
    """Bytes per second that a peer can send, over all its links; none: any number."""
    downlink: Rate = None
    """Bytes per second that a peer can receive, over all its links: a server with many senders waits for all of them;
    none: unlimited."""
    detection: SecondsOr0 = 1.0
    """Seconds of silence after which a link is reported lost; a shorter cut only delays messages."""
    training: SecondsOr0 = 0.05
    """Seconds of a round's training."""
    per_example: SecondsOr0Given = None
    """Seconds of training per example, in place of `training`: a smaller batch takes less time."""
    inside: InsideSection | None = None
    """In place of both: { flops = 1e12, latency = 5e-6, bandwidth = 1e10, memory = 1.6e10 }, of each process of a
    participant.  A step takes the model's FLOPs, layer by layer, the messages of `train.mesh` and the idle turns of its
    stages (docs/together/parallel.md)."""
    summing: SecondsOr0 = 0.0
    """Seconds per element that a participant adds up: in collectives, servers, coordinators, synchronous gossip."""
    training_jitter: Annotated[float, Within(0, 1e6)] = 0.0
    """The share by which that varies."""
    speed_spread: Annotated[float, Within(0, 10)] = 0.0
    """Speeds of peers are exp(N(0, spread²))."""
    classes: list[DeviceSection] = msgspec.field(default_factory=list)
    """Nodes with other links or processors: { nodes = "0-3, 7", bandwidth = 1e6, slower = 4.0 }."""
    racks: RacksSection | None = None
    """Nodes in racks, of shared links: { size = 4, bandwidth = 1e6, latency = 1e-3 } (docs/together/parallel.md)."""


COMPARE = "compare"
EQUALS = ("examples", "seconds", "bytes")


class CompareSection(msgspec.Struct, forbid_unknown_fields=True):
    """[compare]: for `fedgossip compare`, in a file that may have the sections of several kinds of run."""

    equal: Annotated[str, OneOf(EQUALS)] = "examples"
    """Equal resource for the comparison of losses: `examples` (all run to their end), `seconds` or `bytes` (the least
    use of any)."""
    target: Annotated[float | None, Within(0)] = None
    """The test loss to which seconds and bytes are counted; none: the least that all paradigms reach."""
