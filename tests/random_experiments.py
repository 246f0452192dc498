"""Random experiments that are mostly valid: any method, graph, task and condition beside any other, and tiny.

Where two of them exclude each other the plan refuses; that is a result too, see test_random_experiments.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

Content = dict[str, Any]

GRAPHS = (
    "ring", "path", "star", "complete", "exponential", "circulant:1", "tree", "erdos-renyi:0.7", "barabasi-albert:1",
    "small-world:2,0.3", "one-peer-exponential", "base:1", "random-matching", "el-local:1", "equi-dynamic",
    "matcha:0.5:ring", "leja:ring", "shuffled:ring", "every:2:complete:ring",
)  # fmt: skip
SIZED = ("torus:2x3", "grid:1x4", "barbell:3,0", "paw", "boyd-8", "k2-3", "spanning-tree:boyd-8")
"""Graphs whose name says how many nodes they have."""
DIRECTED = ("directed-exponential", "debruijn:2", "kautz:2", "equi-static:2", "one-peer-exponential", "el-local:2")
WEIGHTS = ("metropolis", "max-degree", "uniform", "lazy", "best-constant", "fmmc", "fdla", "sinkhorn", "inverse")
GOSSIP = (
    "dsgd", "dsgd", "dsgd", "push-sum", "push-diging", "gradient-tracking", "d2", "dsgdm", "qg-dsgdm", "decentlam",
    "two-tap", "slowmo", "choco", "diloco", "relaysgd", "window-doubling",
)  # fmt: skip
FEDERATED = (
    "fedavg", "fedavg", "fedsgd", "fedprox", "scaffold", "fednova", "fedavgm", "fedadam", "fedyogi", "fedadagrad",
    "fedbuff", "median", "trimmed-mean", "krum", "geometric-median", "clipped-mean",
)  # fmt: skip
COLLECTIVES = ("ring", "ring-naive", "halving-doubling", "recursive-doubling", "tree", "star", "all-to-all")
CODECS = ("bf16", "fp16", "int8:16", "top-k:0.5", "random-k:0.5", "qsgd:4", "terngrad", "sign")


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
    """Return the experiment of a seed: the same ones for ever."""
    dice = _Dice(seed)
    made: Content = {"rounds": dice.number(3, 5), "seed": dice.number(1, 99), "eval": {"every": dice.one(1, 2, 10)}}
    made |= _task(dice)
    return dice.one(_gossip, _federated, _parallel)(dice, made)


def _task(dice: _Dice) -> Content:
    kind = dice.one("quadratic", "quadratic", "quadratic", "averaging", "learned")
    if kind != "learned":
        task = {"kind": kind, "dim": dice.one(1, 5, 33), "dtype": dice.one("float32", "float64")}
        if kind == "quadratic":
            task |= {"sigma": dice.one(0.0, 0.1), "placement": dice.one("smooth", "alternating", "random")}
        return {"task": task, "train": {"lr": 0.1}}
    train: Content = {"device": "cpu", "lr": 0.05, "batch_size": dice.one(3, 16), "local_steps": dice.one(1, 2)}
    if dice.chance(0.3):
        train["schedule"] = dice.one("cosine", "step:2,0.5", "warmup:2,cosine")
    if dice.chance(0.2):
        train |= dice.one({"momentum": 0.9}, {"optimizer": "adam"}, {"weight_decay": 0.01}, {"clip_norm": 1.0})
    if dice.chance(0.1):
        train["personal"] = dice.one("layer1*", "*bias*", "nothing*")
    partition = dice.one({}, {"partition": {"kind": "size-skewed", "exponent": 1.0}})
    task = {"kind": "regression", "loss": dice.one("mse", "huber")}
    return {
        "data": {"source": "diabetes", **partition},
        "model": {"source": dice.one("softmax", "mlp:10-3-1")},
        "task": task,
        "train": train,
    }


def _gossip(dice: _Dice, made: Content) -> Content:
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
    algorithm: Content = {"name": name}
    options: dict[str, Sequence[Content]] = {
        "dsgd": [{}, {"order": "cta"}],
        "dsgdm": [{}, {"beta": 0.5, "nesterov": True}],
        "slowmo": [{"every": 2}, {"base": "gradient-tracking", "every": 2}, {"base": "dsgdm", "every": 3}],
        "choco": [{"codec": "top-k:0.5"}, {"codec": "sign"}, {"codec": "int8:16", "gamma": 0.2}],
        "diloco": [{}, {"fragments": 2}, {"codec": "int8:16"}, {"nesterov": False, "lr": 0.5}],
    }
    if name in options:
        algorithm["options"] = dice.one(*options[name])
    if name == "dsgd" and dice.chance(0.2):
        algorithm |= dice.one({"mode": "async"}, {"private": True})
    if dice.chance(0.15):
        algorithm["combine"] = dice.one("clipped", "trimmed-mean", "median", "geometric-median", "nna")
        if dice.chance(0.4):
            made["adversary"] = {"peers": [dice.number(0, 3)], "attack": dice.one("sign-flip", "noise", "ipm", "alie")}
    made |= {"topology": graph, "algorithm": algorithm}
    return _conditions(dice, made, graph.get("n", 4))


def _federated(dice: _Dice, made: Content) -> Content:
    n, name = dice.number(2, 7), dice.one(*FEDERATED)
    section: Content = {"clients": n, "algorithm": name}
    if dice.chance(0.6):
        section["secure"] = {"on": False}
    elif dice.chance(0.3):
        section["secure"] = dice.one({"bound": 4.0}, {"bits": 12}, {"bits": 20, "weight_max": 500})
    if name != "fedbuff":
        section |= dice.one({}, {}, {"cohort": dice.number(1, n)}, {"participation": 0.5}, {"sampling": "size"})
        if dice.chance(0.1):
            section |= dice.one({"over_selection": 1.5}, {"sampling": "poisson", "participation": 0.5})
    if dice.chance(0.3):
        section["codec"] = dice.one(*CODECS)
    if dice.chance(0.2):
        section["min_clients"] = dice.number(1, n)
    made["coordinator"] = section
    return _conditions(dice, made, n + 1)


def _parallel(dice: _Dice, made: Content) -> Content:
    m, method = dice.number(1, 6), dice.one(*COLLECTIVES, "mapreduce", "parameter-server", "parameter-server")
    section: Content = {"workers": m, "method": method}
    if dice.chance(0.3):
        section["descent"] = dice.one("sgd", "adam", "adagrad", "lamb", "ftrl")
    elif method in COLLECTIVES and dice.chance(0.3):
        section["outer"] = {"lr": 0.7, **dice.one({}, {"delay": 1}, {"fragments": 2}, {"nesterov": False})}
    if dice.chance(0.3):
        section["codec"] = dice.one(*CODECS, "powersgd:1", "dgc:0.5")
    if method == "parameter-server":
        section["server"] = {"servers": dice.number(1, 3), "staleness": dice.one(0, 0, 1, "async")}
        if dice.chance(0.3):
            section["server"]["replication"] = 2
    elif method in COLLECTIVES and dice.chance(0.3):
        section |= dice.one({"bucket": 24}, {"overlap": True})
    made["parallel"] = section
    return _conditions(dice, made, m)


def _conditions(dice: _Dice, made: Content, n: int) -> Content:
    """Add what the network, the processors and faults are like; some are of nodes that are not there."""
    if dice.chance(0.25):
        made["simulation"] = dice.one(
            {"latency": 0.1, "jitter": 0.02},
            {"bandwidth": 1e6, "summing": 1e-6},
            {"training": 0.3, "speed_spread": 0.5},
            {"classes": [{"nodes": f"0-{max(0, n // 2 - 1)}", "slower": 2.0, "latency": 0.03}]},
        )
    if dice.chance(0.25):
        peers = {"peers": [dice.number(0, n)]} if dice.chance(0.7) else {}
        made["faults"] = [dice.one(
            {"kind": "drop", "probability": 0.2, **peers},
            {"kind": "duplicate", "probability": 0.3, **peers},
            {"kind": "delay", "probability": 0.3, "seconds": 0.3, **peers},
            {"kind": "flap", "seconds": 0.4, **peers},
            {"kind": "slow", "factor": 3, **peers},
            {"kind": "crash", "after": 0.2, "peers": [0]},
            {"kind": "sleep", "seconds": 1.0, "peers": [0]},
            {"kind": "crash", "after": 0.3, "every": 0.7, "stop": 3.0, "peers": [0]},
        )]  # fmt: skip
    return made
