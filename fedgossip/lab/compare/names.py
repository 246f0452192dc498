"""The comparable paradigms, a line each: their section of the file, and the cost of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.core.messages import TAIL
from fedgossip.lab.compare.setting import Paradigm, Setting, coded_paradigm, dense_of
from fedgossip.lab.costs.base import Cost
from fedgossip.lab.costs.formulas import (
    all_reduce_in_turn,
    neighbours,
    pairs_in_turn,
    through_servers,
    through_servers_alone,
)
from fedgossip.lab.costs.methods import collective, gossip, pairs, served, served_ahead, served_alone
from fedgossip.topology.schedules.schedules import Schedule


def _collective(name: str) -> Paradigm:
    return Paradigm(
        "parallel",
        {"parallel": {"method": name}},
        lambda at: collective(name, at.size, at.links, at.times, buckets=at.buckets),
        lambda at: all_reduce_in_turn(name, at.workers, at.size, at.links, at.training),
        f"all-reduce, {name}",
        every_step=True,
        extra=TAIL,
        ignores=("server", "backups", "codec"),
    )


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
        ignores=("bucket", "backups", "overlap", "codec"),
    )


def _through_servers(at: Setting) -> float | None:
    """Several servers by the workers' downlinks have no closed form: it depends on who is served in which order."""
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
        lambda at: (
            neighbours(_degree(at), at.size, at.links) if waits else pairs_in_turn(at.size, at.links, at.training)
        ),
        words,
    )


def _graph(at: Setting) -> Schedule:
    assert at.schedule is not None
    return at.schedule


def _degree(at: Setting) -> float:
    """Return the largest mean degree of a node over the first rounds."""
    graph = _graph(at)
    rounds = range(graph.period or 8)
    return max(sum(len(graph.mixing(r).targets(node)) for r in rounds) / len(rounds) for node in range(graph.n))


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
    "parameter-server:async": _server("async", "servers that wait for nobody"),
    "hogwild": Paradigm(
        "parallel",
        {"parallel": {"method": "hogwild"}},
        lambda at: Cost(at.times.mean, 0.0, 0.0, 0.0, 0),
        lambda _: 0.0,
        "processes of one machine that wait for nobody",
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
    "gossip:async": _gossip("async", "peers that average in pairs and wait for nobody"),
}


def paradigm_of(name: str) -> Paradigm:
    """Return the paradigm of a name.  Raises ConfigError.

    "parameter-server:3" is one of staleness 3, "gossip@complete" is gossip on that graph,
    "ring+top-k:0.01" is a ring with gradients coded by that codec.
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
