"""Members that come and go, in virtual time: SWIM's promises measured, beside what its paper has.

    python benchmarks/membership.py [--members 100 1000 10000] [--deaths 5] [--join] [--hour 100] [--json]

The machines of `fedgossip.protocols.members` in the world of the tests (10 to 20 ms a message, no gossip rounds).  All
members begin with every announcement, and share the entries, as rosters do.  Messages a second of the mean and of the
busiest member over `--seconds` quiet ones.  Then some die in silence, one after another: seconds until one member
suspects it, until one gives a verdict, and until all have it as gone; medians.  The paper: a constant load, the first
suspicion after e / (e - 1) = 1.58 periods on average (here a period and the time of an answer more, as helpers are
asked first), all informed O(log n) periods after the verdict.  `--hour N`: an hour of N members at `--loss`, and how
many were suspected and taken for dead though alive (0 verdicts promised).  `--join`: a member that has only the
founders' addresses: seconds until it has all entries, what it received, and the bytes of the entries.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from crew import machine, median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from members import World, entry_of, founders, graphs, signer, trust

from fedgossip.core.machine import Effect, Event, NodeId, PeerGone, PeerJoined, Rostered, Send
from fedgossip.core.messages import MembershipUpdate
from fedgossip.core.wire import wire_bytes
from fedgossip.protocols.members.entries import Entries
from fedgossip.protocols.members.failure_detector import MemberSettings
from fedgossip.protocols.members.membership import Membership
from fedgossip.protocols.members.membership_updates import signed
from fedgossip.protocols.members.roster import Roster, contacts_of

APART = 60.0
"""Seconds for which a death is awaited."""


class Counted(World):
    """The same, with the messages of each member; it stores no schedules, which hold rosters."""

    def __init__(self, *about: Any, **named: Any) -> None:
        self.by: Counter[NodeId] = Counter()
        self.into: dict[NodeId, list[int]] = {}
        """Sizes of all messages sent to these members."""
        super().__init__(*about, **named)

    def perform(self, node: NodeId, effect: Effect | Event) -> None:
        match effect:
            case Rostered() | PeerGone() | PeerJoined():
                return
            case Send(to, message):
                self.by[node] += 1
                if to in self.into:
                    self.into[to].append(wire_bytes(message))
        super().perform(node, effect)


@cache
def places(ids: tuple[NodeId, ...]) -> Any:
    """Make a graph once for all members."""
    return graphs(ids)


def world(n: int, loss: float, joiner: bool = False) -> Counted:
    """Members that have announced themselves; the joiner, the last one, has only the endpoints."""
    believed, entries = trust(n), [signed(entry_of(node, 1), signer(f"sign{node}")) for node in range(n)]
    announced = Roster(Entries(entries))
    made: dict[tuple[NodeId, ...], Any] = {}

    def member(node: NodeId) -> Membership:
        me, settings = entries[node], MemberSettings()
        late = joiner and node == n - 1
        own = Roster.founding(founders(n), node) if late else replace(announced, own=node)
        one = Membership(me, own, believed, signer(me.verify), places, settings, 0, 10_000)
        if not late:
            one.announced, one.contact, one._made = True, True, made  # one cache of graphs for all members
        return one

    if not joiner:
        return Counted({node: member(node) for node in range(n)}, loss=loss)
    last = member(n - 1)
    near = contacts_of(last.roster, n - 1, MemberSettings().links, last.schedule)  # the others send it nothing
    return Counted({node: member(node) for node in near} | {n - 1: last})


def join(n: int) -> dict[str, float]:
    """Measure how the last of n members fetches the roster."""
    w = world(n, 0.0, joiner=True)
    w.into[n - 1] = []
    whole = sum(wire_bytes(MembershipUpdate((entry,))) for entry in w.machines[0].roster.entries.values())
    while w.now < APART and min(entry.incarnation for entry in w.machines[n - 1].roster.entries.values()) == 0:
        w.run(0.05)
    return {"members": n, "seconds": w.now, "received MB": sum(w.into[n - 1]) / 1e6, "messages": len(w.into[n - 1]),
            "roster MB": whole / 1e6}  # fmt: skip


def quiet_and_deaths(n: int, deaths: int, seconds: int) -> dict[str, float]:
    """Measure the load of n members, and how deaths are noticed."""
    began = time.process_time()
    w = world(n, 0.0)
    w.run(5)
    w.by.clear()
    w.run(seconds)
    loads = [count / seconds for count in w.by.values()]
    found: dict[str, list[float]] = {"suspected": [], "verdict": [], "by all": []}
    for k in range(deaths):
        victim, at = (k * n) // deaths + 1, w.now
        w.crash(victim)
        alive = set(w.living)
        while alive and w.now < at + APART:
            w.run(0.25)
            alive = {node for node in alive if not w.machines[node].roster.is_gone(victim)}
        said = [(t - at, name) for t, _, name, value in w.reports if t >= at and _about(value) == victim]
        for title, name in (("suspected", "suspected"), ("verdict", "gone")):
            found[title].append(min((t for t, one in said if one == name), default=float("nan")))
        found["by all"].append(w.now - at if not alive else float("inf"))
    times = {title: median(seconds) for title, seconds in found.items()}
    cost = {"CPU s": time.process_time() - began, "MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    return {"a member": sum(loads) / n, "the busiest": max(loads), **times, **cost}


def _about(value: object) -> object:
    return value.get("node") if isinstance(value, dict) else value


def hour(n: int, loss: float) -> dict[str, float]:
    """Count suspicions and verdicts of an hour in which nobody dies."""
    w = world(n, loss)
    w.run(3600)
    names = Counter(name for _, _, name, _ in w.reports)
    return {"members": n, "loss": loss, "suspicions": names["suspected"], "verdicts": names["gone"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--deaths", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--join", action="store_true")
    parser.add_argument("--hour", type=int, default=0)
    parser.add_argument("--loss", type=float, default=0.05)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.json:
        print(machine(), flush=True)
    found: dict[str, dict[str, float]] = {}

    def note(name: str, about: dict[str, float]) -> None:
        """Print a line as it ends: a large one takes minutes."""
        found[name] = about
        if not options.json:
            print(f"{name:>6}: " + ", ".join(f"{title} {value:.6g}" for title, value in about.items()), flush=True)

    for n in options.members:
        note(str(n), quiet_and_deaths(n, options.deaths, options.seconds))
    for n in options.members if options.join else ():
        note(f"join {n}", join(n))
    if options.hour:
        note("hour", hour(options.hour, options.loss))
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
