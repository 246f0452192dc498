"""Sections that only some runs have: those of one kind of run, of simulations, and of a comparison.

gossip      [topology], [algorithm], [adversary]
federated   [coordinator], with [secure] and [privacy] in it
parallel    [parallel], with [server] and [outer] in it
simulated   [simulation], with [[classes]] and [inside] in it
several     [forecast], [compare]
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
"""Code in topology.graph: any word other than the built-in ones is the name of a user's function."""

WEIGHTS_CODE = NamesCode(("pi", *rule_names()).__contains__)
"""Code in topology.weights."""


class TopologySection(msgspec.Struct, forbid_unknown_fields=True):
    """[topology]: the graph of the peers."""

    graph: Annotated[str, GRAPH_CODE]
    """A family (ring, torus:4x4, regular:3, ...), a schedule (base:1, matcha:0.5:torus, ...), a ready graph of
    `fedgossip topology list`, the path of a file, or module:function, called with n and the seed
    (docs/together/topologies.md).
    """
    n: int | None = None
    """Number of peers, if the graph does not fix it."""
    weights: Annotated[str | None, WEIGHTS_CODE] = None
    """Mixing weights: `metropolis`, `max-degree`, `uniform`, `lazy`, `best-constant`, `fmmc`, `fdla`, `sinkhorn`,
    `inverse`, `pi:FILE`; `sizes`, like `pi` with the peers' numbers of examples; `push`, for push-sum on directed
    graphs; `module:function`, called with the graph; none: the weights in the graph's file, or metropolis
    (docs/together/topologies.md).
    """
    seed: int | None = None
    """Seed of a random graph, such as regular:3; none: the experiment's seed.  Set it to keep the graph while the seed
    changes.  `fedgossip topology show` and the function `resolve` use seed 1.
    """
    allow_disconnected: bool = False
    """Whether a disconnected graph may run: its parts never agree.  For comparisons and controls."""


MODES = tuple(dict.fromkeys(mode for method in METHODS.values() for mode in method.modes))
"""Modes that at least one method supports."""


ALGORITHM_CODE = NamesCode()
"""Code in algorithm.name: no built-in name has a colon."""

CODEC_CODE = NamesCode(CODECS.__contains__)
AVAILABLE_CODE = NamesCode(("day", "trace").__contains__)

BY_LOSSES = ("power-of-choice", "oort")
"""Sampling rules that use reported losses."""

Count = Annotated[int | None, Within(1, MOST)]


WEIGHT_MAX = 10_000
"""Default maximum number of examples of a client in a secure sum."""


class SecureSection(msgspec.Struct, forbid_unknown_fields=True):
    """[coordinator.secure]: the coordinator sees only the sum of a round's contributions, not a single one."""

    on: bool = True
    """`false`: the coordinator sees every client's update, and the run's first lines warn of it.  The robust algorithms
    and fedbuff require `false`.
    """
    threshold: Annotated[int | None, Within(1, 1000)] = None
    """Number of answers of each share group that a round needs to finish; none: the smallest that clients accept, more
    than two thirds.
    """
    neighbours: Annotated[int | None, Within(2, 200)] = None
    """Number of clients that each client shares masks with, if more than 64 are invited; even."""
    bound: Annotated[float, Within(ABOVE_0)] = 1.0
    """Largest absolute value of an update's element; larger ones are cut to it.  A smaller bound rounds finer.  Running
    statistics are not cut.
    """
    bits: Annotated[int | None, Within(2, 31)] = None
    """Bits per element, rounded at random; none: 24 for up to 100 clients, 20 above."""
    weight_max: Annotated[int | None, Within(1, MOST)] = None
    """Maximum number of examples of a client: one with more is refused before it trains; larger values round coarser.
    none: 10,000; if the largest client is known from data.partition, the smallest sufficient one of 20,000, 50,000,
    100,000, ...
    """
    score_max: Annotated[float, Within(ABOVE_0, 1e12)] = 64.0
    """Maximum of a client's loss, and of a score not between 0 and 1 (rmse, mae, r2): larger ones count as this; a
    larger maximum rounds coarser.
    """


