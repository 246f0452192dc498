"""Tiers of coordinators: one digest whatever the tree, drop-outs and deaths in every stage, leaves that lie.

Long form (`--long`): all 7776 patterns of drop-outs in place of 500.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import fault_seeds
import numpy as np
import pytest
import secure_federation
from secure_federation import Followed, experiment, follow

import fedgossip
from fedgossip.algorithms.sampling import Draw
from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import digest
from fedgossip.core.machine import Effect, Event, Machine, NodeId, Send
from fedgossip.core.messages import MaskedInput, Secured, Subtotal
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.federated.privacy_budget import outlook
from fedgossip.privacy.forecast import not_hidden
from fedgossip.protocols.federated.aggregation_round import LeafSum, SumReading
from fedgossip.protocols.federated.client_round import Summand
from fedgossip.protocols.federated.leaf import LeafCoordinator
from fedgossip.secure.aborts import Stage
from fedgossip.secure.encoding import RingEncoding
from fedgossip.secure.fixed_point import DecodedSum, Quantised, Words

NEVER = 5


def tier(clients: int, secure: bool = True) -> dict[str, Any]:
    return {"clients": clients, "secure": secure}


OPEN_ROOT = [tier(4), tier(2, secure=False)]
TREES: dict[str, list[dict[str, Any]]] = {
    "2 x 4": OPEN_ROOT,
    "4 x 2": [tier(2, secure=False), tier(4)],
    "2 x 2 x 2": [tier(2, secure=False)] * 3,
    "by hand": [{"groups": ["0-2,7", "6, 3-5"]}, tier(2, secure=False)],
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    secure_federation.quick(monkeypatch)


# --- one digest -------------------------------------------------------------------------------------------------------


def learning(tiers: Sequence[Mapping[str, Any]] = (), **coordinator: Any) -> dict[str, Any]:
    least = 1 if tiers and not tiers[0].get("secure", True) else 3
    section = {"clients": 8, "min_clients": least, **({"tiers": list(tiers)} if tiers else {}), **coordinator}
    return {
        "rounds": 3,
        "model": {"source": "mlp:64-16-10"},
        "train": {"lr": 0.1, "local_epochs": 1, "device": "cpu"},
        "coordinator": section,
    }


@pytest.mark.parametrize("options", [{}, {"algorithm": "scaffold"}, {"codec": "random-k:0.2"}])
def test_one_digest_whatever_the_tree(options: dict[str, Any]) -> None:
    flat = fedgossip.simulate(learning(**options))
    for name, tiers in TREES.items():
        assert fedgossip.simulate(learning(tiers, **options)).digest == flat.digest, name
    with pytest.raises(ConfigError, match="one coordinator"):
        fedgossip.simulate(learning(OPEN_ROOT, **options), engine="stacked")


@pytest.mark.parametrize("unit", ["client", "record"])
def test_noise_is_added_once_and_the_account_is_of_the_whole(unit: str) -> None:
    budget = {"unit": unit, "noise": 8.0, "max_epsilon": 100.0}
    flat, tiered = (fedgossip.simulate(learning(tiers, privacy=budget)) for tiers in ((), OPEN_ROOT))
    assert tiered.digest == flat.digest
    spent = [{row.peer: row.epsilon for row in run.rows if isinstance(row, PeerRow)} for run in (flat, tiered)]
    assert tiered.summary["epsilon"] == flat.summary["epsilon"] is not None
    assert [spent[0][node] for node in range(8)] == [spent[1][node] for node in range(8)]


class Mute:
    """A client that sends nothing any more from its answer of `round` on: its numbers, or a frame of `stage`."""

    def __init__(self, machine: Machine, round: int, stage: int = Stage.MASKED) -> None:
        self.machine, self.round, self.stage, self.gone = machine, round, stage, False

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        if self.gone:
            return []
        effects = self.machine.handle(event, now_ns)
        for effect in effects:
            message = effect.message if isinstance(effect, Send) else None
            if isinstance(message, Subtotal):
                self.gone |= message.round >= self.round
            elif isinstance(message, Secured | MaskedInput) and message.session >= self.round:
                self.gone |= message.stage >= self.stage
        return [] if self.gone else effects


def test_numbers_of_single_clients_that_a_leaf_sees_are_called_so() -> None:
    budget = {"unit": "record", "noise": 8.0, "max_epsilon": 100.0}
    for tree, of in (("2 x 4", "summed over the clients of each round"), ("4 x 2", "of each client and round")):
        plan = compose.plan(load_experiment(learning(TREES[tree], privacy=budget)))
        assert isinstance(plan, FederationPlan)
        assert of in not_hidden(outlook(plan).plan)


def test_one_digest_with_drop_outs_that_leave_the_same_survivors(quick: None) -> None:
    def last_model(tiers: Sequence[Mapping[str, Any]]) -> str:
        section = {"tiers": list(tiers)} if tiers else {}
        content = experiment(8, 3, min_clients=learning(tiers)["coordinator"]["min_clients"], **section)
        run = follow(content, wrap=lambda node, one: Mute(one, 1) if node in (1, 6) else one)
        (clients,) = {facts["clients"] for facts in run.reports("aggregated")[1:]}
        assert clients == 6 and run.rounds() == [1, 2, 3]
        return digest([run.results[run.plan.coordinator]])

    assert {last_model(tiers) for tiers in ((), *TREES.values())} == {last_model(())}


# --- who drops: the matrix --------------------------------------------------------------------------------------------

PATTERNS = list(product(range(NEVER + 1), repeat=5))


@dataclass
class Seen:
    """The sums that the root decoded, as words."""

    totals: list[Words]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    found = Seen([])
    decoded = SumReading.decoded

    def watched(self: SumReading, total: Words, members: Sequence[NodeId], fixed: RingEncoding) -> DecodedSum:
        if self.below and len(members) > 1:
            found.totals.append(total.copy())
        return decoded(self, total, members, fixed)

    monkeypatch.setattr(SumReading, "decoded", watched)
    yield found


def check_leaf_pattern(pattern: tuple[int, ...], seen: Seen) -> None:
    """Leaves of five and of three: the five drop by the pattern.  Their sum is of the right clients, or absent."""
    tiers = [{"groups": ["0-4", "5-7"]}, tier(2, secure=False)]
    content = experiment(8, 1, min_clients=3, tiers=tiers)
    run = follow(content, wrap=lambda node, one: Mute(one, 0, pattern[node]) if node < 5 else one)
    in_sum = {node for node in range(5) if pattern[node] > Stage.MASKED}
    whole = pattern.count(NEVER) >= 4
    survivors = {5, 6, 7} | (in_sum if whole else set())
    assert [facts["clients"] for facts in run.reports("aggregated")] == [len(survivors)], pattern
    assert all(right for *_, right in run.sums)
    nothing = [node for node, report in run.told if report.name == "contributes_nothing"]
    assert nothing == ([] if whole else [8]), pattern
    if whole:
        expected = sum((run.inputs[node, 0].astype(np.uint64) for node in survivors), np.zeros(1, np.uint64))
        assert np.array_equal(seen.totals.pop(), expected.astype(np.uint32)), pattern


@pytest.mark.parametrize("place", range(4))
def test_over_500_of_the_7776_patterns_in_one_leaf_end_right(quick: None, seen: Seen, place: int) -> None:
    for pattern in PATTERNS[place * 13 :: 4 * 13]:  # 13 has no factor of 6: each stage at each client
        check_leaf_pattern(pattern, seen)
    nearly = (NEVER,) * 4
    for stage in range(NEVER + 1):
        check_leaf_pattern((*nearly[:place], stage, *nearly[place:]), seen)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_all_7776_patterns_in_one_leaf_end_right(quick: None, seen: Seen) -> None:
    for pattern in PATTERNS:
        check_leaf_pattern(pattern, seen)


def check_root_pattern(pattern: tuple[int, ...], seen: Seen) -> None:
    """Five leaves under a secure sum: these drop by the pattern in their sum with the root, which needs four."""
    content = experiment(15, 1, min_clients=3, tiers=[tier(3), tier(5)])
    wrapped = {15 + k: stage for k, stage in enumerate(pattern)}
    run = follow(content, wrap=lambda node, one: MuteAbove(one, wrapped[node]) if node in wrapped else one)
    leaves = [15 + k for k in range(5) if pattern[k] > Stage.MASKED]
    whole = pattern.count(NEVER) >= 4
    counts = [facts["clients"] for facts in run.reports("aggregated")]
    assert counts == ([3 * len(leaves)] if whole else [0]), pattern
    assert all(right for *_, right in run.sums)
    if whole:
        clients = [3 * (leaf - 15) + k for leaf in leaves for k in range(3)]
        expected = sum((run.inputs[node, 0].astype(np.uint64) for node in clients), np.zeros(1, np.uint64))
        assert np.array_equal(seen.totals.pop(), expected.astype(np.uint32)), pattern


class MuteAbove(Mute):
    """A leaf coordinator that sends its root nothing any more from a frame of `stage` on; its clients, as before."""

    def __init__(self, machine: Machine, stage: int) -> None:
        super().__init__(machine, 0, stage)

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        kept: list[Effect] = []
        for effect in self.machine.handle(event, now_ns):
            up = isinstance(effect, Send) and effect.to >= 20
            if up and isinstance(effect.message, Secured | MaskedInput):  # type: ignore[union-attr]
                self.gone |= effect.message.stage >= self.stage  # type: ignore[union-attr]
            if not (up and self.gone):
                kept.append(effect)
        return kept


@pytest.mark.parametrize("place", range(4))
def test_a_sample_of_the_7776_patterns_of_leaves_ends_right(quick: None, seen: Seen, place: int) -> None:
    for pattern in PATTERNS[place * 401 :: 4 * 401]:
        check_root_pattern(pattern, seen)
    nearly = (NEVER,) * 4
    for stage in range(NEVER + 1):
        check_root_pattern((*nearly[:place], stage, *nearly[place:]), seen)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_500_patterns_of_leaves_end_right(quick: None, seen: Seen) -> None:
    for pattern in PATTERNS[:: len(PATTERNS) // 500]:
        check_root_pattern(pattern, seen)


def test_a_leaf_below_min_clients_contributes_nothing_and_says_so(quick: None) -> None:
    run = follow(
        experiment(8, 3, min_clients=4, tiers=OPEN_ROOT), wrap=lambda node, one: Mute(one, 1) if node == 2 else one
    )
    assert [facts["clients"] for facts in run.reports("aggregated")] == [8, 4, 4]
    told = [(node, report.value) for node, report in run.told if report.name == "contributes_nothing"]
    assert [(node, value["reason"], value["needed"]) for node, value in told] == [(8, "TOO_FEW", 4)] * 2  # type: ignore[index]
    assert [facts["peer"] for facts in run.reports("abstained")] == [8, 8]


# --- deaths -----------------------------------------------------------------------------------------------------------

SECURE = {"clients": 12, "tiers": [tier(3), tier(4)]}
OPEN = {"clients": 8, "tiers": OPEN_ROOT}


def moments(content: dict[str, Any], leaf: int, round: int) -> dict[str, float]:
    """When a leaf coordinator of an undisturbed run was first in each of its states, and a little later."""
    found: dict[str, float] = {}

    class Timed:
        def __init__(self, machine: Any) -> None:
            self.machine = machine

        def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
            effects: Sequence[Effect] = self.machine.handle(event, now_ns)
            one = self.machine
            if one.asked and one.asked.round == round:
                below = one.exchange.phase if one.exchange else one.phase
                above = type(getattr(one.part, "_step", None)).__name__
                found.setdefault(f"{below}, {above}", (now_ns + 1000) / 1e9)
            return effects

    follow(content, wrap=lambda node, machine: Timed(machine) if node == leaf else machine)
    return found


@pytest.mark.parametrize("section", [OPEN, SECURE], ids=["open root", "secure root"])
def test_a_leaf_that_dies_at_any_stage_costs_its_clients_that_round_and_goes_on(
    quick: None, section: dict[str, Any]
) -> None:
    """The watcher asserts that no client, and no leaf, masks two vectors for one round."""
    content = experiment(**{"rounds": 5, "min_clients": 3, **section})
    leaf = section["clients"]
    size = section["tiers"][0]["clients"]
    stages = moments(content, leaf, 1)
    assert len(stages) >= (5 if section is OPEN else 9), stages
    for stage, at in stages.items():
        run = follow(content, [{"kind": "crash", "peers": [leaf], "start": at, "after": 0.1}])
        assert run.rounds() == [1, 2, 3, 4, 5], stage
        assert all(right for *_, right in run.sums), stage
        counts = [facts["clients"] for facts in run.reports("aggregated")]
        assert counts[0] == counts[-1] == leaf, (stage, counts)
        assert set(counts) <= {leaf, leaf - size} and counts.count(leaf - size) <= 3, (stage, counts)
        assert sorted(run.results) == list(range(run.plan.n)), f"{stage}: all end"


def test_a_root_that_dies_costs_one_round(quick: None) -> None:
    content = experiment(8, 5, min_clients=3, tiers=OPEN_ROOT)
    run = follow(content, [{"kind": "crash", "peers": [10], "start": 0.25, "after": 1.0}])
    assert run.rounds() == [1, 2, 3, 4, 5]
    assert [a["reason"] for a in run.reports("abandoned")] == ["INTERRUPTED"]
    assert all(right for *_, right in run.sums) and sorted(run.results) == list(range(11))


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_sums_are_right_and_all_end(quick: None, seed: int) -> None:
    check_seed(seed)


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
def test_five_hundred_seeds_with_tiers(quick: None, block: int) -> None:
    for seed in range(8 + block * 50, 58 + block * 50):
        check_seed(seed)


THREE = {"clients": 27, "tiers": [tier(3)] * 3}
UNEVEN = {"clients": 9, "tiers": [{"groups": ["0-2", "3-8"]}, tier(2, secure=False)]}


def check_seed(seed: int) -> None:
    """Faults hit clients, leaf coordinators and the root alike."""
    content, _ = secure_federation.scenario(seed)
    section = (OPEN, SECURE, UNEVEN, THREE)[seed % 4]
    keep = {"cohort", "over_selection"}
    coordinator = {key: value for key, value in content["coordinator"].items() if key not in keep}
    whole = {**content, "coordinator": {**coordinator, "min_clients": 3, **section}}
    n, random = compose.plan(load_experiment(whole)).n, seeds.stream(seed, "tier faults")
    run = follow(whole, [fault_seeds._fault(random, n, 2.0) for _ in range(int(random.integers(0, 5)))])
    assert run.simulator
    unfinished = [node for node in range(n) if node not in run.results and node not in run.simulator.dead]
    assert not unfinished and all(right for *_, right in run.sums), (seed, unfinished)
    assert not run.simulator.counts.get("refused"), seed
    assert run.rounds() == list(range(1, len(run.rounds()) + 1)), seed


# --- a leaf that lies -------------------------------------------------------------------------------------------------


class Liar:
    """A leaf coordinator that adds `lie` to each word of its sum, and so many clients to its count."""

    def __init__(self, machine: Any, lie: int, clients: int) -> None:
        self.machine, self.lie, self.clients = machine, lie, clients
        part = machine.answering.part

        def lying(*about: Any) -> Any:
            made = part(*about)
            trained = made.trained

            def told(work: LeafSum) -> list[Effect]:
                words = work.total.copy()
                words[:3] += np.uint32(self.lie)
                words[5:6] += np.array([self.clients]).astype(np.uint32)
                return trained(replace(work, total=words, clients=work.clients + self.clients))  # type: ignore[no-any-return]

            made.trained = told
            return made

        machine.answering = type("Lying", (), {"part": staticmethod(lying)})()

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        return self.machine.handle(event, now_ns)  # type: ignore[no-any-return]


def with_liar(section: dict[str, Any], lie: int, clients: int = 0) -> Followed:
    def wrap(node: int, machine: Machine) -> Machine:
        return Liar(machine, lie, clients) if node == section["clients"] else machine

    return follow(experiment(**{"rounds": 2, "min_clients": 3, **section}), wrap=wrap)


def test_a_subtotal_that_no_clients_can_have_is_refused_by_the_leafs_name(quick: None) -> None:
    for lie, clients in ((1 << 30, 0), (0, 1), (0, -2)):
        run = with_liar(OPEN, lie, clients)
        assert [facts["clients"] for facts in run.reports("aggregated")] == [4, 4], (lie, clients)
        refused = [row for row in run.rows if isinstance(row, EventRow) and row.name == "refused"]
        assert [str(row.value)[:33] for row in refused] == [f"round {k}: the numbers of node 8: s" for k in (0, 1)]


class Leaving:
    """A leaf coordinator that sends one of its clients nothing."""

    def __init__(self, machine: Any, out: int) -> None:
        self.machine, self.out = machine, out

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        effects = self.machine.handle(event, now_ns)
        return [one for one in effects if not (isinstance(one, Send) and one.to == self.out)]


def test_clients_that_a_leaf_leaves_out_are_a_smaller_count_to_the_root_and_their_logs_show_it(quick: None) -> None:
    """T7: the logs of the others have the vectors that they masked, and the log of the one left out has none."""
    run = follow(
        experiment(**{"rounds": 2, "min_clients": 3, **OPEN}),
        wrap=lambda node, machine: Leaving(machine, 0) if node == OPEN["clients"] else machine,
    )
    assert [facts["clients"] for facts in run.reports("aggregated")] == [7, 7]
    assert run.simulator is not None
    masked = {node: len(run.simulator.logs.get(node, ())) for node in range(OPEN["clients"])}
    assert not masked[0] and all(masked[node] for node in range(1, 8)), masked
    assert {node for node, _ in run.inputs} & set(range(8)) == set(range(1, 8))


@pytest.mark.parametrize(("liar", "victim", "cohort"), [(12, 0, (0, 12, 13)), (12, 0, (0, 3, 6)), (16, 12, (0, 3, 12))])
def test_no_coordinator_sums_a_participant_with_its_own_accomplices(
    quick: None, liar: int, victim: int, cohort: tuple[int, ...]
) -> None:
    """T8: all below the root are in the roster; of a sum with two coordinators, or two of other leaves, they would
    know their own numbers, and so the victim's.
    """

    def wrap(node: int, machine: Any) -> Machine:
        if node == liar:
            machine.summing.cohort = lambda *_about: Draw(cohort, len(cohort))
        return machine  # type: ignore[no-any-return]

    run = follow(experiment(**{"rounds": 1, "min_clients": 3, **SECURE}), wrap=wrap)
    told = {report.value["reason"] for node, report in run.told if node == victim and report.name == "abandoned_here"}  # type: ignore[index]
    assert told == {"ROSTER"} and run.simulator
    assert not any(kind == "masked" for kind, *_ in run.simulator.logs.get(victim, ()))


def test_in_a_secure_sum_of_leaves_such_a_lie_costs_the_round_and_names_nobody(quick: None) -> None:
    for lie, clients, reason in ((1 << 30, 0, "BOUND"), (0, 100, "OVERFLOW")):
        run = with_liar(SECURE, lie, clients)
        assert [facts["reason"] for facts in run.reports("abandoned")] == [reason] * 2


class Loud:
    """What a client adds to its sum that keeps no bound."""

    clients = 1

    def __init__(self, work: Summand) -> None:
        self.work = work

    def integers(self, *about: Any) -> Quantised:
        honest = self.work.integers(*about)
        values = honest.values.copy()
        values[:3] += np.uint32(1 << 30)
        return Quantised(values, honest.fingerprint)


def test_a_client_that_lies_costs_its_leaf_the_round_and_no_other(quick: None) -> None:
    def wrap(node: int, machine: Any) -> Machine:
        if node == 1:
            part = machine.answering.part

            def lying(*about: Any) -> Any:
                made = part(*about)
                trained = made.trained
                made.trained = lambda work: trained(Loud(work))
                return made

            machine.answering = type("Lying", (), {"part": staticmethod(lying)})()
        return machine  # type: ignore[no-any-return]

    run = follow(experiment(**{"rounds": 2, "min_clients": 3, **OPEN}), wrap=wrap)
    assert [facts["clients"] for facts in run.reports("aggregated")] == [4, 4]
    told = [(node, report.value) for node, report in run.told if report.name == "contributes_nothing"]
    assert [(node, value["reason"]) for node, value in told] == [(8, "BOUND")] * 2  # type: ignore[index]


def test_a_lie_within_the_bounds_of_its_clients_is_not_caught(quick: None) -> None:
    """As with a client: a sum hides it.  docs/privacy/attacks.md says so."""
    honest = follow(experiment(**{"rounds": 2, "min_clients": 3, **OPEN}))
    run = with_liar(OPEN, 1000)
    assert run.rounds() == [1, 2] and not run.reports("abandoned")
    assert not np.array_equal(run.results[10], honest.results[10])


# --- what is refused before it begins ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"tiers": [tier(3), tier(2)]}, "3 x 2 is of 6 clients, and coordinator.clients = 8"),
        ({"tiers": [tier(4)]}, "4 is of 4 clients, and coordinator.clients = 8"),
        ({"tiers": [tier(8)]}, "that is a run without tiers"),
        ({"tiers": [tier(1), tier(8)]}, "a coordinator of 1 participant"),
        ({"tiers": [tier(8), tier(1)]}, "a coordinator of 1 participant"),
        ({"tiers": [tier(2), tier(4)]}, "a sum over 2 reveals each"),
        ({"tiers": [tier(4), tier(2)]}, "a sum over 2 reveals each"),
        ({"tiers": [{"groups": ["0-4", "4-7"]}, tier(2, secure=False)]}, "4 is in two places"),
        ({"tiers": [{"groups": ["0-4,2", "5-7"]}, tier(2, secure=False)]}, "2 is in two places"),
        ({"tiers": [{"groups": ["0-3", "5-7"]}, tier(2, secure=False)]}, "4 is in no group"),
        ({"tiers": [{"groups": ["0-3", "4-8"]}, tier(2, secure=False)]}, "8 of 8"),
        ({"tiers": [{"groups": ["0-3", "x"]}, tier(2, secure=False)]}, "is no list of numbers"),
        ({"tiers": [{"groups": ["0-3", "4-7"]}, tier(3, secure=False)]}, "does not divide the 2 participants"),
        ({"tiers": [{"groups": ["0-3", "4-7"], "clients": 4}, tier(2, secure=False)]}, "of which one is given"),
        ({"tiers": [tier(0), tier(2)]}, ">= 1"),
        ({"tiers": [tier(-4), tier(-2)]}, ">= 1"),
        ({"tiers": [{"clients": 4, "size": 2}, tier(2)]}, "size"),
        ({"tiers": [{"groups": []}, tier(2)]}, "of which one is given"),
        ({"tiers": [{"groups": [""]}, tier(2)]}, "is no list of numbers"),
        ({"tiers": [{}, tier(2, secure=False)]}, "of which one is given"),
        ({"tiers": [tier(2, secure=False), {"groups": ["0,1", "2,3"], "secure": False}]}, "ends with 2 coordinators"),
        ({"tiers": OPEN_ROOT, "min_clients": 5}, "min_clients = 5, and a leaf coordinator has 4 clients"),
        ({"tiers": OPEN_ROOT, "cohort": 4}, "invite all clients"),
        ({"tiers": OPEN_ROOT, "secure": {"on": False}}, "coordinators add the integers"),
        ({"tiers": OPEN_ROOT, "secure": {"threshold": 6}}, "each group has its own"),
        ({"tiers": OPEN_ROOT, "privacy": {"unit": "client", "adaptive": True}}, "the clip is sent to no leaf"),
        ({"tiers": OPEN_ROOT, "algorithm": "median"}, "median"),
        (
            {"tiers": TREES["4 x 2"], "min_clients": 2, "privacy": {"unit": "client"}},
            "coordinator.privacy.unit = client hides clients in a secure sum, which is off",
        ),
    ],
)
def test_a_tree_that_cannot_be_is_refused_in_one_line(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose.plan(load_experiment(experiment(8, **section)))
    assert words in str(refused.value) and "\n" not in str(refused.value) and refused.value.advice


@pytest.mark.parametrize(
    ("tiers", "advice"),
    [
        ([tier(4), tier(3)], "[coordinator]  clients = 12"),
        ([{"groups": ["0-2", "3-5"]}, tier(2, secure=False)], "clients = all in the groups of the first"),
        ([], "[coordinator]  clients = 8"),
    ],
)
def test_tiers_without_clients_imply_their_number(tiers: list[dict[str, Any]], advice: str) -> None:
    content = {"rounds": 2, "task": {"kind": "quadratic"}, "coordinator": {"tiers": tiers}}
    with pytest.raises(ConfigError, match="no clients") as refused:
        load_experiment(content)
    assert advice in refused.value.advice


def test_a_file_without_tiers_keeps_its_hash_and_who_sees_what_comes_first() -> None:
    flat, empty, tiered = (
        compose.plan(load_experiment(experiment(8, **section))) for section in ({}, {"tiers": []}, {"tiers": OPEN_ROOT})
    )
    assert "tiers" not in flat.experiment.to_dict()["coordinator"]
    assert flat.fingerprint == empty.fingerprint != tiered.fingerprint
    assert isinstance(tiered, FederationPlan)
    assert list(tiered.banner)[1:3] == [
        "secure aggregation: a leaf coordinator sees sums of its clients alone, each over at least 3 of 4",
        "NO secure aggregation (coordinator.tiers, secure = false): the root sees the sum of each of its 2"
        " coordinators, over at least 3 clients",
    ]
    machine = tiered.machine(8, np.zeros(3, np.float32), "s", own=tiered.simulated(8))
    assert isinstance(machine, LeafCoordinator)
