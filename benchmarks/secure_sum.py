"""Time of one secure sum, a client's and the coordinator's, beside a plain AES-256-CTR keystream of the same bytes.

    python benchmarks/secure_sum.py [--turns 3] [--only 10,100] [--json]

Up to 100 clients every setting runs the real steps, and every sum is checked, word by word; of 500 clients the masks of
one and the unmasking run alone, on secrets made for it (nothing is summed).  One thread.  What is timed:

    client       the masks of one client: all streams, added
    whole        one client from the invitation to its reveal: signatures, shares, seals and the hash of its vector too
    coordinator  from the last reveal to the sum: secrets put together and checked, all masks taken off, the hash
    adding       all masked vectors added to the sum as they come, without their hashes

The floor is the keystream of as many bytes as the masks have, nothing added, in blocks as large, in the same turn; the
ratio is time over floor, its median over turns.  CPU time of the process: other processes of the machine count little.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from crew import machine
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgossip.secure import client as client_steps
from fedgossip.secure import fixed_point, frames, graph, server, shamir
from fedgossip.secure.client import SecAggClient
from fedgossip.secure.fixed_point import FixedPoint, Quantised
from fedgossip.secure.primitives import keystream, public_of
from fedgossip.secure.server import Session, unmask
from fedgossip.secure.session import ParticipantRoster, Policy, RosterMember, model_hash, proposal


@dataclass(frozen=True)
class Setting:
    n: int
    words: int
    k: int
    drops: tuple[float, ...] = (0.0, 0.1, 0.3)
    prototype: tuple[float, ...] = ()
    """Ratios of the prototype: client, then the coordinator at each share of drop-outs (with its adding)."""

    @property
    def name(self) -> str:
        graph = "complete" if self.k == self.n - 1 else f"k = {self.k}"
        return f"n = {self.n}, {self.words // 1000}k, {graph}"


KEYSTREAM_GB = 7.0
"""GB/s of the keystream where the prototype was measured."""


def ratios(n: int, k: int, words: int, client_ms: float, *coordinator_ms: float) -> tuple[float, ...]:
    """The prototype's milliseconds as ratios to the keystream that it had."""

    def floor(streams: float) -> float:
        return streams * words * 4 / KEYSTREAM_GB / 1e6

    served = [ms / floor(streams_of(n, k, drop)) for ms, drop in zip(coordinator_ms, (0.0, 0.1, 0.3), strict=False)]
    return (client_ms / floor(k + 1), *served)


def streams_of(n: int, k: int, drop: float) -> float:
    """Masks that the coordinator takes off: one per survivor, one per pair of a survivor and one that dropped."""
    lost = round(n * drop)
    return (n - lost) + lost * k * (n - lost) / (n - 1)


SETTINGS = (
    Setting(10, 1_000_000, 9, prototype=ratios(10, 9, 1_000_000, 9, 12, 16, 22)),
    Setting(100, 1_000_000, 99, prototype=ratios(100, 99, 1_000_000, 65, 160, 1000, 2200)),
    Setting(100, 1_000_000, 34, (0.0, 0.1), ratios(100, 34, 1_000_000, 26, 160, 460)),
    Setting(500, 100_000, 499, prototype=ratios(500, 499, 100_000, 32, 120, 2400, 6200)),
)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    value = call()
    return time.process_time() - began, value


