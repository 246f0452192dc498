"""SlowMo round any of its bases, and Nesterov's form of mixed momentum: the papers' lines, and torch's, by number."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgossip import simulate
from fedgossip.algorithms.gossip.base import Step, restored, saved
from fedgossip.algorithms.gossip.names import METHODS, SLOWED, GraphFacts, make
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import frozen

ETA = 0.05


def experiment(rounds: int = 30, graph: str = "ring", n: int = 6, **options: Any) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "task": {"kind": "quadratic", "dim": 3, "placement": "random", "dtype": "float64", "eta": ETA},
        "topology": {"graph": graph, "n": n, "weights": "lazy"},
        "algorithm": {"name": "slowmo", "options": options, "deadline": 1e5},
        "eval": {"every": rounds},
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("base", SLOWED)
def test_a_slow_step_of_one_without_memory_is_the_base_to_the_bit(base: str, dtype: str) -> None:
    slowed = experiment(base=base, every=4, alpha=1.0, beta=0.0)
    slowed["task"]["dtype"] = dtype
    plain = {**slowed, "algorithm": {"name": base, "deadline": 1e5}}
    assert simulate(slowed, engine="stacked").digest == simulate(plain, engine="stacked").digest
    other = {**slowed, "algorithm": {"name": "slowmo", "options": {"base": base, "every": 4}}}
    assert simulate(other, engine="stacked").digest != simulate(plain, engine="stacked").digest


@pytest.mark.parametrize("nesterov", [False, True])
def test_on_the_complete_graph_it_is_the_papers_algorithm(nesterov: bool) -> None:
    """Algorithm 1, x averaged exactly at the end of each period: u <- beta u + (anchor - x) / rate, and so on."""
    every, alpha, beta, n = 5, 0.8, 0.6, 4
    options = {"every": every, "alpha": alpha, "beta": beta, "nesterov": nesterov}
    content = experiment(rounds=5 * every, graph="complete", n=n, **options)
    content["topology"]["weights"] = "metropolis"
    run = simulate(content, engine="stacked")
    from fedgossip import load_experiment
    from fedgossip.plans import compose

    b = compose.task_of(compose.plan(load_experiment(content)).experiment, n)[0].b.mean(axis=0)  # type: ignore[attr-defined]
    anchor, u = np.zeros(3), np.zeros(3)
    for _ in range(5):
        x = anchor
        for _ in range(every):
            x = x - ETA * (x - b)
        pseudo = (anchor - x) / ETA
        u = beta * u + pseudo
        anchor = anchor - alpha * ETA * (beta * u + pseudo if nesterov else u)
    assert np.abs(np.stack(run.vectors) - anchor).max() < 1e-13


@pytest.mark.parametrize("base", ["dsgd", "dsgdm"])
def test_with_an_exact_average_every_so_often_it_is_the_papers_on_any_graph(base: str) -> None:
    """Base rounds on a ring, the last of each five with the exact mean; then u, and one x for all: in plain loops."""
    every, alpha, beta, n = 5, 0.8, 0.6, 6
    options = {"base": base, "every": every, "alpha": alpha, "beta": beta}
    content = experiment(rounds=4 * every, graph=f"every:{every}:complete:ring", n=n, **options)
    content["topology"]["weights"] = "metropolis"
    run = simulate(content, engine="stacked")
    from fedgossip import load_experiment
    from fedgossip.plans import compose
    from fedgossip.topology import build, resolve

    b = compose.task_of(compose.plan(load_experiment(content)).experiment, n)[0].b  # type: ignore[attr-defined]
    W, J = build(resolve("ring", n), "metropolis").matrix(), np.full((n, n), 1 / n)
    x, anchor, slow, M = (np.zeros((n, 3)) for _ in range(4))
    for _ in range(4):
        for step in range(every):
            v = ETA * (b - x) + (0.9 * M if base == "dsgdm" else 0)
            mixing = J if step == every - 1 else W
            x, M = mixing @ (x + v), mixing @ v
        slow = beta * slow + (x - anchor)
        x = anchor = anchor + alpha * slow
        assert np.ptp(x, axis=0).max() < 1e-12  # all go on from one model
    assert np.abs(np.stack(run.vectors) - x).max() < 1e-12


@pytest.mark.parametrize("base", ["dsgd", pytest.param("gradient-tracking", marks=pytest.mark.long)])
def test_the_stationary_models_are_those_of_the_base(base: str) -> None:
    """Where nothing moves v is 0: slow momentum does not multiply the disagreement."""
    options = {"base": base, "every": 5, "beta": 0.5}
    rounds = 700 if base == "dsgd" else 2000
    slowed = simulate(experiment(rounds=rounds, **options), engine="stacked")
    plain = simulate({**experiment(rounds=rounds), "algorithm": {"name": base}}, engine="stacked")
    assert np.abs(np.stack(slowed.vectors) - np.stack(plain.vectors)).max() < 1e-10


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("base", SLOWED)
def test_what_comes_late_counts_as_if_it_had_been_mixed(base: str, nesterov: bool) -> None:
    draw = np.random.default_rng(5)
    options = {"base": base, "every": 2, "alpha": 0.7, "beta": 0.4, "nesterov": nesterov}
    algorithm = make("slowmo", METHODS["slowmo"], GraphFacts(4), options)
    state = algorithm.start(frozen(draw.standard_normal((4, 3))))
    for number in range(5):
        begun, sent = algorithm.trained(state, frozen(draw.standard_normal((4, 3))), Step(number, 0.1, 1.0))
        late = tuple(frozen(draw.standard_normal((4, 3))) for _ in sent)
        in_time = algorithm.mixed(begun, tuple(frozen(one + more) for one, more in zip(sent, late, strict=True)))
        state = algorithm.corrected(algorithm.mixed(begun, sent), late)
        assert_alike(state, in_time)


def assert_alike(one: Any, other: Any) -> None:
    for field in fields(one):
        here, there = getattr(one, field.name), getattr(other, field.name)
        if is_dataclass(here):
            assert_alike(here, there)
        else:
            assert here is there or np.abs(here - there).max() < 1e-12, field.name


@pytest.mark.parametrize("base", SLOWED)
def test_a_checkpoint_holds_the_state_within_the_state(base: str) -> None:
    draw = np.random.default_rng(7)
    algorithm = make("slowmo", METHODS["slowmo"], GraphFacts(4), {"base": base, "every": 2})
    state = fresh = algorithm.start(frozen(draw.standard_normal(3)))
    for number in range(3):
        begun, sent = algorithm.trained(state, frozen(draw.standard_normal(3)), Step(number, 0.1, 1.0))
        state = algorithm.mixed(begun, sent)
    arrays, numbers = saved(state)
    assert {"base/x", "slow/x", "slow/motion"} <= arrays.keys() and numbers["since"] == 1
    assert_alike(restored(fresh, arrays, numbers), state)
    with pytest.raises(ValueError, match="has no other"):
        restored(fresh, arrays, {**numbers, "base/other": 1})


def test_it_goes_on_from_an_image_bit_for_bit(tmp_path: Path) -> None:
    from test_resume import ctrl_c_after

    from fedgossip.drivers.simulate import simulate_plan
    from fedgossip.experiment import load_experiment
    from fedgossip.plans import compose

    content = experiment(rounds=12, base="gradient-tracking", every=5)
    whole = simulate(content, engine="stacked").digest
    plan = compose.plan(load_experiment(content))
    simulate_plan(plan, engine="stacked", out=tmp_path / "run", watch=ctrl_c_after(7))
    assert simulate_plan(plan, engine="stacked", out=tmp_path / "run", resume=True).digest == whole


# --- Nesterov ---------------------------------------------------------------------------------------------------------


def test_nesterov_on_the_complete_graph_is_torchs_sgd_on_the_mean_loss() -> None:
    content = experiment(rounds=40, graph="complete", n=4)
    content["algorithm"] = {"name": "dsgdm", "options": {"nesterov": True}}
    from fedgossip import load_experiment
    from fedgossip.plans import compose

    b = compose.task_of(compose.plan(load_experiment(content)).experiment, 4)[0].b  # type: ignore[attr-defined]
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    descent = torch.optim.SGD([x], lr=ETA, momentum=0.9, nesterov=True)
    for _ in range(40):
        descent.zero_grad()
        ((x - torch.from_numpy(b)) ** 2).sum(dim=1).mean().div(2).backward()
        descent.step()
    content["topology"]["weights"] = "metropolis"
    run = simulate(content, engine="stacked")
    assert np.abs(np.stack(run.vectors) - x.detach().numpy()).max() < 1e-12


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("slowmo", {"base": "push-sum"}, "slowmo has no base 'push-sum'"),
        ("slowmo", {"base": "dsgd", "base_options": {"orders": "cta"}}, "dsgd has no option 'orders'"),
        ("slowmo", {"every": 0}, "every is 0; expected a number of rounds from 1 on"),
        ("slowmo", {"alpha": -1.0}, "alpha is -1.0; expected a number above 0"),
        ("slowmo", {"beta": 1}, "beta is 1; expected a number from 0 to below 1"),
        ("slowmo", {"nesterov": 1}, "nesterov is 1; expected `bool`"),
        ("dsgdm", {"nesterov": "yes"}, "nesterov is 'yes'; expected `bool`"),
    ],
)
def test_an_option_out_of_its_range_is_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        simulate({**experiment(), "algorithm": {"name": name, "options": options}})
    assert refused.value.advice


def test_what_the_base_needs_the_whole_needs() -> None:
    content = experiment(base="d2")
    content["topology"]["weights"] = "metropolis"
    with pytest.raises(ConfigError, match=r"slowmo needs weights whose smallest eigenvalue is above -0.333333"):
        simulate(content)