class PrivacySection(msgspec.Struct, forbid_unknown_fields=True):
    """[coordinator.privacy]: differential privacy of a record at its site, or of a whole client."""

    unit: Annotated[str, OneOf(("none", "record", "client"))] = "none"
    """Unit that the budget protects."""
    clip: Annotated[float, Within(ABOVE_0)] = 1.0
    """Maximum norm of one example's gradient (record) or of one client's update (client)."""
    noise: Annotated[float, Within(ABOVE_0, 1e6)] = 1.0
    """Standard deviation of the noise, in units of clip; more protects better and learns worse."""
    delta: Annotated[float, Within(ABOVE_0, 0.5)] = 1e-5
    """Probability that the epsilon bound fails; choose it well below 1 / number of units."""
    max_epsilon: Annotated[float, Within(ABOVE_0)] = 8.0
    """Maximum epsilon: the round that would exceed it is refused."""
    test_noise: Annotated[float, Within(0, 1e6)] = 0.0
    """record: standard deviation of the noise on the number of correct answers on held-out examples (data.local_test),
    which each client reports in evaluated rounds within the same budget; 0: not reported.
    """
    adaptive: bool = False
    """client: whether the clip follows the median norm of the updates, starting at `clip`."""


class TierSection(msgspec.Struct, forbid_unknown_fields=True):
    """[[coordinator.tiers]]: a tier of coordinators.  The first tier's participants are clients; the last tier is the
    root alone.
    """

    clients: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    """Number of participants of the tier below per coordinator of this tier, in the order of their ids."""
    groups: list[str] = msgspec.field(default_factory=list)
    """In place of `clients`: the participants of each coordinator by their numbers in the tier below: ["0-4", "5, 6,
    7"].
    """
    secure: bool = True
    """`false`: a coordinator of this tier sees all that its participants send, and the run's first lines warn of it:
    each client's update, or the sum of each coordinator below.  A tier of two requires `false`.
    """


