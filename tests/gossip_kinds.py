"""One peer of every kind of gossip machine, on the complete graph of four, and what may be said to each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.algorithms.gossip.push_sum import PushSum
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Checkpoint
from fedgossip.protocols.gossip import async_gossip, sync_gossip
from fedgossip.protocols.gossip.async_gossip import AsyncGossip, AsyncSettings
from fedgossip.protocols.gossip.awaited_round import SyncSettings
from fedgossip.protocols.gossip.lifecycle import Lifecycle
from fedgossip.protocols.gossip.pairing import UniformPartner
from fedgossip.protocols.gossip.sync_gossip import SyncGossip
from fedgossip.protocols.private_gossip import PrivateGossip
from fedgossip.protocols.push_sum import push_peer
from fedgossip.protocols.push_sum.push_peer import PushSettings
from fedgossip.protocols.push_sum.push_sum import AsyncPushSum, SyncPushSum
from fedgossip.secure.pairs import Grid, SeededPairs
from fedgossip.topology import build, resolve

SCHEMA, N = "s", 4
Kind = Lifecycle[Any]
Make = Callable[[int, int, Checkpoint | None], Kind]
"""(node, rounds, from where to go on)."""


def vector(*values: float) -> Vector:
    return frozen(np.array(values, np.float32))


def start(node: int) -> Vector:
    return vector(node, 2 * node)


def _mixing(weights: str = "metropolis") -> Any:
    return build(resolve("complete", N), weights)


def _sync(node: int, rounds: int, resumed: Checkpoint | None) -> Kind:
    return SyncGossip(node, _mixing(), DSGD(), start(node), SCHEMA, SyncSettings(rounds), resumed)


def _private(node: int, rounds: int, resumed: Checkpoint | None) -> Kind:
    pairs, settings = SeededPairs(node, 1), SyncSettings(rounds)
    return PrivateGossip(node, _mixing(), start(node), SCHEMA, settings, Grid(8.0), pairs, resumed)


def _async(node: int, rounds: int, resumed: Checkpoint | None) -> Kind:
    partners, rule = [j for j in range(N) if j != node], UniformPartner(1, node)
    return AsyncGossip(node, partners, rule, DSGD(), start(node), SCHEMA, AsyncSettings(rounds), resumed)


def _push(node: int, rounds: int, resumed: Checkpoint | None) -> Kind:
    return SyncPushSum(node, _mixing("push"), PushSum(), start(node), SCHEMA, PushSettings(rounds), resumed)


def _async_push(node: int, rounds: int, resumed: Checkpoint | None) -> Kind:
    return AsyncPushSum(node, _mixing("push"), PushSum(), start(node), SCHEMA, PushSettings(rounds), resumed)


KINDS: Mapping[str, Make] = {
    "sync": _sync,
    "private": _private,
    "async": _async,
    "push-sum": _push,
    "async push-sum": _async_push,
}


def resume_point(kind: str, round: int, model: Vector) -> Checkpoint:
    """From where a later life of this kind goes on."""
    if "push" in kind:
        return push_peer.resume_point(PushSum(), round, model)
    if kind == "async":
        return async_gossip.resume_point(DSGD(), round, model)
    return sync_gossip.resume_point(DSGD(), round, model)
