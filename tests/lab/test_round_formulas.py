"""The column "formula" of a comparison against the simulator's virtual time of consecutive rounds: 2 %."""

from __future__ import annotations

from typing import Any

import pytest

from fedgossip import load_experiment, simulate
from fedgossip.core.messages import TAIL
from fedgossip.core.records import PeerRow
from fedgossip.lab.compare.measured import round_seconds, setting_of
from fedgossip.lab.compare.names import Paradigm, Setting, formula_of, paradigm_of

A, B, DIM = 0.01, 1e6, 20_000
D_B = 4 * (DIM + TAIL) / B
QUICK, SLOW = 0.02, 0.3
"""A training below and above the time of a vector."""
STEPS = {2: 16, 3: 12, 8: 6, 16: 12, 64: 3}


def round_of(
    name: str, workers: int, training: float, *, down: bool, servers: int = 1, unlike: dict[str, Any] | None = None
) -> tuple[Paradigm, Setting, float]:
    """The paradigm, its setting, and the simulator's seconds of a round."""
    paradigm = paradigm_of(name)
    rounds = STEPS[workers] * (6 if paradigm.section == "topology" else 1)  # early peers lead for the first ones
    experiment = load_experiment({
        "rounds": rounds, "task": {"kind": "quadratic", "dim": DIM}, "eval": {"every": rounds},
        "simulation": {"latency": A, "bandwidth": B, "training": training, **({"downlink": B} if down else {}),
                       **(unlike or {})},
        **sections_of(paradigm, workers, servers),
    })  # fmt: skip
    setting = setting_of(experiment, 4 * (DIM + paradigm.extra))
    assert setting is not None and len(setting.parts) == servers and sum(setting.parts) == pytest.approx(1.0)
    rows = [row for row in simulate(experiment).rows if isinstance(row, PeerRow)]
    return paradigm, setting, round_seconds(rows, workers)


def sections_of(paradigm: Paradigm, workers: int, servers: int) -> dict[str, Any]:
    patient = {"deadline": 1e4, "least_deadline": 1e4}
    if paradigm.section == "topology":
        return {"topology": {"graph": "ring", "n": workers}, "algorithm": {**patient, **paradigm.sets["algorithm"]}}
    if paradigm.section == "coordinator":
        own = {"clients": workers, "secure": {"on": False}, **patient, **paradigm.sets["coordinator"]}
        return {"coordinator": own}
    parallel: dict[str, Any] = {"workers": workers, **patient, **paradigm.sets["parallel"]}
    if server := paradigm.sets.get("parallel.server"):
        return {"parallel": {**parallel, "server": {**server, "servers": servers}}}
    return {"parallel": parallel if "bucket" in paradigm.ignores else {**parallel, "bucket": 0}}


def off(name: str, workers: int, training: float, **how: Any) -> float | None:
    """The formula's relative error; None where there is no closed form."""
    paradigm, setting, measured = round_of(name, workers, training, **how)
    beside = formula_of(paradigm, setting)
    return None if beside is None else measured / (training + beside) - 1


PAIR = ("star", "ring-naive")
CASES = [(name, m, c, down) for name in PAIR for m in (2, 3, 8) for c in (QUICK, SLOW) for down in (0, 1)]
CASES += [(name, 8, QUICK, 1) for name in ("ring", "halving-doubling", "recursive-doubling", "tree", "all-to-all")]
CASES += [(name, 8, c, down) for name in ("mapreduce", "fedavg") for c in (QUICK, SLOW) for down in (0, 1)]
CASES += [("gossip", m, c, 0) for m in (3, 8) for c in (QUICK, SLOW)]
CASES.append(("star", 64, QUICK, 1))
MANY = ("ring", "ring-naive", "hierarchical", "halving-doubling", "recursive-doubling", "tree", "all-to-all", "fedavg")
CASES += [
    pytest.param(name, 64, c, down, marks=pytest.mark.long) for name in MANY for c in (QUICK, SLOW) for down in (0, 1)
]


@pytest.mark.parametrize(("name", "workers", "training", "down"), CASES)
def test_a_collectives_formula_is_its_consecutive_rounds(name: str, workers: int, training: float, down: int) -> None:
    found = off(name, workers, training, down=bool(down))
    assert found is not None and abs(found) < 0.02