class CoordinatorSection(msgspec.Struct, forbid_unknown_fields=True):
    """[coordinator]: a federated run, in place of [topology] (docs/together/coordinator.md)."""

    clients: Annotated[int, Within(1, 1_000_000)]
    """Number of clients that may ever take part: ids 0 to clients - 1; the coordinator has the next id."""
    participation: Annotated[float, Within(ABOVE_0, 1)] = 1.0
    """Share of the clients that a round uses."""
    cohort: Count = None
    """Number of clients that a round uses, in place of participation."""
    over_selection: Annotated[float, Within(1, 100)] = 1.0
    """Factor by which more clients are invited than a round uses; the round ends when enough have answered."""
    sampling: Annotated[str, NamesCode(), OneOf(("uniform", "size", "poisson", *BY_LOSSES), own=True)] = "uniform"
    """Sampling of the cohort: size, clients with more examples more often; poisson, each client independently: cohorts
    vary in size, so not with a secure sum; power-of-choice and oort, by the losses that clients last reported, which
    the coordinator must see; module:Class, your own.
    """
    candidates: Count = None
    """power-of-choice: number of candidates; the ones with the greatest losses are invited; none: twice the number of
    invitations.
    """
    available: Annotated[str | None, AVAILABLE_CODE] = None
    """Clients that can be invited to a round: `day:0.4?rounds=24`, each for 0.4 of every 24 rounds, from a random
    start; `trace:FILE.csv?round=T`, a table of client, start and end, with T units of the table per round;
    module:function of (client, round), your own; none: all.  A secure sum abandons a round if fewer clients are
    available than it would invite.
    """
    min_clients: Count = None
    """Minimum number of clients: a round with fewer is abandoned; none: 5 or the cohort, the smaller one; 1 without a
    secure sum.  With tiers it applies to each leaf: one with fewer clients contributes nothing to the round.
    """
    algorithm: Annotated[str, NamesCode(), KnownNames(dict.fromkeys(ALGORITHMS, ""))] = "fedavg"
    """The rule, or `fedbuff`, which averages the first updates to arrive; `cocoa` requires task.kind = "convex"
    (docs/use/convex.md).  Robust, without a secure sum: `median`, `trimmed-mean`, `krum`, `multi-krum`,
    `geometric-median`, `clipped-mean`.  module:function, your own rule (docs/together/coordinator.md).
    """
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Options of the algorithm, such as { mu = 0.1 } or { lr = 0.01 }."""
    personal: Annotated[str | None, KnownNames(PERSONAL)] = None
    """Method for a personal model at each client in addition to the shared one, with options after a question mark,
    `ditto?lambda=0.1` (docs/use/personal.md).
    """
    codec: Annotated[str, CODEC_CODE, KnownNames({form: "" for form in FORMS if not form.startswith("dgc")})] = ""
    """Codec of uploaded updates; a client sends the remainder later.  A secure sum supports only random-k;
    module:Class, your own; empty: uncoded (docs/together/codecs.md).
    """
    deadline: Seconds = 300.0
    """Maximum wait in one phase of a round, in seconds; set it above the slowest client's training time."""
    least_deadline: Annotated[float, Within(0, LONGEST_SECONDS)] = 5.0
    """Minimum wait in one phase of a round, in seconds: between the two, the deadline follows the durations of earlier
    rounds.
    """
    start_timeout: Seconds = 300.0
    """Seconds to wait for all clients before the first round, and for enough of them whenever too few are connected."""
    return_timeout: Annotated[float, Within(0, LONGEST_SECONDS)] = 10.0
    """Seconds that a restarted coordinator waits for all clients before it continues with those present."""
    silence: Seconds = 600.0
    """Maximum time without a link, in seconds; the client then gives up on the coordinator."""
    at_once: Count = None
    """fedbuff: number of clients that train at the same time; none: twice the goal."""
    goal: Count = None
    """fedbuff: answers per step; none: 10 or half of the clients, the smaller one."""
    most_stale: Annotated[int, Within(0, MOST)] = 20
    """fedbuff: maximum staleness of an answer, in steps since the client was invited; an older one is dropped."""
    tiers: list[TierSection] = msgspec.field(default_factory=list)
    """Tiers of coordinators between the clients and the root, from the clients upwards: [{ clients = 8 }, { clients = 4
    }] is 4 leaf coordinators of 8 clients each; the product of the sizes is `clients`.  Empty: one coordinator of all.
    """
    secure: SecureSection = msgspec.field(default_factory=SecureSection)
    privacy: PrivacySection = msgspec.field(default_factory=PrivacySection)


