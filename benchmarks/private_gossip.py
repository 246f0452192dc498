"""What private gossip costs a peer per round, beside plain gossip and beside a plain AES-256-CTR keystream.

    python benchmarks/private_gossip.py [--turns 15] [--parameters 1000000] [--degrees 3,4] [--json]

One peer of a complete graph with d neighbours; the real machines are told that training has ended and what has come, as
over a link, and the mixed vectors are compared.  One thread, no network, CPU time of the process, medians over turns:

    plain      a round of SyncGossip: the finite check of d models, and their ordered sum
    private    a round of PrivateGossip: integers, masks for d neighbours, the sum of d parts, and back
    masks      of that: d (d - 1) streams, added to d vectors
    keystream  as many bytes of AES-256-CTR, made and thrown away, in blocks as large, in the same turn

The overhead is private less plain; ratios are to the keystream, within a turn.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from crew import machine

from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import PeerJoined, Received, Send, Started, Trained
from fedgossip.core.messages import Masked, Model
from fedgossip.protocols import private_gossip
from fedgossip.protocols.gossip.awaited_round import SyncSettings
from fedgossip.protocols.gossip.sync_gossip import SyncGossip
from fedgossip.protocols.private_gossip import PrivateGossip
from fedgossip.secure import fixed_point
from fedgossip.secure.pairs import Grid, SeededPairs
from fedgossip.secure.primitives import keystream
from fedgossip.topology import Mixing, build, resolve

SETTINGS, GRID = SyncSettings(rounds=10**9), Grid(64.0)

PROTOTYPE_MS = {3: 7.0, 4: 20.0}
"""Of 1M parameters, where the keystream ran at 7.0 GB/s: the masks of all d vectors."""

PROTOTYPE_GB = 7.0


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    value = call()
    return time.process_time() - began, value


def floor_seconds(words: int, streams: int) -> float:
    """The keystream alone."""
    zeros, into = bytes(4 * fixed_point.BLOCK), bytearray(4 * fixed_point.BLOCK)

    def run() -> None:
        for _ in range(streams):
            stream = keystream(os.urandom(32))
            for start in range(0, words, fixed_point.BLOCK):
                size = 4 * min(fixed_point.BLOCK, words - start)
                stream.update_into(memoryview(zeros)[:size], memoryview(into)[:size])

    return timed(run)[0]


class Peers:
    """All peers of a complete graph, trained and at their first exchange; the first is the one that is timed."""

    def __init__(self, degree: int, parameters: int) -> None:
        self.n = degree + 1
        self.mixing: Mixing = build(resolve("complete", self.n), "metropolis")
        random = np.random.default_rng(degree)
        self.models = [frozen(random.normal(size=parameters).astype(np.float32)) for _ in range(self.n)]

    def private(self, node: int) -> PrivateGossip:
        pairs = SeededPairs(node, 1)
        return PrivateGossip(node, self.mixing, self.models[node], "s", SETTINGS, GRID, pairs)

    def plain(self, node: int) -> SyncGossip[Vector]:
        return SyncGossip(node, self.mixing, DSGD(), self.models[node], "s", SETTINGS)

    def begun(self, make: Callable[[int], Any], node: int) -> Any:
        peer = make(node)
        peer.handle(Started(), 0)
        for other in self.mixing.partners(node):
            peer.handle(PeerJoined(other), 0)
        return peer

    def round(self, make: Callable[[int], Any]) -> tuple[float, Vector]:
        """Return what a round took peer 0, and its mixed model."""
        heard = []
        for sender in range(1, self.n):
            (message,) = (
                e.message
                for e in self.begun(make, sender).handle(Trained(0, None), 0)
                if isinstance(e, Send) and e.to == 0
            )
            copy = message.vectors[0].copy()  # as it comes over a link: writeable, the receiver's own
            kind = Masked if isinstance(message, Masked) else Model
            heard.append(Received(sender, kind(0, "s", (copy,))))
        peer = self.begun(make, 0)

        def run() -> None:
            peer.handle(Trained(0, None), 0)
            while heard:
                peer.handle(heard.pop(), 0)

        seconds, _ = timed(run)
        return seconds, peer.learner.model


class TimedMasks:
    """Stands in the place of the machine's `masked`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._real = private_gossip.masked

    def __call__(self, *arguments: Any) -> Any:
        seconds, words = timed(lambda: self._real(*arguments))
        self.seconds += seconds
        return words


def measure(degree: int, parameters: int, turns: int) -> dict[str, Any]:
    """Return medians in milliseconds, and ratios."""
    peers, rows = Peers(degree, parameters), []
    masks = private_gossip.masked = TimedMasks()  # type: ignore[assignment]
    for turn in range(turns + 1):
        floor = floor_seconds(parameters, degree * (degree - 1))
        plain, mixed = peers.round(peers.plain)
        masks.seconds = 0.0
        private, hidden = peers.round(peers.private)
        assert np.abs(mixed - hidden).max() <= degree * GRID.unit + 1e-6, "not the same round"
        masked = masks.seconds / peers.n  # every peer masked
        if turn:  # the first one warms memory up
            rows.append({"plain": plain, "private": private, "masks": masked, "keystream": floor})
    private_gossip.masked = masks._real
    found = {f"{name} ms": 1e3 * median(row[name] for row in rows) for name in rows[0]}
    found["overhead ms"] = 1e3 * median(row["private"] - row["plain"] for row in rows)
    found["masks ratio"] = median(row["masks"] / row["keystream"] for row in rows)
    found["overhead ratio"] = median((row["private"] - row["plain"]) / row["keystream"] for row in rows)
    streams = 4e-6 * parameters * degree * (degree - 1) / PROTOTYPE_GB
    found["prototype ratio"] = PROTOTYPE_MS.get(degree, float("nan")) * parameters / 1e6 / streams
    return {"degree": degree, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--degrees", default="3,4")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(int(degree), options.parameters, options.turns) for degree in options.degrees.split(",")]
    if options.json:
        print(json.dumps({"machine": machine(), "parameters": options.parameters, "rows": rows}, indent=2))
        return
    print(f"{machine()}; {options.parameters:,} parameters, medians of {options.turns} turns")
    for name in rows[0]:
        print(f"{name:16}", *(f"{row[name]:10.2f}" for row in rows))


if __name__ == "__main__":
    main()
