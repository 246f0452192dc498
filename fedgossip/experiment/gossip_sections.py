"""The sections that a gossip run has: [topology], [algorithm], [adversary] and [forecast]."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from fedgossip.algorithms.gossip.names import METHODS
from fedgossip.algorithms.robust.attacks import ATTACKS
from fedgossip.algorithms.robust.combine import COMBINATIONS
from fedgossip.base.limits import ABOVE_0, MOST, KnownNames, OneOf, Seconds, SecondsOr0, Within
from fedgossip.data.custom import NamesCode
from fedgossip.experiment.coordinator_sections import CODEC_CODE
from fedgossip.learning.personal.names import PERSONAL
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