class AlgorithmSection(msgspec.Struct, forbid_unknown_fields=True):
    """[algorithm]: the consensus method of the peers."""

    name: Annotated[str, ALGORITHM_CODE, KnownNames({name: one.what for name, one in METHODS.items()})] = "dsgd"
    """Consensus method; module:Class, your own (docs/together/algorithms.md)."""
    options: Annotated[dict[str, Any], CODEC_CODE] = msgspec.field(default_factory=dict)
    """Options of the algorithm: { order = "cta" } of dsgd, { beta = 0.9 } of dsgdm, { slem = 0.9 } of two-tap, {
    momentum = "mixed" } of push-sum, { codec = "top-k:0.1" } of choco, or module:Class, { base = "qg-dsgdm", every =
    12, beta = 0.7 } of slowmo, { lr = 0.7, beta = 0.9 } of diloco, which also accepts fragments, or a codec and gamma.
    """
    personal: Annotated[str | None, KnownNames(PERSONAL)] = None
    """Method for a personal model at each peer in addition to the mixed one, with options after a question mark,
    `ditto?lambda=0.1` (docs/use/personal.md).
    """
    mode: Annotated[str, OneOf(MODES)] = "sync"
    """sync: rounds that wait for the neighbours.  async: pairwise exchanges during training, without waiting."""
    partner: Annotated[str, OneOf(RULES)] = "uniform"
    """Choice of an asynchronous peer's next partner: uniform, any neighbour; matching, in turn; speed, faster
    neighbours more often.
    """
    exchanges: Annotated[int, Within(1, 1000)] = 1
    """Exchanges that an asynchronous peer starts per round of training."""
    combine: Annotated[str, NamesCode(), OneOf(tuple(COMBINATIONS), own=True)] = "linear"
    """Combination of a round's models.  linear: the weighted sum.  Against malicious peers: clipped (distant models are
    scaled down), trimmed-mean, median, geometric-median, nna (the nearest models only).  Of these only clipped uses the
    weights, and the mean of all peers changes; module:Class, your own (docs/together/algorithms.md).
    """
    combine_options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Options of the combination: { f = 1 } of clipped, trimmed-mean and nna: number of malicious neighbours; { tau =
    2.0 } of clipped: a length, or "adaptive", by f; { steps = 8 } of geometric-median.
    """
    deadline: Seconds = 30.0
    """Maximum wait for neighbours' models in a round, in seconds; set it above the slowest peer's training time."""
    least_deadline: SecondsOr0 = 5.0
    """Minimum wait for neighbours' models, in seconds: between the two, the deadline follows the durations of the
    peer's earlier rounds (eight times their median, plus their spread).
    """
    start_timeout: Seconds = 300.0
    """Seconds to wait for all neighbours before the first round."""
    private: bool = False
    """Whether peers learn only the sum of their neighbours' models; dsgd in sync mode, 3 neighbours or more each
    (docs/privacy/private-gossip.md).
    """
    bound: Annotated[float, Within(ABOVE_0)] = 64.0
    """private: largest absolute value of a model's weight; a peer with a larger one stops; a smaller bound rounds finer
    (bound / 2^29).
    """


class AdversarySection(msgspec.Struct, forbid_unknown_fields=True):
    """[adversary]: malicious peers of a graph; scores and distances are then those of the honest peers only."""

    peers: list[Annotated[int, Within(0, MOST)]] = msgspec.field(default_factory=list)
    """Ids of the malicious peers; none: all are honest."""
    attack: Annotated[str, NamesCode(), OneOf(tuple(ATTACKS), own=True)] = "sign-flip"
    """Messages sent in place of their models: sign-flip, noise, label-flip, ipm, alie, dissensus, or module:Class, your
    own (docs/together/algorithms.md).
    """
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Options of the attack: { scale = 0.5 } of noise, ipm and dissensus, { z = 1.5 } of alie."""
    knowledge: Annotated[str, OneOf(("neighbours", "all"))] = "neighbours"
    """Models of the round that they see before they send: their honest neighbours'; or, on stacked arrays only, those
    of all honest peers.
    """


FORECAST_AUTO, FORECAST_NONE = "auto", "none"
FORECAST_FOLLOWED, FORECAST_DRAWN = "followed", "drawn"
FORECAST_LEVELS = "probe", "shadow", FORECAST_FOLLOWED, FORECAST_DRAWN
"""Kinds of forecast of a run."""


class ForecastSection(msgspec.Struct, forbid_unknown_fields=True):
    """[forecast]: forecast of a run before its start (docs/reference/numerics.md, section 7)."""

    level: Annotated[str, OneOf((FORECAST_AUTO, FORECAST_NONE, *FORECAST_LEVELS))] = FORECAST_AUTO
    """shadow: one training at the peers' mean; followed: the same, plus a third of a training for each graph, with a
    much narrower range; probe: three jobs per peer; these three for synchronous gossip.  drawn: eight simulations of
    the run with other draws of times and faults, for any run.  none: no forecast.  auto: `fedgossip run` makes a probe
    if a probe is exact, as for quadratics; other commands make none.
    """
    rounds: Annotated[int, Within(0, MOST)] = 0
    """Number of rounds to forecast, from the first; 0: all.  The cost is proportional to it, except that of drawn."""
    memory: Annotated[float, Within(ABOVE_0)] = 4.0
    """Maximum memory for the models of a shadow, in gigabytes."""
    realised: bool = True
    """Whether a run that lost messages or peers is forecast again at its end, from the mixing that took place: a second
    curve in the report, at the cost of another shadow.
    """


