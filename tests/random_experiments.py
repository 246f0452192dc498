"""Random experiments that are mostly valid: any method, graph, task and condition beside any other, and tiny.

Where two of them exclude each other the plan refuses; that is a result too, see test_random_experiments.py.  Names are
taken from the tables of the package, so that a new method, codec or fault is drawn without a line here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgossip.algorithms.codecs.names import CODECS as CODEC_NAMES
from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.algorithms.descent.methods import DESCENTS
from fedgossip.algorithms.federated.names import ALGORITHMS
from fedgossip.algorithms.gossip.names import METHODS
from fedgossip.algorithms.robust.attacks import ATTACKS
from fedgossip.algorithms.robust.robust_mixing import COMBINATIONS
from fedgossip.experiment.run_sections import FORECAST_LEVELS
from fedgossip.learning.personal.methods import PERSONAL
from fedgossip.learning.settings import SLOTS
from fedgossip.protocols.gossip.pairing import RULES

Content = dict[str, Any]
Choice = Sequence[Mapping[str, Any]]

TEXT = str(Path(__file__).parents[1] / "LICENSE")

GRAPHS = (
    "ring", "path", "star", "complete", "exponential", "circulant:1", "tree", "erdos-renyi:0.7", "barabasi-albert:1",
    "small-world:2,0.3", "one-peer-exponential", "base:1", "random-matching", "el-local:1", "equi-dynamic",
    "matcha:0.5:ring", "leja:ring", "shuffled:ring", "every:2:complete:ring", "own_graph:clusters",
)  # fmt: skip
SIZED = ("torus:2x3", "grid:1x4", "barbell:3,0", "paw", "boyd-8", "k2-3", "spanning-tree:boyd-8")
"""Graphs whose name says how many nodes they have."""
DIRECTED = ("directed-exponential", "debruijn:2", "kautz:2", "equi-static:2", "one-peer-exponential", "el-local:2")
WEIGHTS = (
    "metropolis", "max-degree", "uniform", "lazy", "best-constant", "fmmc", "fdla", "sinkhorn", "inverse", "sizes",
    "own_graph:shy",
)  # fmt: skip
GOSSIP = ("dsgd", "dsgd", "dsgd", "two_tap:TwoTap", *METHODS)
FEDERATED = ("fedavg", "fedavg", "fedbuff", "own_parts:averaged", *ALGORITHMS)
NUMBERS = {"int8": ":16", "top-k": ":0.5", "random-k": ":0.5", "dgc": ":0.5", "qsgd": ":4"}
CODECS = (*(name + NUMBERS.get(name, "") for name in CODEC_NAMES), "int8:4:stochastic", "own_parts:Coarse")

OPTIONS: dict[str, Choice] = {
    "dsgd": [{}, {"order": "cta"}],
    "push-sum": [{}, {"momentum": "mixed"}],
    "dsgdm": [{}, {"beta": 0.5, "nesterov": True}],
    "slowmo": [{"every": 2}, {"base": "gradient-tracking", "every": 2}, {"base": "dsgdm", "every": 3}],
    "choco": [
        {"codec": "top-k:0.5"},
        {"codec": "sign"},
        {"codec": "int8:16", "gamma": 0.2},
        {"codec": "own_parts:Halved", "gamma": 0.3},
    ],
    "diloco": [{}, {"fragments": 2}, {"codec": "int8:16"}, {"nesterov": False, "lr": 0.5}],
    "fedprox": [{"mu": 0.5}],
    "fednova": [{}, {"lr": 0.5}],
    "multi-krum": [{}, {"keep": 1}],
    "two_tap:TwoTap": [{"slem": 0.8}],
    "own_parts:averaged": [{"fresh": 0.7}],
}
"""Of a method, of gossip or of a coordinator."""

Row = tuple[str, float, Choice]

TASKS: Choice = (
    *({"task": {"kind": kind, "dim": dim, "dtype": dtype}, "train": {"lr": 0.1}}
      for kind in ("quadratic", "quadratic", "averaging") for dim in (1, 5, 33) for dtype in ("float32", "float64")),
    *({"data": {"source": "diabetes"}, "model": {"source": model}, "task": {"kind": "regression", "loss": loss}}
      for model in ("softmax", "mlp:10-3-1") for loss in ("mse", "huber", "mae", "")),
    {"data": {"source": "breast-cancer"}, "model": {"source": "mlp:30-4-2"}, "task": {"metrics": ["auroc", "f1"]}},
    {"data": {"source": "digits"}},
    {"data": {"source": "digits"}, "model": {"source": "cnn:small-bn"}},
    {"data": {"source": f"text:{TEXT}"}, "model": {"source": "chars:4"}},
    {"task": {"kind": "convex", "loss": "logistic"}, "data": {"source": "breast-cancer"}},
    {"task": {"kind": "convex", "loss": "hinge", "positive": "3"}, "data": {"source": "digits"}},
    *({"task": {"kind": "convex", "loss": loss, "lam": 0.1}, "data": {"source": "diabetes"}}
      for loss in ("squares", "lasso")),
    *({"task": {"kind": "sparse-logistic", "dim": 40, "examples": 20, "nonzeros": 3}},) * 3,
    {"task": {"kind": "own_task:LeastSquares", "options": {"dim": 4}, "metrics": ["away?better=lower"]}},
)  # fmt: skip

DEADLINES: Choice = ({"deadline": 0.2, "least_deadline": 0.05}, {"deadline": 2.0, "start_timeout": 3.0})

ROWS: Sequence[Row] = (
    # of every kind of run
    ("", 0.05, [{"name": "one"}, {"track": {"to": ["csv"]}}, {"study": {
        "sites": ["a", "b"], "purpose": "a", "legal_basis": "b", "retention": "c", "contact": "d"}}]),
    ("", 0.1, [
        {"data": {"validation": 0.2}, "eval": {"on": "validation"}},
        {"data": {"validation": 0.2}, "eval": {"on": "validation", "keep": "best"}},
        {"data": {"validation": 0.2}, "eval": {"on": "validation", "every": 1}, "stop": {"patience": 1}},
        {"data": {"local_test": 0.3}},
        {"data": {"local_test": 0.3}, "eval": {"keep": "best"}, "stop": {"patience": 2}},
        {"eval": {"watch": True}}, {"eval": {"watch": False}},
    ]),
    ("quadratic", 0.7, [{"task": {"sigma": sigma, "placement": placement}}
                        for sigma in (0.0, 0.1) for placement in ("smooth", "alternating", "random")]),
    ("learned", 1.0, [{"train": {"device": "cpu", "lr": 0.05, "batch_size": size, "local_steps": steps}}
                      for size in (3, 16) for steps in (1, 2)]),
    ("quadratic", 0.1, [{"task": {"eta": 0.5}}, {"task": {"eta": 3.0}}]),
    ("convex", 0.1, [{"task": {"smooth": 0.5}}, {"data": {"test": 0.5}}]),
    ("learned", 0.05, [{"data": {"test": 0.5}}, {"train": {"channels_last": True}}, {"train": {"capture": False}}]),
    ("learned", 0.3, [{"train": {"schedule": one}} for one in (
        "cosine", "step:2,0.5", "warmup:2,cosine", "milestones:1,3,0.1", "inverse:4", "own_parts:inverse")]),
    ("learned", 0.3, [
        *({"train": {"optimizer": one}} for one in (*SLOTS, "own_parts:lion")),
        {"train": {"momentum": 0.9}}, {"train": {"momentum": 0.9, "nesterov": True}}, {"train": {"clip_norm": 1.0}},
        {"train": {"weight_decay": 0.01}}, {"train": {"optimizer": "adamw", "weight_decay": 0.1}},
    ]),
    ("learned", 0.2, [
        {"train": {"accumulate": 2}}, {"train": {"scaling": "linear"}}, {"train": {"scaling": "sqrt", "base_batch": 8}},
        {"train": {"precision": "bfloat16"}}, {"train": {"portable": True}}, {"train": {"buffers": "local"}},
        {"train": {"local_steps": None, "local_epochs": 1, "batch_size": 64}},
        {"train": {"local_steps": None, "local_epochs": 2, "fewest_epochs": 1, "slowed": 0.5, "batch_size": 64}},
        {"train": {"prefetch": 2}}, {"train": {"threads": 2}},
    ]),
    ("learned", 0.1, [{"train": {"personal": one}} for one in ("layer1*", "*bias*", "nothing*")]),
    ("learned", 0.4, [{"data": {"partition": one}} for one in (
        {"kind": "size-skewed", "exponent": 1.0}, {"kind": "dirichlet", "alpha": 0.5, "min_size": 1},
        {"kind": "shard", "shards_per_peer": 2}, {"kind": "pathological", "classes_per_peer": 2},
        {"kind": "similar", "share": 0.5}, {"kind": "own_parts:mostly", "iid": 0.2}, {"kind": "natural"})]),
    # of gossip
    ("topology", 0.15, [{"algorithm": {"combine": one}} for one in (*COMBINATIONS, "own_parts:Nearest")]),
    ("topology", 0.1, [{"algorithm": {"private": True}}, {"algorithm": {"private": True, "bound": 8.0}},
                       *({"algorithm": {"mode": "async", "partner": rule, "exchanges": times}}
                         for rule in RULES for times in (1, 2))]),
    ("topology", 0.1, [{"adversary": {"peers": peers, "attack": one}}
                       for one in (*ATTACKS, "own_parts:Silent") for peers in ([0], [1, 2])]),
    ("topology", 0.1, [*({"forecast": {"level": one}} for one in FORECAST_LEVELS),
                       {"forecast": {"level": "shadow", "rounds": 2, "realised": False}}]),
    ("topology", 0.05, [{"topology": {"seed": 7}}, {"topology": {"allow_disconnected": True}}]),
    ("topology", 0.08, [{"algorithm": {"personal": one}} for one in PERSONAL]),
    ("topology", 0.05, [{"algorithm": one} for one in DEADLINES]),
    ("topology", 0.03, [
        *({"algorithm": {"combine": name, "combine_options": {"f": 1}}} for name in ("clipped", "trimmed-mean", "nna")),
        {"algorithm": {"combine": "geometric-median", "combine_options": {"steps": 2}}},
    ]),
    ("adversary", 0.3, [{"adversary": {"attack": "noise", "options": {"scale": 0.5}}},
                        {"adversary": {"attack": "alie", "options": {"z": 1.5}}},
                        {"adversary": {"knowledge": "all"}}]),
    ("forecast", 0.2, [{"forecast": {"memory": 1e-9}}]),
    # of a coordinator
    ("coordinator", 0.05, [{"coordinator": one} for one in (*DEADLINES, {"silence": 1.0}, {"return_timeout": 0.5})]),
    ("coordinator", 0.03, [{"forecast": {"level": "drawn"}}]),
    ("coordinator", 0.6, [{"coordinator": {"secure": {"on": False}}}]),
    ("coordinator", 0.1, [{"coordinator": {"secure": one}} for one in (
        {"bound": 4.0}, {"bits": 12}, {"bits": 20, "weight_max": 500}, {"score_max": 1e6}, {"threshold": 3},
        {"neighbours": 2})]),
    ("coordinator", 0.3, [{"coordinator": one} for one in (
        {"cohort": 1}, {"cohort": 3}, {"participation": 0.5}, {"sampling": "size"},
        {"over_selection": 1.5, "cohort": 2}, {"sampling": "poisson", "participation": 0.5},
        {"sampling": "power-of-choice", "cohort": 2}, {"sampling": "power-of-choice", "cohort": 1, "candidates": 3},
        {"sampling": "oort", "cohort": 2}, {"sampling": "own_parts:InTurn", "cohort": 2},
        {"available": "day:0.5?rounds=4"}, {"available": "day:0.8?rounds=3", "cohort": 2, "sampling": "size"})]),
    ("coordinator", 0.25, [{"coordinator": {"codec": one}} for one in CODECS]),
    ("coordinator", 0.2, [{"coordinator": {"min_clients": one}} for one in (1, 2, 4)]),
    ("coordinator", 0.12, [{"coordinator": {"clients": one * two, "tiers": [{"clients": one, "secure": safe},
                                                                             {"clients": two, "secure": safe}]}}
                           for one, two in ((2, 2), (3, 2), (2, 3)) for safe in (True, False)]),
    ("coordinator", 0.1, [{"coordinator": {"privacy": one}} for one in (
        {"unit": "record", "clip": 0.1, "max_epsilon": 1e3}, {"unit": "record", "noise": 2.0, "max_epsilon": 2.0},
        {"unit": "client", "delta": 0.1, "max_epsilon": 1e3}, {"unit": "client", "adaptive": True, "max_epsilon": 1e3},
        {"unit": "record", "test_noise": 2.0, "max_epsilon": 1e3})]),
    ("coordinator", 0.08, [{"coordinator": {"personal": one}} for one in PERSONAL]),
    ("fedbuff", 0.5, [{"coordinator": one} for one in (
        {"goal": 1}, {"goal": 2, "at_once": 3}, {"goal": 2, "most_stale": 1})]),
    # of workers
    ("parallel", 0.05, [{"parallel": one} for one in DEADLINES]),
    ("parallel", 0.03, [{"forecast": {"level": "drawn"}}]),
    ("parallel", 0.3, [{"parallel": {"descent": one}} for one in DESCENTS]),
    ("parallel", 0.03, [{"parallel": {"descent": "ftrl", "l1": 0.1}}]),
    ("parallel", 0.3, [{"parallel": {"codec": one}} for one in (*CODECS, "powersgd:1")]),
    ("parallel", 0.1, [{"parallel": {"accumulate": 2}}, {"parallel": {"backups": 1}}, {"train": {"clip_norm": 1.0}}]),
    ("collective", 0.25, [{"parallel": {"outer": {"lr": 0.7, **one}}} for one in (
        {}, {"delay": 1}, {"fragments": 2}, {"nesterov": False}, {"fragments": 2, "delay": 1}, {"beta": 0.0})]),
    ("collective", 0.3, [{"parallel": {"bucket": 24}}, {"parallel": {"overlap": True}}, {"parallel": {"bucket": 0}}]),
    ("parameter-server", 1.0, [{"parallel": {"server": {"servers": servers, "staleness": late}}}
                               for servers in (1, 2, 3) for late in (0, 0, 1, "async")]),
    ("parameter-server", 0.5, [{"parallel": {"server": one}} for one in (
        {"replication": 2}, {"placement": "tensors"}, {"damp": True}, {"virtual_nodes": 2}, {"pull_codec": "bf16"},
        {"pull_codec": "int8:4"}, {"filters": ["key-cache"]}, {"filters": ["threshold:0.01", "key-cache"]},
        {"filters": ["random-skip:0.5"]}, {"filters": ["kkt"]}, {"n_fetch": 2, "n_push": 2}, {"n_push": 3})]),
)  # fmt: skip
"""(what an experiment needs to have, how often, one of these): additions to an experiment, one row after the other."""

NETWORKS: Choice = (
    {"latency": 0.1, "jitter": 0.02}, {"bandwidth": 1e6, "summing": 1e-6}, {"training": 0.3, "speed_spread": 0.5},
    {"per_example": 0.001, "training_jitter": 0.2}, {"downlink": 1e5}, {"detection": 0.1},
    {"classes": [{"nodes": "0-1", "slower": 2.0, "latency": 0.03}]},
    {"classes": [{"nodes": "0", "bandwidth": 1e4, "downlink": 1e4}]},
)  # fmt: skip
FAULTS: Choice = (
    {"kind": "drop", "probability": 0.2}, {"kind": "drop", "start": 0.1, "stop": 0.4},
    {"kind": "drop", "links": [[0, 1]]}, {"kind": "duplicate", "probability": 0.3},
    {"kind": "delay", "probability": 0.3, "seconds": 0.3}, {"kind": "reorder", "probability": 0.5, "seconds": 0.2},
    {"kind": "flap", "seconds": 0.4}, {"kind": "flap", "seconds": 3, "links": [[0, 1]], "stop": 9},
    {"kind": "partition", "groups": [[0, 1]], "start": 0.1, "stop": 3.0}, {"kind": "partition", "groups": [[0], [1]]},
    {"kind": "slow", "factor": 3}, {"kind": "slow", "factor": 50, "start": 0.2, "stop": 1.0},
    {"kind": "crash", "after": 0.2, "peers": [0]}, {"kind": "crash", "start": 0.15, "peers": [1]},
    {"kind": "crash", "after": 0.3, "every": 0.7, "stop": 3.0, "peers": [0]}, {"kind": "crash", "after": 1, "every": 1},
    {"kind": "sleep", "seconds": 1.0, "peers": [0]}, {"kind": "sleep", "start": 0.1, "stop": 2.0, "peers": [1]},
)  # fmt: skip


UNDRAWN = (
    "data.buckets", "data.scale", "data.agreed", "data.missing", "data.where", "data.categories", "data.columns",
    "data.file", "data.suppress", "data.levels", "data.groups", "data.site_scores", "task.exchange", "train.compile",
    "train.processes", "train.parallel", "train.zero", "train.offload", "train.compression", "train.mesh",
    "train.microbatches", "train.count_lost", "simulation.inside", "data.common", "model.sources", "model.formula",
    "simulation.racks",
)  # fmt: skip
"""Keys of sites' own tables, of loops, and of several processes or a GPU for one participant; those of unlike models,
of which tests/plans/test_unlike_models.py compares the engines."""


class _Dice:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, *of: Any) -> Any:
        return self.random.choice(of)

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def number(self, first: int, last: int) -> int:
        return self.random.randint(first, last)


def experiment(seed: int) -> Content:
    """Return the experiment of a seed."""
    dice = _Dice(seed)
    made: Content = {"rounds": dice.number(3, 5), "seed": dice.number(1, 99), "eval": {"every": dice.one(1, 2, 10)}}
    add(made, dice.one(*TASKS))
    add(made, dice.one(_gossip, _federated, _parallel)(dice))
    for needed, p, choice in ROWS:
        if dice.chance(p) and needed in {"", *_kinds(made)}:
            add(made, dice.one(*choice))
    if dice.chance(0.2):
        made["simulation"] = dict(dice.one(*NETWORKS))
    if dice.chance(0.25):
        made["faults"] = [_fault(dice) for _ in range(dice.one(1, 1, 2))]
    return made


def add(made: Content, more: Mapping[str, Any]) -> None:
    """Add keys to an experiment, section by section; None takes a key away."""
    for key, value in more.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, Mapping):
            add(made.setdefault(key, {}), value)
        else:
            made[key] = value


def _kinds(made: Content) -> set[str]:
    """What an experiment has, for ROWS."""
    method = made.get("parallel", {}).get("method", "")
    found = {*made, method, made.get("coordinator", {}).get("algorithm", ""), made.get("task", {}).get("kind", "")}
    return found | ({"learned"} if "data" in made else set()) | ({"collective"} if method in COLLECTIVES else set())


def _gossip(dice: _Dice) -> Content:
    name = dice.one(*GOSSIP)
    graph: Content = {"graph": dice.one(*GRAPHS), "n": dice.number(2, 7)}
    if name == "relaysgd":
        graph["graph"] = dice.one("path", "star", "tree")
    elif name == "window-doubling":
        graph["graph"] = name
    elif name.startswith("push") and dice.chance(0.5):
        graph["graph"] = dice.one(*DIRECTED)
    elif dice.chance(0.25):
        graph = {"graph": dice.one(*SIZED)}
    if name == "d2":
        graph["weights"] = "lazy"
    elif dice.chance(0.4) and not name.startswith(("push", "relay", "window")):
        graph["weights"] = dice.one(*WEIGHTS)
    return {"topology": graph, "algorithm": _with_options(dice, name, "name")}


def _federated(dice: _Dice) -> Content:
    return {"coordinator": {"clients": dice.number(2, 7), **_with_options(dice, dice.one(*FEDERATED), "algorithm")}}


def _parallel(dice: _Dice) -> Content:
    method = dice.one(*COLLECTIVES, "mapreduce", "lbfgs", "hogwild", *("parameter-server",) * 4)
    workers = 1 if method == "hogwild" else dice.number(1, 6)  # more of them race, in processes
    return {"parallel": {"workers": workers, "method": method}}


def _with_options(dice: _Dice, name: str, key: str) -> Content:
    options = dict(dice.one(*OPTIONS.get(name, [{}])))
    return {key: name, **({"options": options} if options else {})}


def _fault(dice: _Dice) -> Content:
    """Return a fault; some are of nodes that are not there."""
    fault = dict(dice.one(*FAULTS))
    if not {"peers", "links", "groups", "every"} & fault.keys() and dice.chance(0.6):
        fault["peers"] = [dice.number(0, 4)]
    return fault
