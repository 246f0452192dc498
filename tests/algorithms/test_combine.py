"""Rules that put models together: by hand, by what they withstand, and with the same bits for one peer as for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from over_sockets import run_over_sockets

from fedgossip import load_experiment, simulate
from fedgossip.algorithms.robust.robust_mixing import COMBINATIONS, combination, combine_rows, distance
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import BLOCK, digest, frozen, ordered_mix
from fedgossip.plans import compose
from fedgossip.topology import build, resolve

ROBUST = [name for name in COMBINATIONS if name != "linear"]


def vectors(*values: Any, dtype: str = "float64") -> dict[int, Any]:
    return {j: frozen(np.atleast_1d(np.array(value, dtype))) for j, value in enumerate(values)}


def equal(n: int) -> dict[int, float]:
    return dict.fromkeys(range(n), 1 / n)


def by(name: str, models: dict[int, Any], row: dict[int, float] | None = None, node: int = 0, **options: Any) -> Any:
    return combination(name, options).combine(node, row or equal(len(models)), models).tolist()


def test_the_rules_by_hand() -> None:
    models = vectors(0.0, 1.0, 2.0, 3.0, 100.0)
    assert by("linear", models) == pytest.approx([21.2])
    assert by("trimmed-mean", models, f=1) == [2.0] == by("median", models)
    assert by("trimmed-mean", models, f=0) == pytest.approx([21.2])
    assert by("median", vectors(0.0, 1.0, 2.0, 100.0)) == [1.5]
    assert by("nna", models, f=1) == pytest.approx([1.5]), "the mean of 0, 1, 2, 3"
    assert by("nna", models, f=3) == pytest.approx([0.5])
    assert by("geometric-median", models, steps=1000) == pytest.approx([2.0], abs=1e-3), "on a line it is the median"
    # 0 + 1/5 (1 + 2 + 2 + 2), the last two scaled to length 2
    assert by("clipped", models, tau=2.0) == pytest.approx([1.4])
    assert by("clipped", models, f=1) == pytest.approx([9 / 5]), "tau is 3: 1/5 (1 + 2 + 3 + 3)"


def test_distances_are_scaled_along_the_way_and_not_by_coordinate() -> None:
    models = vectors([0.0, 0.0], [3.0, 4.0])
    assert by("clipped", models, {0: 0.5, 1: 0.5}, tau=1.0) == pytest.approx([0.3, 0.4])
    assert by("clipped", models, {0: 0.75, 1: 0.25}, tau=1.0) == pytest.approx([0.15, 0.2])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_without_a_limit_clipping_has_the_bits_of_the_sum(dtype: str) -> None:
    draw = np.random.default_rng(1)
    models = vectors(*draw.standard_normal((5, 100)), dtype=dtype)
    row = dict(enumerate(draw.dirichlet(np.ones(5))))
    expected = ordered_mix([(row[j], models[j]) for j in row])
    for options in ({"tau": float("inf")}, {"tau": 1e6}, {"f": 0}):
        assert (combination("clipped", options).combine(2, row, models) == expected).all()


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(ROBUST), st.integers(4, 9), st.integers(0, 2**16), st.sampled_from([1e3, 1e30, 1e150]))
def test_one_liar_cannot_draw_a_rule_beyond_the_honest(name: str, n: int, seed: int, far: float) -> None:
    """Whatever one of them sends, the result is not farther than a few times the honest ones lie apart."""
    draw = np.random.default_rng(seed)
    honest = draw.standard_normal((n - 1, 4))
    models = vectors(*honest, far * draw.standard_normal(4))
    options = {} if name in ("median", "geometric-median") else {"f": 1}
    found = np.array(by(name, models, **options))
    apart = max(float(np.linalg.norm(one - other)) for one in honest for other in honest)
    assert np.linalg.norm(found - honest.mean(axis=0)) <= 3 * apart
    assert np.linalg.norm(np.array(by("linear", models)) - honest.mean(axis=0)) > 3 * apart or far < 1e6


@pytest.mark.parametrize("name", ["trimmed-mean", "median"])
def test_a_rule_by_coordinate_breaks_at_half(name: str) -> None:
    held, broken = vectors(0, 0, 0, 0, 9e9, 9e9, 9e9), vectors(0, 0, 0, 9e9, 9e9, 9e9, 9e9)
    options = {"f": 3} if name == "trimmed-mean" else {}
    assert by(name, held, **options) == [0.0] and by(name, broken, **options) == [9e9]


@pytest.mark.parametrize("name", COMBINATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_peer_and_all_peers_have_the_same_bits(name: str, dtype: str) -> None:
    draw, mixing = np.random.default_rng(2), build(resolve("two-cliques", 8))
    stacked = frozen(draw.standard_normal((8, BLOCK + 77)).astype(dtype))
    rule, out = combination(name, {}), np.empty_like(stacked)
    combine_rows(rule, mixing.rows_by_degree(), stacked, out)
    for node in range(8):
        row = mixing.row(node)
        alone = rule.combine(node, row, {j: frozen(stacked[j].copy()) for j in row})
        assert alone.dtype == stacked.dtype and (alone == out[node]).all()


def test_distances_are_sums_of_blocks_and_never_infinite() -> None:
    draw = np.random.default_rng(3)
    one, other = draw.standard_normal((2, 2 * BLOCK + 5))
    assert distance(one, other) == pytest.approx(float(np.linalg.norm(one - other)), rel=1e-13)
    assert np.isfinite(distance(np.full(9, 1e154), np.full(9, -1e154)))


# --- in a run ---------------------------------------------------------------------------------------------------------


def experiment(combine: str, options: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    section = {"combine": combine, "combine_options": options or {}, "deadline": 1e5, **more.pop("algorithm", {})}
    task = {"kind": "quadratic", "dim": 5, "placement": "random", "dtype": "float64"}
    return {"rounds": 15, "task": task, "topology": {"graph": "regular:4", "n": 8}, "algorithm": section, **more}


@pytest.mark.sockets
@pytest.mark.parametrize("name", [*ROBUST[:1], *(pytest.param(name, marks=pytest.mark.long) for name in ROBUST[1:])])
def test_sockets_have_the_bits_of_the_arrays(name: str) -> None:
    plan = compose.plan(load_experiment(experiment(name)))
    vectors, _ = run_over_sockets(plan, compose.task_of(plan.experiment, plan.n)[0])
    assert digest(vectors) == simulate(experiment(name), engine="stacked").digest


@pytest.mark.parametrize("name", ROBUST)
def test_one_digest_and_equal_rows_in_the_simulator_and_on_stacked_arrays(name: str) -> None:
    uneven = {"training_jitter": 1.0, "speed_spread": 0.5, "jitter": 0.01}
    arrays, simulated = simulate(experiment(name), engine="stacked"), simulate(experiment(name, simulation=uneven))
    assert arrays.digest == simulated.digest != simulate(experiment("linear"), engine="stacked").digest
    assert arrays.summary["consensus_distance"] == simulated.summary["consensus_distance"]
    assert arrays.summary["bytes_sent"] == simulated.summary["bytes_sent"]


@pytest.mark.parametrize("name", ["clipped", "median"])
def test_losses_end_no_run_and_what_is_late_is_left_out(name: str) -> None:
    faults = [{"kind": "drop", "probability": 0.2}, {"kind": "crash", "peers": [2], "start": 0.3, "after": 0.2}]
    run = simulate(experiment(name, faults=faults, algorithm={"deadline": 1.0, "least_deadline": 0.3}))
    assert all(vector is not None and np.isfinite(vector).all() for vector in run.vectors)
    assert "repaired" not in run.summary["events"]


def test_an_experiment_without_a_rule_is_the_same_as_before_there_were_rules() -> None:
    plain = load_experiment(experiment("linear")).to_dict()["algorithm"]
    assert "combine" not in plain and "combine_options" not in plain
    assert load_experiment(experiment("median")).to_dict()["algorithm"]["combine"] == "median"


def test_a_rule_has_no_forecast() -> None:
    from fedgossip.drivers.forecasting import forecast_run

    with pytest.raises(ConfigError, match=r"algorithm.combine = 'median' is no weighted sum"):
        forecast_run(experiment("median"), "probe")
    assert simulate(experiment("median"), engine="stacked").summary["status"] == "finished"


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (experiment("mean"), "algorithm.combine"),
        (experiment("median", {"f": 1}), "algorithm.combine = 'median' has no option 'f'"),
        (experiment("clipped", {"tau": -1}), "tau is -1; expected a length"),
        (experiment("nna", {"f": 1.5}), "f is 1.5; expected `int`"),
        (experiment("geometric-median", {"steps": 0}), "steps is 0; expected a number from 1 to 1000"),
        (experiment("trimmed-mean", {"f": 3}), "f = 3: node 0 has 4 neighbours, and needs 6"),
        (experiment("nna", {"f": 4}), "f = 4: node 0 has 4 neighbours, and needs 5"),
        (experiment("median", algorithm={"private": True}), "looks at single models, and algorithm.private"),
        (experiment("median", algorithm={"mode": "async"}), "async mode has none"),
        (experiment("median", algorithm={"name": "gradient-tracking"}), "what gradient-tracking sends has no meaning"),
        (experiment("median", algorithm={"name": "push-sum"}), "what push-sum sends has no meaning but in a sum"),
        (
            experiment(
                "median",
                algorithm={"name": "slowmo", "options": {"base": "d2"}},
                topology={"graph": "complete", "n": 4},
            ),
            "what slowmo sends has no meaning",
        ),
    ],
)
def test_a_rule_that_cannot_be_is_refused_before_anything_runs(content: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose.plan(load_experiment(content))
    assert said in str(refused.value) and refused.value.advice
    assert "\n" not in f"{refused.value}{refused.value.advice}"