SERVED, MAPREDUCE, LBFGS, ASYNC = "parameter-server", "mapreduce", "lbfgs", "async"
"""Values of parallel.method in addition to the collectives, and of parallel.server.staleness in addition to a number.
"""


class ServerSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel.server]: servers of the model, only for parallel.method = "parameter-server"
    (docs/together/parallel.md).
    """

    servers: Annotated[int, Within(1, SERVERS_MAX)] = 1
    """Number of servers; each stores a part of the model."""
    virtual_nodes: Annotated[int, Within(1, SHARDS_MAX // SERVERS_MAX)] = 64
    """Points per server on the circle of consistent hashing; with more, the parts are closer in size."""
    replication: Annotated[int, Within(1, SERVERS_MAX)] = 1
    """Number of copies of each part; with 2 or more a manager replaces lost servers."""
    staleness: int | str = 0
    """Maximum number of rounds that a worker may be ahead of the slowest; 0: one step per round, on the mean of all;
    "async": no limit.
    """
    placement: Annotated[str, OneOf(("ranges", "tensors"))] = "ranges"
    """Smallest unit of the partition between servers: single elements, or whole tensors, as lars and lamb require."""
    damp: bool = False
    """Whether the rate of a push is divided by 1 + the number of steps since its gradient's model; not with staleness
    0.
    """
    n_fetch: Annotated[int, Within(1, MOST)] = 1
    """staleness "async": steps of a worker on its own copy between two pulls of the model (Downpour SGD)."""
    n_push: Annotated[int, Within(1, MOST)] = 1
    """staleness "async": gradients that a worker sums per push, a multiple of n_fetch; a round is one gradient, and
    `rounds` must be a multiple of n_push.
    """
    filters: Annotated[list[str], NamesCode(FILTERS.__contains__)] = msgspec.field(default_factory=list)
    """Filters for a table's pushed rows, applied in sequence: `key-cache`, `threshold:T`, `random-skip:P`, `kkt`,
    `kkt:T`, `module:function` (docs/together/parallel.md).
    """

    pull_codec: str = ""
    """Codec of the models that servers send: `bf16`, `fp16`, `int8:BLOCK`; uncoded after the last round; empty:
    uncoded.  For gradients use parallel.codec.
    """


class OuterSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel.outer]: workers train locally by [train] in every round, then take an outer step along the mean
    displacement: DiLoCo (docs/together/outer.md).
    """

    lr: Annotated[float, Within(0)] = 0.0
    """Length of the outer step: 0.7 is usual; 1 with beta = 0 gives the mean of the workers' models.  0: no outer step;
    workers share every step.
    """
    beta: float = 0.9
    """Momentum of the outer step: share of the last step kept in the next, from 0 to below 1."""
    nesterov: bool = True
    """Whether the momentum is Nesterov's."""
    delay: Annotated[int, Within(0, 1)] = 0
    """1: the mean of a round is exchanged during the next round's training and applied at its end; if links are faster
    than the training, there is no waiting.
    """
    fragments: Annotated[int, Within(1, FRAGMENTS_MAX)] = 1
    """Number of fragments of the model; one is sent per round, in turn: with 4, and train.local_steps = 10, each is
    sent every 40 steps, and a round sends a quarter of the bytes.
    """


class ParallelSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel]: workers that take one step on the mean of all their gradients in every round
    (docs/together/parallel.md).
    """

    workers: Annotated[int, Within(1, WORKERS_MAX)]
    """Number of workers; all know each other."""
    method: Annotated[str, OneOf((*COLLECTIVES, MAPREDUCE, LBFGS, SERVED, HOGWILD))] = "ring"
    """Exchange of the gradients: a collective; mapreduce: a server adds them and takes the step; lbfgs: the same with
    steps of L-BFGS, from gradients of all examples; hogwild: no messages, the workers are processes of one participant
    and step on one model in shared memory without waiting.
    """
    descent: Annotated[str, OneOf(("", *DESCENTS))] = ""
    """Descent method of the step, with learning rate train.lr; empty: train.optimizer."""
    l1: Annotated[float, Within(0)] = 0.0
    """ftrl: sum of gradients below which a weight stays 0; a larger one makes more weights 0."""
    accumulate: Annotated[int, Within(1, MOST)] = 1
    """Number of batches of train.batch_size per gradient of a worker; train.local_steps has no effect here."""
    backups: Annotated[int, Within(0, WORKERS_MAX - 1)] = 0
    """mapreduce: number of workers, the slowest of a round, that the server does not wait for."""
    bucket: Annotated[int | None, Within(0, MOST)] = None
    """Bytes of a bucket, a part of the gradient summed separately; none: 1 MiB per worker; 0: the whole gradient in
    one.
    """
    codec: Annotated[str, CODEC_CODE, KnownNames({**FORMS, f"{LOW_RANK}:RANK": ""})] = ""
    """Codec of gradients; the remainder is sent later.  Every collective supports random-k and powersgd; ring and
    all-to-all also support the others and `module:Class`; servers support all but powersgd; empty: uncoded
    (docs/together/codecs.md).
    """
    overlap: bool = False
    """Whether buckets are sent while the rest of the gradient is computed, last layers first; the result is
    bit-identical.
    """
    deadline: Seconds = 30.0
    """Maximum wait for a round, in seconds; set it above the time of the slowest worker's gradient."""
    least_deadline: SecondsOr0 = 5.0
    """Minimum wait for a round, in seconds: between the two, the deadline follows the durations of earlier rounds."""
    start_timeout: Seconds = 300.0
    """Seconds to wait for all workers before the first round, and later for the return of a lost worker, or of enough
    of them.
    """
    outer: OuterSection = msgspec.field(default_factory=OuterSection)
    """Local training, and an outer step along its mean, in place of a step on the mean gradient; needs a collective."""

    @property
    def local(self) -> bool:
        """Whether workers contribute the result of local training to a round, not a gradient."""
        return self.outer.lr > 0 or self.races

    @property
    def races(self) -> bool:
        """Whether the workers are processes of one participant."""
        return self.method == HOGWILD

    @property
    def participants(self) -> int:
        """Number of participants; the processes of hogwild are one."""
        return 1 if self.races else self.workers

    @property
    def collective(self) -> str:
        """Name of the collective; with a single participant any would do."""
        return "ring" if self.races else self.method

    server: ServerSection = msgspec.field(default_factory=ServerSection)
    """Servers that store the model, in place of a collective."""


SecondsOr0Given = Annotated[float | None, Within(0, LONGEST_SECONDS)]
Rate = Annotated[float | None, Within(ABOVE_0)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]


class DeviceSection(msgspec.Struct, forbid_unknown_fields=True):
    """[[simulation.classes]]: nodes with different links or processors; omitted keys have the values of all nodes."""

    nodes: str
    """Node ids and ranges of them: "0-3, 7"; a coordinator has the last id."""
    bandwidth: Positive | None = None
    """Bytes per second that each of the nodes can send, over all its links."""
    downlink: Positive | None = None
    """Bytes per second that it can receive, over all its links."""
    latency: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """One-way latency of its links, in seconds."""
    slower: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    """Factor on its training time."""


class RacksSection(msgspec.Struct, forbid_unknown_fields=True):
    """simulation.racks: nodes with consecutive ids share a rack and its link to the other racks."""

    size: Annotated[int | None, Within(1, MOST)] = None
    """Nodes per rack, required: 0 to size - 1 are the first rack; a coordinator or server is in the last."""
    bandwidth: Positive | None = None
    """Bytes per second of a rack's link to all others, in each direction, which its nodes share: size *
    simulation.bandwidth / bandwidth is the oversubscription; none: no limit.
    """
    latency: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """One-way latency between nodes of different racks, in seconds; none: as within a rack."""


