"""The comparable paradigms, one per row (also an all-reduce with a codec, "ring+top-k:0.01"); and the check whether
compression pays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, LinearCodec, VectorLayout
from fedgossip.algorithms.codecs.low_rank import low_rank_of
from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.collectives.names import COLLECTIVES, GATHERS, EqualLinks, all_gather
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.core.messages import TAIL
from fedgossip.lab.costs.base import (
    Cost,
    RackedLinks,
    TrainingTimes,
    all_reduce_in_turn,
    neighbours,
    pairs_in_turn,
    through_servers,
    through_servers_alone,
    tree_in_racks,
)
from fedgossip.lab.costs.methods import (
    WHOLE,
    Buckets,
    collective,
    gathered,
    gossip,
    pairs,
    served,
    served_ahead,
    served_alone,
)
from fedgossip.topology.schedules.schedules import Schedule


def _collective(name: str) -> Paradigm:
    return Paradigm(
        "parallel",
        {"parallel": {"method": name}},
        lambda at: collective(name, at.size, at.links, at.times, buckets=at.buckets),
        lambda at: _reduction(name, at),
        f"all-reduce, {name}",
        every_step=True,
        in_racks=True,
        extra=TAIL,
        ignores=("server", "backups", "codec"),
    )


def _reduction(name: str, at: Setting) -> float | None:
    if isinstance(at.links, RackedLinks):
        return tree_in_racks(at.workers, at.size, at.links) if name == "tree" and not at.buckets.overlap else None
    return all_reduce_in_turn(name, at.workers, at.size, at.links, at.training)


def _server(staleness: int | str, words: str) -> Paradigm:
    synchronous, bounded = staleness == 0, staleness != "async"
    return Paradigm(
        "parallel",
        {"parallel": {"method": "parameter-server"}, "parallel.server": {"staleness": staleness}},
        lambda at: (served if synchronous else served_ahead if bounded else served_alone)(
            at.size, at.links, at.times, at.parts
        ),
        _through_servers if synchronous else _through_servers_alone,
        words,
        every_step=True,
        by_steps=synchronous,
        ignores=("bucket", "backups", "overlap", "codec"),
    )


def _through_servers(at: Setting) -> float | None:
    """Return None: no closed form, the order of service at the servers matters."""
    if len(at.parts) > 1 and math.isfinite(at.links.down):
        return None
    return through_servers(at.workers, at.size, at.links, max(at.parts))


def _through_servers_alone(at: Setting) -> float:
    return through_servers_alone(at.workers, at.size, at.links, max(at.parts), at.training)


def _gossip(mode: str, words: str) -> Paradigm:
    waits = mode == "sync"
    return Paradigm(
        "topology",
        {"algorithm": {"mode": mode}},
        lambda at: gossip(at.size, at.links, at.times, _graph(at)) if waits else pairs(at.size, at.links, at.times),
        _among_neighbours if waits else lambda at: pairs_in_turn(at.size, at.links, at.training),
        words,
        by_steps=waits,
    )


def _among_neighbours(at: Setting) -> float | None:
    """Return None through downlinks: no closed form, two messages may reach a peer at once."""
    return None if math.isfinite(at.links.down) else neighbours(_degree(at), at.size, at.links)


def _graph(at: Setting) -> Schedule:
    assert at.schedule is not None
    return at.schedule


def _degree(at: Setting) -> float:
    graph = _graph(at)
    rounds = range(graph.period or 8)
    return max(sum(len(graph.mixing(r).targets(node)) for r in rounds) / len(rounds) for node in range(graph.n))


@dataclass(frozen=True)
class Setting:
    """The setting of a predicted round: `size` bytes of a model; the graph, if any."""

    size: int
    links: EqualLinks
    times: TrainingTimes
    schedule: Schedule | None = None
    parts: tuple[float, ...] = (1.0,)
    """Share of the model on each server."""
    buckets: Buckets = WHOLE
    element: int = 4
    """Bytes of one of its elements."""

    @property
    def workers(self) -> int:
        return len(self.times.known)

    @property
    def racked(self) -> bool:
        return isinstance(self.links, RackedLinks)

    @property
    def training(self) -> float:
        return self.times.mean


@dataclass(frozen=True)
class Paradigm:
    """One way to train in parallel."""

    section: str
    """Its section of the file, which is its kind of run."""
    sets: Mapping[str, Mapping[str, Any]]
    """Keys that it sets, by section of the file."""
    cost: Callable[[Setting], Cost]
    formula: Callable[[Setting], float | None]
    """The textbook's seconds of a round in addition to training; None without a closed form."""
    words: str
    """Description for the user."""
    every_step: bool = False
    """Whether a round is one batch of each worker instead of a local training."""
    extra: int = 0
    """Number of elements sent in addition to a model."""
    in_racks: bool = False
    """Whether `formula` holds over racks too."""
    by_steps: bool = True
    """Whether `cost` follows a round's messages through the links; without, it is a rate over equal links."""
    one_participant: bool = False
    """Whether the workers are processes of one participant with all the examples."""
    ignores: tuple[str, ...] = ()
    """Keys of its section that only other paradigms use."""


WARM = 1 << 20
"""A round after the warm-up of every codec."""


