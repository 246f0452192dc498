"""Fits whose coordinator lies: a site's sums stand in sums with the same others alone, and at points that follow."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from commands import typed
from fit_attacks import JUDGED, KINDS, FitHall, Made, attacked, far_out, made
from fit_sites import ALIKE, SITES, every_kind, total

from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Log, Report, Started
from fedgossip.core.messages import Hello
from fedgossip.core.task import Job
from fedgossip.drivers import participant
from fedgossip.drivers.participant import Given
from fedgossip.net.endpoints import roster_of, signed
from fedgossip.net.identity import Identity
from fedgossip.plans.federated.ledger import SpentLedger, data_of
from fedgossip.runs.audit_recorder import Recorder
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.session_history import AskedBefore
from fedgossip.sites.fits.cox.cox_steps import NEAR, RISK, FittedHazards
from fedgossip.sites.fits.design_columns import effective, too_few
from fedgossip.sites.fits.families.family import FamilyDesign, FamilyLayout, FamilyTask, PooledRound, SiteSample
from fedgossip.sites.fits.families.likelihoods import LikelihoodFamily
from fedgossip.sites.fits.glm.glm import Newton
from fedgossip.sites.plans.fits import FAMILIES

ALL = frozenset(range(SITES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return every_kind(tmp_path_factory.mktemp("fits"))


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def kinds(folder: Path) -> dict[str, Made]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return {kind: made(folder, kind) for kind in (*KINDS, *JUDGED)}


# --- any attack -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fits", [3, pytest.param(125, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", [*KINDS, *JUDGED])
def test_a_lying_coordinator_gets_no_sum_beside_those_of_honest_rounds(
    kind: str, fits: int, kinds: dict[str, Made]
) -> None:
    """Sites withheld, points repeated, over lives too, points of its own, another past: at random."""
    refused = set[str]()
    for seed in range(1 if kind in ALIKE and fits == 3 else fits):
        hall, brought = attacked(kinds[kind], seed)
        assert not brought and {sites for sites, _ in hall.got} == {ALL}, seed
        refused |= {reason for _, reason in hall.refused}
    if kind != "evaluate with noise":  # which is of one round: nothing more is answered
        assert refused & {Reason.COMPANY, Reason.POINT}


# --- the same sites ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*(kind for kind in KINDS if kind not in ALIKE), "agree", "evaluate"])
@pytest.mark.parametrize("restarted", [False, True])
def test_all_sums_of_a_fit_are_of_the_same_sites(kind: str, restarted: bool, kinds: dict[str, Made]) -> None:
    hall = FitHall({}, made=kinds[kind])
    assert hall.follows()
    if restarted:
        hall.restarted()
    assert hall.asks(hall.x, away=[1]) is None
    assert {reason for _, reason in hall.refused} == {Reason.COMPANY}


def test_one_that_comes_later_is_in_no_sum(kinds: dict[str, Made]) -> None:
    """It is not alone what the first sum lacks: a sum with one more tells of that one."""
    hall = FitHall({}, made=kinds["cox"])
    assert hall.asks(hall.x, away=[4]) is not None
    assert hall.asks(hall.x) is None and Reason.COMPANY in {reason for _, reason in hall.refused}


@pytest.mark.parametrize("kind", ["cox", "trees"])
def test_a_round_without_a_sum_is_asked_again_of_the_same_sites_and_of_others_before_any_consent(
    kind: str, kinds: dict[str, Made]
) -> None:
    """What is masked is the same to the last bit in both."""
    hall = FitHall({}, made=kinds[kind])
    hall.session(life=0, round=0, until="masked", model=hall.x)
    hall.round = 1
    assert hall.asks(hall.x, away=[0]) is not None, "nobody has consented to a sum with site 0"
    assert hall.asks(hall.x, away=[0]) is not None and hall.asks(hall.x) is None


def test_the_refusal_names_the_round_the_sites_and_what_to_do(kinds: dict[str, Made]) -> None:
    hall = FitHall({}, made=kinds["glm"])
    assert hall.follows()
    reports, handle = list[Report](), hall.clients[0].handle

    def watched(event: Any, now_ns: int) -> Any:
        effects = handle(event, now_ns)
        reports.extend(one for one in effects if isinstance(one, Report))
        return effects

    hall.clients[0].handle = watched  # type: ignore[method-assign]
    hall.asks(hall.x, away=[1])
    (about,) = (one.value for one in reports if one.name == "abandoned_here")
    assert isinstance(about, dict)
    assert "in round 1 for a sum of clients 0,2-4; this client's are of 0-4" in about["text"]
    assert "Bring the same sites back" in about["asked"]


# --- over runs, by the ledger beside the key --------------------------------------------------------------------------


class RealSites(FitHall):
    """Each with a key and a ledger; every one of these begins a run in new folders."""

    def __init__(self, made: Made, tmp: Path, run: str, who: list[Identity]) -> None:
        self.tmp, self.run, self.who, self.stack = tmp, run, who, contextlib.ExitStack()
        at = [""] * SITES + ["tcp://127.0.0.1:5700"]
        self.endpoints = {node: signed(one, at[node]) for node, one in enumerate(who)}
        plan, layout, task = made
        plan = replace(plan)
        roster = roster_of(self.endpoints)
        keys = SimpleNamespace(keys=lambda node: (roster.identity(node), who[node].sign_bytes))
        plan.__dict__["_drawn"] = keys, roster
        super().__init__({}, made=(plan, layout, task))

    def start(self, node: int, life: int = 0) -> None:
        place = self.tmp / f"{self.run}-{node}"
        place.mkdir()
        hello: Any = Hello(self.task.schema, "run", "1")
        links: Any = None
        given = Given(
            place, self.who[node], self.endpoints, hello, links, None, False, False, None, None,
            self.tmp / f"{node}.spent",
        )  # fmt: skip
        one = self.stack.enter_context(participant.open_maker(self.plan, node, given))
        machine: Any = one.make(self.initial, None, life)
        assert one.recorder
        self.recorders[node] = one.recorder
        self.clients[node] = machine
        machine.handle(Started(), 0)


@contextlib.contextmanager
def begun(made: Made, tmp: Path, run: str, who: list[Identity]) -> Iterator[RealSites]:
    hall = RealSites(made, tmp, run, who)
    hall.folder = tmp  # what is logged is written
    with hall.stack:
        yield hall


def test_a_fit_that_is_begun_anew_is_of_the_sites_that_it_was_of(kinds: dict[str, Made], tmp_path: Path) -> None:
    """In new folders, with the same keys and records; until each site allows others."""
    who = [Identity.new() for _ in range(SITES + 1)]
    with begun(kinds["cox"], tmp_path, "first", who) as hall:
        assert hall.follows()
    with begun(kinds["cox"], tmp_path, "second", who) as hall:
        assert hall.asks(hall.x, away=[2]) is None and {why for _, why in hall.refused} == {Reason.COMPANY}
        assert hall.asks(hall.x) is not None, "the same sites fit again"
    for node in range(SITES):
        allowed = typed(["privacy", "ledger", "--ledger", f"{node}.spent", "--other-sites"], tmp_path)
        assert allowed.code == 0 and "with other sites" in allowed.err
    with begun(kinds["cox"], tmp_path, "third", who) as hall:
        assert hall.asks(hall.x, away=[2]) is not None


def test_the_sites_of_a_sum_are_in_the_ledger_before_the_consent_is_in_the_log(tmp_path: Path) -> None:
    data = data_of("csv:a.csv", 0)
    log = Recorder(tmp_path, 0, "client", Identity.new(), "run", synced=False)
    with contextlib.closing(SpentLedger(tmp_path / "key.spent", "none", data)) as ledger, log as recorder:
        recorder.keep_companies(ledger)
        recorder.log(Log("consent", {"layout": "ab", "company": "cd", "sites": "0-4"}))
    with contextlib.closing(SpentLedger(tmp_path / "key.spent", "none", data)) as ledger:
        assert (ledger.company("ab"), ledger.company("other numbers"), ledger.exact) == ("cd", "", 0)


# --- the point --------------------------------------------------------------------------------------------------------


def asked(hall: FitHall, model: Any) -> str:
    """Return why site 0 does not answer that, after what it was asked last; "" where it does."""
    assert hall.last is not None
    try:
        hall.task.check(0, hall.round, model, AskedBefore(hall.round - 1, hall.last))
    except RoundAbandoned as refused:
        assert refused.reason == Reason.POINT and f"round {hall.round}" in str(refused)
        return str(refused)
    return ""


def test_records_count_by_their_weights() -> None:
    """m equal weights are m; one of weight 1 and m - 1 of weight e are 1 + (m - 1) e, by the definition."""
    assert effective(np.full(7, 0.3)) == pytest.approx(7)
    assert effective(np.array([1.0, *[0.01] * 9])) == pytest.approx(1.09)
    assert effective(np.full(50, 0.001), unit=0.25) == pytest.approx(0.2), "all of little weight"
    assert effective(np.zeros(3)) == 0


@pytest.mark.parametrize(
    ("rows", "largest", "refused"),
    [
        (40, 9, False),
        (40, 10, True),
        (16, 5, False),
        (16, 5.5, True),
        (4, 3, False),
        (4, 4, True),
        (3, 4, False),
        (3, 5, True),
    ],
)
def test_no_record_outweighs_the_others_of_a_column(rows: int, largest: float, refused: bool) -> None:
    """`rows` records of a column of 1 and -1, one of weight `largest`, the others' 1: 1 + (rows - 1) / largest count.

    Below five, a quarter of `rows` and two, or below half of `rows`, they are too few; of all records 99 more count.
    """
    values = np.concatenate([np.resize([1.0, -1.0], rows), np.zeros(99 * 21)])
    weights = np.ones(len(values))
    weights[0] = largest
    number = 1 + (rows - 1) / largest
    assert refused == (number < min(5, max(rows / 4, 2), rows / 2))
    assert too_few(weights, 1.0, [("a", values)], 5) == (refused * "too few of this site's records count there for 'a'")


@pytest.mark.parametrize(("largest", "refused"), [(3.0, False), (3.5, True)])
def test_records_that_count_for_a_column_at_three_sites_are_as_many_as_a_count(largest: float, refused: bool) -> None:
    """Of ten at each, with data.suppress = 12, four: a quarter of them, which was enough, is of three sites 7.5."""
    values, weights = np.concatenate([np.ones(10), np.zeros(99)]), np.ones(109)
    weights[0] = largest
    assert refused == (effective(weights * values) < 4)
    assert bool(too_few(weights, 1.0, [("a", values)], 12)) == refused
    assert not too_few(weights, 1.0, [("a", values)], 5)


@pytest.mark.parametrize(("largest", "refused"), [(8, False), (10, True)])
def test_no_two_records_outweigh_the_others_of_a_column(largest: float, refused: bool) -> None:
    """Of eight two are 16 of 22, or 20 of 26; by their number alone, above two, both were enough."""
    values, weights = np.concatenate([np.ones(8), np.zeros(99)]), np.ones(107)
    weights[:2] = largest
    assert 2 < effective(weights * values) < 4 and refused == (2 * largest > 0.75 * (2 * largest + 6))
    assert bool(too_few(weights, 1.0, [("a", values)], 5)) == refused


def test_a_point_at_which_few_records_count_is_refused_though_it_follows_from_what_is_said(
    kinds: dict[str, Made],
) -> None:
    """The logistic weights are p (1 - p), here record by record."""
    hall = FitHall({}, made=kinds["glm"])
    for _ in range(3):
        assert hall.follows()
    assert asked(hall, hall.x) == ""
    lie = far_out(hall, np.random.default_rng(1))
    point = hall.layout.reached(lie, hall.round).point
    weights = []
    for row in hall.task._sites[0].x:
        eta = max(-40.0, min(40.0, math.fsum(a * b for a, b in zip(row, point, strict=True))))
        weights.append(1 / (1 + math.exp(-eta)) * 1 / (1 + math.exp(eta)))
    assert sum(weights) / max(weights) < 5 or sum(weights) < 5 * 0.25
    assert "fewer than 5 of this site's records count there" in asked(hall, lie)


def test_a_scale_at_which_the_longest_time_makes_up_all_sums_is_refused(kinds: dict[str, Made]) -> None:
    """The weights of failure times are exp((log t - x b) / s): by lies about the scale s alone, half a step at a time,
    one record of 250 had .999 of them."""
    _, layout, task = kinds["weibull"]
    d, family = layout.design, layout.family
    sites = task._sites.values()
    first = np.sum([site.y.sum(axis=0) for site in sites], axis=0)
    pooled = [PooledRound(SITES, 250, {"first": first})]
    width = len(d.columns) + 2
    answered = list[float]()
    for step in range(12):
        point = family.state(d, pooled).point
        if not any(family.uneven(d, site, step + 1, pooled) for site in sites):
            z = [(np.log(one.y[:, 0]) - one.x @ point[:-1]) / math.exp(point[-1]) for one in sites]
            answered.append(max(float(np.exp(one - np.logaddexp.reduce(one)).max()) for one in z))
        lie = {"likelihood": np.array([100.0 * step]), "gradient": np.zeros(width),
               "information": np.eye(width)[np.triu_indices(width)]}  # fmt: skip
        lie["gradient"][-1] = -1
        pooled.append(PooledRound(SITES, 250, lie))
    assert 2 <= len(answered) < 8 and max(answered) < 1 / 4, answered


@pytest.mark.parametrize("name", ["weibull", "negative-binomial", "multinomial"])
def test_no_record_makes_up_a_column_where_weights_depend_on_outcomes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what is expected of each record all of a column's sum was one record's: half, or as at the start, is answered.

    The weights are exp((log t - x b) / s), mu r (r + y) / (r + mu)^2, and p q of two classes.
    """
    rng, n = np.random.default_rng(4), 50
    x = np.column_stack([np.ones(n), rng.normal(size=n), np.arange(n) < 8])  # eight are of the other arm
    y = np.column_stack([rng.exponential(100, n), rng.random(n) < 0.7]).astype(float)
    if name == "negative-binomial":
        y = rng.poisson(np.exp(x[:, 1] / 2) * rng.exponential(1, n)).astype(float)[:, None]
    elif name == "multinomial":
        y = np.digitize(x[:, 1] + rng.logistic(size=n), [-0.5, 1]).astype(float)[:, None]
    site, family = SiteSample(x, y), FAMILIES[name]
    d = FamilyDesign(family=name, outcome="t,d" if name == "weibull" else "y", columns=("age", "arm"), places=(0, 1),
                     mean=(0.0, 0.0), deviation=(1.0, 1.0), suppress=5, classes=("a", "b", "c"))  # fmt: skip
    assert isinstance(family, LikelihoodFamily)
    pooled = [PooledRound(SITES, n, {"first": family.of.first(d, y)})]
    start, answered = family.state(d, pooled).point, 0

    def shares(point: np.ndarray, column: np.ndarray) -> tuple[float, float]:
        if name == "weibull":
            weights = np.exp((np.log(y[:, 0]) - x @ point[:-1]) / math.exp(point[-1]))
        elif name == "multinomial":
            odds = np.exp(x @ point.reshape(2, 3).T)
            weights = odds.prod(axis=1) / (1 + odds.sum(axis=1)) ** 2
        else:
            mu, r = np.exp(x @ point[:-1]), math.exp(-point[-1])
            weights = mu * r * (r + y[:, 0]) / (r + mu) ** 2
        parts = np.sort(weights * column**2)[::-1]
        return float(parts[0] / parts.sum()), float(parts[:2].sum() / parts.sum())

    for _ in range(300):
        point = np.array([*(start[:-1] + rng.normal(0, 2, len(start) - 1)), rng.uniform(-3, 2)])
        monkeypatch.setattr(family, "state", lambda *_, point=point: Newton(point, point))
        if family.uneven(d, site, 1, pooled):
            continue
        answered += 1
        for column in x.T:
            (one, two), (first, both) = shares(point, column), shares(start, column)
            assert one <= max(1 / 2, first) + 1e-9 and two <= max(3 / 4, both) + 1e-9
    assert answered > 20