def floor_seconds(words: int, streams: int) -> float:
    """The keystream alone: as many streams, each as long, in blocks of the same size; at most 2 GB, scaled."""
    zeros, into = bytes(4 * fixed_point.BLOCK), bytearray(4 * fixed_point.BLOCK)
    sample = max(1, min(streams, 2_000_000_000 // (4 * words)))

    def run() -> None:
        for _ in range(sample):
            stream = keystream(os.urandom(32))
            for start in range(0, words, fixed_point.BLOCK):
                size = 4 * min(fixed_point.BLOCK, words - start)
                stream.update_into(memoryview(zeros)[:size], memoryview(into)[:size])

    return timed(run)[0] * streams / sample


class Cohort:
    """Keys, roster and clients of a setting; made once."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.keys = [Ed25519PrivateKey.generate() for _ in range(setting.n)]
        self.chief = Ed25519PrivateKey.generate()
        members = (RosterMember(key.public_key().public_bytes_raw(), "", "").signed(key.sign) for key in self.keys)
        self.roster = ParticipantRoster(tuple(members))
        bits = 24 if setting.n <= 100 else 20
        self.fixed = FixedPoint(setting.words - 3, 1.0, 1.0, 1, bits)
        self.policy = Policy(self.chief.public_key().public_bytes_raw(), "benchmark", self.fixed)
        self.model = model_hash(b"model")
        self.round = 0

    def sums(self) -> list[dict[str, float]]:
        """One session up to the shares, and from there on once for each share of clients that drop.

        Each goes on in a forked process: a step is used once, and cannot be copied in any other way.
        """
        self.round += 1
        session = OneSession(self)
        session.keys_and_shares()
        return [forked(lambda drop=drop: session.rest(drop)) for drop in self.setting.drops]


def forked(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return what `work` returns in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found: dict[str, float] = json.loads(answer.read() or "{}")
    os.waitpid(child, 0)
    assert found, "not the sum"
    return found


class OneSession:
    """A session moved by hand, and what each part of it took."""

    def __init__(self, cohort: Cohort) -> None:
        self.cohort, self.setting = cohort, cohort.setting
        self.whole = dict.fromkeys(range(cohort.setting.n), 0.0)
        self.masks: list[float] = []
        self.adding = 0.0
        self.steps: dict[int, Any] = {}

    def act(self, v: int, call: Callable[[], Any]) -> None:
        """Client v takes a step."""
        seconds, self.steps[v] = timed(call)
        self.whole[v] += seconds

    def keys_and_shares(self) -> None:
        c, n = self.cohort, self.setting.n
        d = proposal(c.roster, c.fixed, range(n), task_id="benchmark", round=c.round, model=c.model, k=self.setting.k)
        inviting = server.invite(c.roster, d, c.fixed, c.chief.sign)
        for v in range(n):
            one = SecAggClient(v, c.roster, c.policy, c.keys[v].sign, os.urandom)
            self.act(v, lambda one=one: one.join(inviting.frame, c.model))
            inviting.take(v, self.steps[v].frame)
        distributing = inviting.close()
        for v in range(n):
            step, frame = self.steps[v], distributing.frame_for(v)
            self.act(v, lambda step=step, frame=frame: step.share(frame))
            distributing.take(v, self.steps[v].frame)
        self.summing = distributing.close()

    def rest(self, drop: float) -> dict[str, float]:
        """Go on to the sum; the last share `drop` of the clients drop before they send their vector."""
        s = self.setting
        there = range(s.n - round(s.n * drop))
        expected = self.vectors(there)
        seconds, summed, streams = self.reveals(there)
        assert (summed.total == expected).all(), "not the sum"
        return {
            "client": median(self.masks),
            "client floor": floor_seconds(s.words, s.k + 1),
            "whole": median([self.whole[v] for v in there]),
            "coordinator": seconds,
            "adding": self.adding,
            "coordinator floor": floor_seconds(s.words, streams),
        }

    def vectors(self, there: range) -> fixed_point.Words:
        """Mask and add the vectors of those that are there; return the plain sum."""
        expected = np.zeros(self.setting.words, np.uint32)
        real = client_steps.add_masks
        client_steps.add_masks = lambda *args: self.masks.append(timed(lambda: real(*args))[0])  # type: ignore
        for v in there:
            values = np.random.default_rng(v).integers(0, 2**32, self.setting.words, np.uint32)
            expected += values
            given = Quantised(values, v.to_bytes(4, "big"))
            step, frame = self.steps[v], self.summing.frame_for(v)
            self.act(v, lambda step=step, frame=frame, given=given: step.mask(frame, given))
            self._upload(v)
        client_steps.add_masks = real
        return expected

    def _upload(self, v: int) -> None:
        intake = self.summing.take(v, self.steps[v].frame)
        for chunk in self.steps[v].chunks():
            intake.chunk(chunk)
        real = self.summing.add
        self.summing.add = lambda *args: self._timed_add(real, *args)
        intake.done()
        self.summing.add = real
        self.steps[v]._words = None  # all of them would be 400 MB at n = 100

    def _timed_add(self, real: Callable[..., None], *args: Any) -> None:
        self.adding += timed(lambda: real(*args))[0]

    def reveals(self, there: range) -> tuple[float, server.Summed, int]:
        """Return how long the unmasking took, the sum, and how many streams were taken off."""
        consenting = self.summing.close()
        for v in there:
            step = self.steps[v]
            self.act(v, lambda step=step: step.consent(consenting.frame))
            consenting.take(v, self.steps[v].frame)
        unmasking = consenting.close()
        for v in there:
            step, frame = self.steps[v], unmasking.frame_for(v)
            self.act(v, lambda step=step, frame=frame: step.reveal(frame))
            unmasking.take(v, self.steps[v].frame)
        lost = set(range(self.setting.n)) - set(there)
        pairs = sum(u not in lost for v in lost for u in unmasking.session.neighbours[v])
        return (*timed(unmasking.close), len(there) + pairs)


WHOLE_MAX = 100
"""Clients up to which whole sessions are run: they take as long as all clients take."""


def alone(setting: Setting, drop: float) -> dict[str, float]:
    """The masks of one client and the unmasking, without the rest of a session; complete graph."""
    n, words, sid = setting.n, setting.words, os.urandom(32)
    there = range(n - round(n * drop))
    t, everybody = graph.policy_threshold(n), range(n)
    secrets = {v: (shamir.draw(os.urandom), shamir.draw(os.urandom)) for v in everybody}  # mask key, b
    keys = {
        v: frames.Keys(v, sid, sid, public_of(key), frames.commitment(sid, v, b), bytes(64))
        for v, (key, b) in secrets.items()
    }
    holders = [v + 1 for v in there][:t]
    shares = {v: shamir.split(secrets[v][v in there], holders, t, os.urandom) for v in everybody}
    descriptor: Any = SimpleNamespace(t=t)
    roster: Any = None
    session = Session(roster, descriptor, sid, words, lambda data: data, graph.complete(everybody), keys)
    streams = len(there) + (n - len(there)) * len(there)
    vector, masks_of = np.zeros(words, np.uint32), [os.urandom(32) for _ in everybody]

    def masks() -> None:
        fixed_point.add_streams(vector, masks_of[: n // 2])
        fixed_point.subtract_streams(vector, masks_of[n // 2 :])

    return {
        "client": timed(masks)[0],
        "client floor": floor_seconds(words, n),
        "whole": float("nan"),
        "coordinator": timed(lambda: unmask(vector, session, tuple(there), shares))[0],
        "adding": timed(lambda: [np.add(vector, 1, out=vector) for _ in there])[0],
        "coordinator floor": floor_seconds(words, streams),
    }


def measure(setting: Setting, turns: int) -> list[dict[str, Any]]:
    """Return a row per share of drop-outs: medians over turns."""
    rows: list[dict[str, Any]] = []
    cohort = Cohort(setting) if setting.n <= WHOLE_MAX else None
    taken = [cohort.sums() if cohort else [alone(setting, drop) for drop in setting.drops] for _ in range(turns)]
    for place, drop in enumerate(setting.drops):
        found = [turn[place] for turn in taken]
        row: dict[str, Any] = {"setting": setting.name, "drop": drop}
        row |= {name: median([turn[name] for turn in found]) for name in found[0]}
        row["client ratio"] = median([turn["client"] / turn["client floor"] for turn in found])
        row["coordinator ratio"] = median(
            [(turn["coordinator"] + turn["adding"]) / turn["coordinator floor"] for turn in found]
        )
        row["client prototype"], row["coordinator prototype"] = setting.prototype[0], setting.prototype[1 + place]
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="", help="numbers of clients, with commas")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    only = {int(n) for n in options.only.split(",") if n}
    rows = [row for s in SETTINGS if not only or s.n in only for row in measure(s, options.turns)]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}; ratios to the keystream of the same bytes (prototype)\n")
    print("| | drop-out | client, ms | ratio | whole client, ms | coordinator, s | with adding, s | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['setting']} | {row['drop']:.0%} | {row['client'] * 1e3:.0f} "
            f"| {row['client ratio']:.2f} ({row['client prototype']:.2f}) | {row['whole'] * 1e3:.0f} "
            f"| {row['coordinator']:.2f} | {row['coordinator'] + row['adding']:.2f} "
            f"| {row['coordinator ratio']:.2f} ({row['coordinator prototype']:.2f}) |"
        )


if __name__ == "__main__":
    main()
