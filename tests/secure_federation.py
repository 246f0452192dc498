"""Federated runs with secure sums in virtual time, where every sum is held against the plain sum of its inputs.

python tests/secure_federation.py SEED            one, and all that happened
python tests/secure_federation.py FIRST LAST      a range, and a summary
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import fault_seeds
import numpy as np
import pytest
import secure_kit
from by_hand import reported

from fedgossip.base import seeds
from fedgossip.base.vectors import Vector, digest
from fedgossip.core.machine import Checkpoint, Effect, Event, Machine, Report
from fedgossip.core.records import EventRow, Row
from fedgossip.experiment import load_experiment
from fedgossip.faults import Fault
from fedgossip.plans import compose
from fedgossip.plans.compose import faults_of, network_settings
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.plan import record_of
from fedgossip.protocols.federated import secure_round
from fedgossip.secure import client, primitives
from fedgossip.secure.fixed_point import Quantised
from fedgossip.secure.server import Summed
from fedgossip.secure.session import round_of
from fedgossip.simulation.network import SimulatedNetwork
from fedgossip.simulation.simulator import Simulator

LONGEST = 200_000.0
"""Virtual seconds after which a run counts as hung; above the day after which a client gives up waiting."""


def experiment(clients: int = 5, rounds: int = 4, **coordinator: Any) -> dict[str, Any]:
    """Noisy quadratics: two rounds from the same model train different updates."""
    section = {"clients": clients, "min_clients": 3, "deadline": 3.0, "least_deadline": 0.2, "start_timeout": 5.0}
    return {
        "rounds": rounds,
        "task": {"kind": "quadratic", "dim": 3, "sigma": 0.1, "placement": "random"},
        "coordinator": {**section, "return_timeout": 1.0, "silence": 60.0, **coordinator},
    }


@dataclass
class Followed:
    """One run as it went."""

    plan: FederationPlan
    rows: list[Row] = field(default_factory=list)
    told: list[tuple[int, Report]] = field(default_factory=list)
    inputs: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    """(client, session): what it masked."""
    sums: list[tuple[int, tuple[int, ...], bool]] = field(default_factory=list)
    """(session, survivors, whether the sum is that of their inputs)."""
    sessions: list[int] = field(default_factory=list)
    results: dict[int, Vector] = field(default_factory=dict)
    simulator: Simulator | None = None

    def reports(self, name: str) -> list[Any]:
        return [report.value for node, report in self.told if node == self.plan.coordinator and report.name == name]

    def rounds(self) -> list[int]:
        return [r.round for node, r in self.told if node == self.plan.coordinator and r.name == "round_done"]


Wrap = Callable[[int, Machine], Machine]


def follow(
    content: dict[str, Any], faults: Sequence[dict[str, Any]] = (), wrap: Wrap = lambda _node, machine: machine
) -> Followed:
    """Run it; `wrap` may put something round a machine, also round those that are born again."""
    plan = compose.plan(load_experiment({**content, "faults": list(faults)}))
    assert isinstance(plan, FederationPlan)
    task, _ = compose.task_of(plan.experiment, plan.learners)
    run = Followed(plan)

    def make(node: int, life: int = 0, saved: Checkpoint | None = None) -> Machine:
        own = plan.simulated(node, life, simulator.logs.get(node, ()) if life else ())
        initial = task.initial(min(node, plan.learners - 1))
        machine = plan.machine(node, initial, task.schema, saved, incarnation=life, own=own)
        return _Heard(wrap(node, machine), node, run.told)

    links = [plan.partners(node) for node in range(plan.n)]
    record = record_of(plan, task.evaluate, watch_all=False)
    network = SimulatedNetwork(network_settings(plan.experiment, plan.n), plan.n, plan.experiment.seed)
    machines = [make(node) for node in range(plan.n)]
    simulator = Simulator(machines, links, task, network, record, run.rows.append, script=faults_of(plan), rebirth=make)
    run.simulator = simulator
    with _watching(run):
        run.results = simulator.run(LONGEST)
    return run


@contextmanager
def _watching(run: Followed) -> Iterator[None]:
    """Keep what every client masks, and hold every sum against it."""
    mask, summed, begin = client.Shared.mask, secure_round.SecureRound._summed, secure_round.SecureRound.begin

    def watched_mask(self: client.Shared, delivery: bytes, integers: Quantised) -> client.VectorMasked:
        step = mask(self, delivery, integers)
        place = self._session.me, self._session.descriptor.round
        rounds = [round_of(session) for node, session in run.inputs if node == place[0]]
        assert all(before < round_of(place[1]) for before in rounds), f"{place[0]} masks {place[1]} after {rounds}"
        run.inputs[place] = integers.values.copy()
        return step

    def watched_sum(self: secure_round.SecureRound, found: Summed) -> list[Effect]:
        expected = np.zeros_like(found.total)
        for survivor in found.survivors:
            expected += run.inputs[survivor, self.session]
        run.sums.append((self.session, found.survivors, bool(np.array_equal(expected, found.total))))
        return summed(self, found)

    def watched_begin(self: secure_round.SecureRound) -> list[Effect]:
        run.sessions.append(self.session)
        return begin(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.Shared, "mask", watched_mask)
        patch.setattr(secure_round.SecureRound, "_summed", watched_sum)
        patch.setattr(secure_round.SecureRound, "begin", watched_begin)
        yield


class _Heard:
    """Stands round a machine and keeps what it reports."""

    def __init__(self, machine: Machine, node: int, told: list[tuple[int, Report]]) -> None:
        self.machine, self.node, self.told = machine, node, told

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        effects = self.machine.handle(event, now_ns)
        self.told += [(self.node, report) for report in map(reported, effects) if report]
        return effects


def quick(patch: pytest.MonkeyPatch) -> None:
    """As in `secure_kit`: a hash in the place of signatures, and agreements that are remembered."""
    secure_kit.quick(patch)

    def stand_in(seed: bytes) -> tuple[bytes, primitives.Sign]:
        identity, _ = primitives_signer(seed)
        return identity, lambda data: secure_kit.hashlib.sha512(identity + data).digest()

    primitives_signer = primitives.signer
    patch.setattr("fedgossip.plans.federated.credentials.signer", stand_in)


# --- by seed ----------------------------------------------------------------------------------------------------------


def scenario(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """4 to 8 clients, 3 to 7 rounds, up to four kinds of faults; the coordinator is hit as often as a client."""
    random = seeds.stream(seed, "secure scenario")
    n, rounds = int(random.integers(4, 9)), int(random.integers(3, 8))
    cohort = int(random.integers(4, n + 1))
    content = experiment(
        n,
        rounds,
        cohort=cohort,
        over_selection=float(random.choice([1.0, 1.0, 1.3])),
        algorithm=str(random.choice(["fedavg", "scaffold", "fednova", "fedadam"])),
    )
    content["seed"] = seed
    content["simulation"] = {
        "latency": float(random.uniform(0, 0.05)),
        "jitter": float(random.uniform(0, 0.05)),
        "training_jitter": float(random.uniform(0, 2)),
        "speed_spread": float(random.uniform(0, 0.5)),
        "detection": float(random.uniform(0.1, 1.0)),
    }
    faults = [fault_seeds._fault(random, n + 1, rounds * 0.3) for _ in range(int(random.integers(0, 5)))]
    return content, faults


def verdict(seed: int) -> tuple[str, Followed | None]:
    """Empty, or what is wrong with the run of a seed."""
    try:
        run = follow(*scenario(seed))
    except Exception as error:
        return f"{type(error).__name__}: {error}", None
    assert run.simulator
    dead, rounds = run.simulator.dead, run.rounds()
    if unfinished := [node for node in range(run.plan.n) if node not in run.results and node not in dead]:
        return f"nodes {unfinished} never ended", run
    if refused := run.simulator.counts.get("refused"):
        return f"{refused} messages of honest nodes were refused", run
    if wrong := [session for session, _, right in run.sums if not right]:
        return f"sums of sessions {wrong} are not those of their inputs", run
    if small := [session for session, survivors, _ in run.sums if len(survivors) < run.plan.least]:
        return f"sums of sessions {small} are of fewer than {run.plan.least}", run
    if run.sessions != sorted(set(run.sessions)):
        return f"sessions {run.sessions}: a number came twice", run
    if rounds != list(range(1, len(rounds) + 1)):
        return f"rounds {rounds} were reported: one was lost, or done twice", run
    return "", run


def main() -> None:
    first, last = int(sys.argv[1]), int(sys.argv[-1])
    totals: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        for seed in range(first, last + (first == last)):
            found, run = verdict(seed)
            totals.update(["seeds", *(run.simulator.counts if run and run.simulator else ())])
            totals["sums"] += len(run.sums) if run else 0
            if found:
                totals["wrong"] += 1
                print(f"seed {seed}: {found}; python tests/secure_federation.py {seed}")
            if run and first == last:
                for row in run.rows:
                    if isinstance(row, EventRow):
                        print(f"  node {row.peer}, round {row.round}: {row.name} {row.value if row.value else ''}")
                print(scenario(seed), run.sums, run.sessions, run.rounds(), sep="\n")
    print(dict(totals))


__all__ = ["Fault", "digest", "experiment", "follow", "quick", "scenario", "verdict"]

if __name__ == "__main__":
    main()