def coded_paradigm(dense: Paradigm, method: str, codec_name: str) -> Paradigm:
    """Return the paradigm of a collective with coded gradients.  Raises ConfigError for an unsupported one."""
    if low_rank_of(codec_name) is not None:
        text = f"{method}+{codec_name}: its bytes follow from the shapes of the model's tensors, which no cost knows"
        advice = f"Run the file with --set parallel.codec={codec_name}; with --dry-run it prints its bytes."
        raise ConfigError(text, advice)
    codec = make_codec(codec_name)
    if not isinstance(codec, LinearCodec) and method not in GATHERS:
        text = f"{method}+{codec_name}: payloads of {codec_name} cannot be added, and {method} adds at every step"
        raise ConfigError(text, f"Take {' or '.join(f'{one}+{codec_name}' for one in GATHERS)}.")
    return replace(
        dense,
        sets={"parallel": {"method": method, "codec": codec_name}},
        cost=lambda at: _cost(method, codec, at),
        formula=lambda at: _formula(method, codec, at),
        in_racks=False,
        words=f"{dense.words}, gradients by {codec_name}",
    )


def _layout(at: Setting) -> VectorLayout:
    return VectorLayout.of_length(at.size // at.element - TAIL, np.dtype(f"f{at.element}"))


def _cost(method: str, codec: Codec, at: Setting) -> Cost:
    layout = _layout(at)
    if isinstance(codec, LinearCodec):
        size = (codec.elements(layout.length) + TAIL) * at.element
        return collective(method, size, at.links, at.times, at.element, replace(WHOLE, elements=at.buckets.elements))
    return gathered(method, codec.size(layout, WARM), at.size, at.links, at.times)


def _formula(method: str, codec: Codec, at: Setting) -> float | None:
    layout = _layout(at)
    if isinstance(codec, LinearCodec):
        size = (codec.elements(layout.length) + TAIL) * at.element
        return all_reduce_in_turn(method, at.workers, size, at.links, at.training)
    return all_gather(method, at.workers, codec.size(layout, WARM), at.size, at.links)


def dense_of(name: str) -> str | None:
    """Return the uncoded counterpart of a coded paradigm; None for others."""
    method, plus, _ = name.partition("+")
    return method if plus and method in COLLECTIVES else None


@cache
def codec_seconds(name: str, length: int, workers: int) -> float:
    """Return the processor seconds of a worker's codec per round on this machine: one encoding, and all decodings."""
    codec = make_codec(name.partition("+")[2])
    vector = np.random.default_rng(0).standard_normal(length).astype(np.float32)
    layout, turn = VectorLayout.of(vector), CodecTurn(0, 0, WARM)
    payload = codec.encode(vector, layout, turn)
    decoded = 1 if isinstance(codec, LinearCodec) else workers
    decoding = _quickest(lambda: codec.decode(payload, layout, turn))
    return _quickest(lambda: codec.encode(vector, layout, turn)) + decoded * decoding


def _quickest(work: Callable[[], object]) -> float:
    found = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def formula_of(paradigm: Paradigm, at: Setting) -> float | None:
    """Return the seconds of a round by the closed form, without training; None where none holds, as of training times
    that differ.
    """
    alike = at.times.constant and min(at.times.known) == max(at.times.known)
    return paradigm.formula(at) if alike and (paradigm.in_racks or not at.racked) else None


PARADIGMS: Mapping[str, Paradigm] = {
    **{name: _collective(name) for name in COLLECTIVES},
    "mapreduce": Paradigm(
        "parallel",
        {"parallel": {"method": "mapreduce"}},
        lambda at: served(at.size, at.links, at.times),
        lambda at: through_servers(at.workers, at.size, at.links),
        "a server that sums every step",
        every_step=True,
        ignores=("bucket", "server", "overlap", "codec"),
    ),
    "parameter-server": _server(0, "servers that wait for all"),
    "parameter-server:async": _server("async", "asynchronous servers"),
    "hogwild": Paradigm(
        "parallel",
        {"parallel": {"method": "hogwild"}},
        lambda at: Cost(at.times.mean, 0.0, 0.0, 0.0, 0),
        lambda _: 0.0,
        "processes of one machine without waiting",
        one_participant=True,
        ignores=("bucket", "server", "backups", "overlap", "codec"),
    ),
    "fedavg": Paradigm(
        "coordinator",
        {"coordinator": {"algorithm": "fedavg"}},
        lambda at: served(at.size, at.links, at.times),
        lambda at: through_servers(at.workers, at.size, at.links),
        "a coordinator that averages local trainings",
    ),
    "gossip": _gossip("sync", "peers that average with their neighbours"),
    "gossip:async": _gossip("async", "peers that average in pairs without waiting"),
}


def paradigm_of(name: str) -> Paradigm:
    """Return the paradigm of a name.  Raises ConfigError.

    "parameter-server:3" has staleness 3, "gossip@complete" that graph, "ring+top-k:0.01" that codec.
    """
    found = PARADIGMS.get(name)
    if (method := dense_of(name)) is not None:
        return coded_paradigm(PARADIGMS[method], method, name.partition("+")[2])
    gossips, at, graph = name.partition("@")
    if at and graph and gossips in ("gossip", "gossip:async"):
        own = PARADIGMS[gossips]
        return replace(own, sets={**own.sets, "topology": {"graph": graph}}, words=f"{own.words}: {graph}")
    server, _, clocks = name.partition(":")
    if found is None and server == "parameter-server" and clocks.isascii() and clocks.isdecimal():
        return _server(int(clocks), f"servers that let a worker be {int(clocks)} clocks ahead")
    if found is None:
        raise ConfigError(f"there is no paradigm {name!r}", nearest(name, PARADIGMS))
    return found