LINKS = {
    "nvlink4": 18 * 25e9,
    "nvlink3": 12 * 25e9,
    "pcie5": 16 * 32e9 / 8 * 128 / 130,
    "pcie4": 16 * 16e9 / 8 * 128 / 130,
    "infiniband-ndr": 400e9 / 8,
    "ethernet-100g": 100e9 / 8,
}
"""Bytes per second in each direction by standards and makers: 18 and 12 NVLinks of an H100 and an A100, 16 lanes of
PCIe with its 128b/130b code, one network port.
"""


class InsideSection(msgspec.Struct, forbid_unknown_fields=True):
    """simulation.inside: the processes of one participant (train.processes, train.mesh), all equal, and their links."""

    flops: Positive | None = None
    """FLOP per second of a process; required."""
    latency: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """One-way latency between two processes, in seconds; none: 0."""
    bandwidth: Positive | None = None
    """Bytes per second that a process can send to the others; none: no limit."""
    links: Annotated[str | None, OneOf(LINKS)] = None
    """Name of a link that sets the bandwidth, in place of a number: nvlink4, pcie5."""
    memory: Positive | None = None
    """Bytes of memory of a process: a model that needs more is refused."""
    pcie: Positive | None = None
    """Bytes per second between a process's device and host memory; train.offload copies at this rate and requires it.
    """
    zero: Annotated[int | None, Within(1, 1)] = None
    """1: the optimiser's memory is divided over the parts of a batch as in ZeRO-1, with the same bytes sent; ddp only.
    ZeRO-2 and 3 are train.parallel = "fsdp".
    """


class SimulationSection(msgspec.Struct, forbid_unknown_fields=True):
    """[simulation]: the virtual network and devices of `--on sim`; real runs ignore it."""

    latency: SecondsOr0 = 0.005
    """One-way latency of a virtual link, in seconds."""
    jitter: SecondsOr0 = 0.0
    """Seconds by which the latency varies."""
    bandwidth: Rate = None
    """Bytes per second that a peer can send, over all its links; none: no limit."""
    downlink: Rate = None
    """Bytes per second that a peer can receive, over all its links: a server with many senders waits for all of them;
    none: no limit.
    """
    detection: SecondsOr0 = 1.0
    """Seconds of silence after which a link is reported lost; a shorter interruption only delays messages."""
    training: SecondsOr0 = 0.05
    """Seconds of a round's training."""
    per_example: SecondsOr0Given = None
    """Seconds of training per example, in place of `training`: a smaller batch takes less time."""
    inside: InsideSection | None = None
    """In place of both: { flops = 1e12, latency = 5e-6, bandwidth = 1e10, memory = 1.6e10 }, of each process of a
    participant.  The time of a step is that of the model's FLOPs, layer by layer, the messages of `train.mesh` and the
    idle turns of its stages (docs/together/parallel.md).
    """
    summing: SecondsOr0 = 0.0
    """Seconds per element that a participant adds: in collectives, servers, coordinators, synchronous gossip."""
    training_jitter: Annotated[float, Within(0, 1e6)] = 0.0
    """Share by which the training time varies."""
    speed_spread: Annotated[float, Within(0, 10)] = 0.0
    """Spread of the peers' speeds, which are exp(N(0, spread²))."""
    classes: list[DeviceSection] = msgspec.field(default_factory=list)
    """Nodes with different links or processors: { nodes = "0-3, 7", bandwidth = 1e6, slower = 4.0 }."""
    racks: RacksSection | None = None
    """Nodes in racks with shared links: { size = 4, bandwidth = 1e6, latency = 1e-3 } (docs/together/parallel.md)."""


COMPARE = "compare"
EQUALS = ("examples", "seconds", "bytes")


class CompareSection(msgspec.Struct, forbid_unknown_fields=True):
    """[compare]: settings of `fedgossip compare`, in a file that may have the sections of several kinds of run."""

    equal: Annotated[str, OneOf(EQUALS)] = "examples"
    """Resource at which losses are compared: `examples` (all run to their end), `seconds` or `bytes` (the least that
    any run used).
    """
    target: Annotated[float | None, Within(0)] = None
    """Test loss up to which seconds and bytes are counted; none: the lowest that all paradigms reach."""