@pytest.mark.parametrize("shape", [1.0, 1.6, 3.0])
def test_honest_failure_times_with_strong_effects_are_answered(shape: float) -> None:
    """Of 60 records a site, times shorter by e for each deviation: by hazards nearly all such fits were refused."""
    d = FamilyDesign(family="weibull", outcome="t,d", columns=("age", "arm"), places=(0, 1), mean=(0.0, 0.0),
                     deviation=(1.0, 1.0), suppress=5)  # fmt: skip
    rng, sites = np.random.default_rng(1), []
    for _ in range(SITES):
        x = np.column_stack([np.ones(60), rng.normal(size=60), rng.random(60) < 0.5])
        times, ends = 200 * np.exp(0.4 * x[:, 2] - x[:, 1]) * rng.weibull(shape, 60), rng.uniform(50, 600, 60)
        sites.append(SiteSample(x, np.column_stack([np.minimum(times, ends), times <= ends]).astype(float)))
    layout = FamilyLayout(d, FAMILIES["weibull"])
    task = FamilyTask(layout, dict(enumerate(sites)), 5)
    pooled = task.initial(0)
    for number in range(layout.rounds):
        if number and (state := layout.family.state(d, layout.pooled(pooled))).converged:
            break
        assert [task.uneven(node, number, pooled) for node in range(SITES)] == [""] * SITES
        pooled = total([pooled, *(task.sums(Job(node, number, pooled)) for node in range(SITES))], 256)
    assert state.converged and state.point[1] == pytest.approx(-1, abs=0.2)