SERVED = [(m, s, c, down) for m, s in ((2, 2), (8, 1), (8, 2), (2, 8)) for c in (QUICK, SLOW) for down in (0, 1)]
SERVED += [
    pytest.param(m, s, c, down, marks=pytest.mark.long)
    for m in (16, 64) for s in (1, 4, 8) for c in (QUICK, SLOW) for down in (0, 1)
]  # fmt: skip


@pytest.mark.parametrize(("workers", "servers", "training", "down"), SERVED)
def test_the_formulas_of_servers(workers: int, servers: int, training: float, down: int) -> None:
    """Of several servers by their largest share; that wait for all, through downlinks, they have none."""
    found = off("parameter-server", workers, training, down=bool(down), servers=servers)
    assert (found is None) == (servers > 1 and bool(down))
    assert found is None or abs(found) < 0.02
    found = off("parameter-server:async", workers, training, down=bool(down), servers=servers)
    assert found is not None and abs(found) < 0.02


@pytest.mark.parametrize(("workers", "training", "down"), [(8, QUICK, 0), (16, SLOW, 1)])
def test_asynchronous_pairs_take_4_to_15_percent_less_than_their_formula(
    workers: int, training: float, down: int
) -> None:
    found = off("gossip:async", workers, training, down=bool(down))
    assert found is not None and -0.15 < found < -0.035


@pytest.mark.parametrize(("times", "least", "most"), [(1.0, 0.05, 0.11), (2.0, 0.01, 0.03), (4.0, 0.0, 0.03)])
def test_asynchronous_pairs_take_longer_where_a_training_takes_as_long_as_their_exchanges(
    times: float, least: float, most: float
) -> None:
    found = off("gossip:async", 8, times * 8 * (A + D_B), down=False)
    assert found is not None and least < found < most


@pytest.mark.parametrize("name", ["tree", "halving-doubling", "recursive-doubling", "gossip"])
def test_no_formula_is_shown_where_none_holds(name: str) -> None:
    assert off(name, 3, QUICK, down=True) is None


@pytest.mark.parametrize("unlike", [{"classes": [{"nodes": "3", "slower": 10.0}]}, {"training_jitter": 0.5}])
@pytest.mark.parametrize("name", ["ring", "parameter-server", "parameter-server:async"])
def test_no_formula_is_shown_where_training_times_differ(name: str, unlike: dict[str, Any]) -> None:
    """Who waits for all waits for the slowest; who does not has as many paces as there are times."""
    assert off(name, 8, QUICK, down=True, unlike=unlike) is None


RACKS = [("tree", 0.01), ("star", 0.01), ("parameter-server", 0.01), ("ring", 0.05), ("hierarchical", 0.05),
         ("halving-doubling", 0.05), ("recursive-doubling", 0.05), ("all-to-all", 0.05)]  # fmt: skip


@pytest.mark.parametrize(("name", "most"), RACKS)
def test_rounds_over_racks_are_predicted_by_their_steps(name: str, most: float) -> None:
    """Two racks of four, whose link to each other is one worker's, and slower by its latency."""
    racks: dict[str, Any] = {"size": 4, "bandwidth": B, "latency": 0.03}
    paradigm, setting, measured = round_of(name, 8, QUICK, down=True, unlike={"racks": racks})
    assert abs(measured / paradigm.cost(setting).seconds - 1) < most
    beside = formula_of(paradigm, setting)
    assert (beside is not None) == (name == "tree")
    assert beside is None or abs(measured / (QUICK + beside) - 1) < most


def test_a_ring_behind_a_slow_link_between_racks_takes_longer_than_its_steps() -> None:
    """The page on paradigms has the 9 %."""
    racks: dict[str, Any] = {"size": 4, "bandwidth": B / 10, "latency": 0.03}
    paradigm, setting, measured = round_of("ring", 8, QUICK, down=True, unlike={"racks": racks})
    assert measured / paradigm.cost(setting).seconds - 1 == pytest.approx(0.09, abs=0.005)


def test_a_rate_over_equal_links_predicts_nothing_over_racks() -> None:
    assert not any(
        paradigm_of(name).by_steps for name in ("parameter-server:async", "parameter-server:3", "gossip:async")
    )