def test_sums_that_the_coordinator_has_not_signed_are_refused(kinds: dict[str, Made]) -> None:
    hall = FitHall({}, made=kinds["glm"])
    for _ in range(3):
        assert hall.follows()
    lie = np.array(hall.x)
    place = hall.layout.of_round(hall.round - 1).start + 4
    lie[place * 8] += 1  # 2^-104 of one sum
    assert asked(hall, lie) == "", "nothing but what was signed tells"
    assert hall.asks(frozen(lie)) is None and {why for _, why in hall.refused} == {Reason.POINT}


def test_a_point_of_proportional_hazards_is_that_of_the_step(kinds: dict[str, Made]) -> None:
    hall = FitHall({}, made=kinds["cox"])
    while not (FittedHazards(hall.layout, hall.x).stage == RISK and FittedHazards(hall.layout, hall.x)["records"]):
        assert hall.follows()
    assert asked(hall, hall.x) == ""
    state = FittedHazards(hall.layout, hall.x)
    step = float(np.abs(state["point"] - state["best"]).max())
    for off, fits in ((NEAR / 10, True), (10 * NEAR, False)):
        moved = FittedHazards(hall.layout, hall.x)
        moved["point"][0] += off * step
        assert (asked(hall, frozen(moved.x)) == "") == fits


def test_a_split_of_trees_keeps_the_records_that_there_were(kinds: dict[str, Made]) -> None:
    from fedgossip.sites.fits.tree_sums import GrowingTrees

    hall = FitHall({}, made=kinds["trees"])
    for _ in range(2):
        assert hall.follows()
    assert asked(hall, hall.x) == ""
    for lie in (1, -1):
        growing = GrowingTrees(hall.layout, hall.x)
        growing._info[0, 0, 1] += lie << 20
        assert "a split whose sides" in asked(hall, frozen(growing.x))


def test_what_is_said_of_groups_is_held_against_a_sites_own_and_the_signature(kinds: dict[str, Made]) -> None:
    """A group of two sites that is said to be at three is answered: the lie is signed, and docs/privacy/attacks.md has
    it among what is left."""
    hall = FitHall({}, made=kinds["evaluate"])
    assert hall.follows()
    numbers = dict(hall.layout.numbers(hall.x))
    assert numbers["at", "old"] == 2
    for name, count, refused in (
        (("at", "new"), 0, "a count over all sites is below that of this site alone"),
        (("records",), 1, "sums of an earlier round have changed"),
        (("at", "old"), 3, ""),
    ):
        lie = hall.layout.vector({**numbers, name: count})
        why = asked(hall, lie)
        assert refused in why and bool(refused) == bool(why), (name, why)
    assert hall.asks(lie) is None and {why for _, why in hall.refused} == {Reason.POINT}, "it has signed another sum"


@pytest.mark.parametrize("kind", [*KINDS, "agree", "evaluate"])
def test_a_site_that_has_seen_nothing_answers_the_start_alone(kind: str, kinds: dict[str, Made]) -> None:
    hall = FitHall({}, made=kinds[kind])
    hall.task.check(0, 0, hall.x, None)
    assert hall.follows()
    with pytest.raises(RoundAbandoned, match="sums that this site has not seen") as refused:
        hall.task.check(0, 1, hall.x, None)
    assert refused.value.reason == Reason.POINT
