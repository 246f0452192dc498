"""The exact table: what each algorithm comes to on a quadratic, by algebra, by its object, and by the engine.

Ring of 16, f_i = 1/2 |x - b_i|^2, eta = 0.1, sum b^2 = 16, gradient noise of sigma 1: a round is z <- A z + B (b - xi),
got from the algorithm object by running it on unit vectors.  The printed numbers were computed apart from this package.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgossip import simulate
from fedgossip.algorithms.gossip.base import Step
from fedgossip.algorithms.gossip.names import METHODS, GraphFacts, make
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import frozen
from fedgossip.topology import build, resolve

N, ETA = 16, 0.1
PLACED = {
    "smooth": np.sqrt(2) * np.cos(2 * np.pi * np.arange(N) / N),
    "alternating": (-1.0) ** np.arange(N),
}
OM = 1.2

KINDS: dict[str, dict[str, Any]] = {
    "dsgd atc": {"name": "dsgd"},
    "dsgd cta": {"name": "dsgd", "options": {"order": "cta"}},
    "gradient-tracking": {"name": "gradient-tracking"},
    "d2": {"name": "d2"},
    "extra": {"name": "extra"},
    "dsgdm": {"name": "dsgdm", "options": {"beta": 0.9}},
    "qg-dsgdm": {"name": "qg-dsgdm", "options": {"beta": 0.9, "mu": 0.9}},
    "decentlam": {"name": "decentlam", "options": {"beta": 0.9}},
    "two-tap": {"name": "two-tap", "options": {"om": OM}},
}

# disagreement for smooth b, for alternating b, both without noise; by noise; variance of the mean by noise
TABLE = {
    ("dsgd atc", "metropolis"): (0.42462948, 0.00065746, 0.00684153, 0.00328947),
    ("dsgd atc", "lazy"): (0.62954114, 0.00226757, 0.01162381, 0.00328947),
    ("dsgd cta", "metropolis"): (0.44005075, 0.00486750, 0.01474058, 0.00328947),
    ("dsgd cta", "lazy"): (0.63619254, 0.01701323, 0.01803488, 0.00328947),
    ("gradient-tracking", "metropolis"): (0, 0, 0.00589526, 0.00328947),
    ("gradient-tracking", "lazy"): (0, 0, 0.00929853, 0.00328947),
    ("d2", "metropolis"): (0, 0, 0.00938036, 0.00328947),
    ("d2", "lazy"): (0, 0, 0.01218696, 0.00328947),
    ("extra", "metropolis"): (0, 0, 0.01992367, 0.00328947),
    ("extra", "lazy"): (0, 0, 0.02463030, 0.00328947),
    ("dsgdm", "metropolis"): (0.86072057, 0.00038447, 0.03934927, 0.03209459),
    ("dsgdm", "lazy"): (0.93898375, 0.00444444, 0.07105596, 0.03209459),
    ("qg-dsgdm", "metropolis"): (0.42462948, 0.00065746, 0.00953659, 0.00610158),
    ("qg-dsgdm", "lazy"): (0.62954114, 0.00226757, 0.01672024, 0.00610158),
}


def weights(name: str) -> np.ndarray:
    return build(resolve("ring", N), name).matrix()


def method(kind: str) -> Any:
    given = KINDS[kind]
    return make(given["name"], METHODS[given["name"]], GraphFacts(N), given.get("options", {}))


def one_round(kind: str, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A [k n, k n] and B [k n, n] of the algorithm object, whose state has k arrays after a round."""
    algorithm = method(kind)

    def after(state: Any, b: np.ndarray) -> Any:
        begun, sent = algorithm.trained(state, frozen(ETA * (b - algorithm.model(state))), Step(0, ETA, 1.0))
        return algorithm.mixed(begun, tuple(frozen(W @ one) for one in sent))

    once = after(algorithm.start(frozen(np.zeros((N, N)))), np.eye(N))
    names = [field.name for field in fields(once) if isinstance(getattr(once, field.name), np.ndarray)]
    width = N * len(names)
    units = dict(zip(names, np.eye(width).reshape(len(names), N, width), strict=True))
    like = replace(once, **{name: frozen(unit.copy()) for name, unit in units.items()})
    wide = after(like, np.zeros((N, width)))
    stack = [np.concatenate([getattr(state, name) for name in names]) for state in (wide, once)]
    return stack[0], stack[1]


def stationary(A: np.ndarray, B: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The model [n] and its covariance [n, n] after 2^14 rounds from 0, by doubling: what never ends is in neither."""
    z, C, power = B @ b, B @ B.T, A
    for _ in range(14):
        z, C, power = z + power @ z, C + power @ C @ power.T, power @ power
    return z[:N], C[:N, :N]


def apart(x: np.ndarray) -> float:
    return float(np.mean((x - x.mean()) ** 2))


@pytest.mark.parametrize(("kind", "name"), TABLE)
def test_the_algorithm_object_has_the_numbers_of_the_table(kind: str, name: str) -> None:
    A, B = one_round(kind, weights(name))
    found = [apart(stationary(A, B, b)[0]) for b in PLACED.values()]
    _, C = stationary(A, B, PLACED["smooth"])
    mean = C.sum() / N**2
    assert [*found, np.trace(C) / N - mean, mean] == pytest.approx(TABLE[kind, name], abs=5.1e-9)


@pytest.mark.parametrize("name", ["metropolis", "lazy"])
@pytest.mark.parametrize(
    ("kind", "first", "second", "gain"),
    [
        # x' = (beta + l (1 - eta)) x - beta x_before + l eta (b - xi), for W has the eigenvalue l
        ("decentlam", lambda m: 0.9 + m * (1 - ETA), lambda m: -0.9 + 0 * m, lambda m: m * ETA),
        # x' = om l (1 - eta) x + (1 - om) x_before + om l eta (b - xi)
        ("two-tap", lambda m: OM * m * (1 - ETA), lambda m: 1 - OM + 0 * m, lambda m: OM * m * ETA),
    ],
)
def test_an_algorithm_of_two_rounds_has_the_variance_of_that_process(
    kind: str, name: str, first: Any, second: Any, gain: Any
) -> None:
    """Per mode an AR(2) process: variance s^2 (1 - q) / ((1 + q) ((1 - q)^2 - p^2)), level s B / (1 - p - q)."""
    modes, vectors = np.linalg.eigh(weights(name))
    p, q, s = first(modes), second(modes), gain(modes)
    variance = s**2 * (1 - q) / ((1 + q) * ((1 - q) ** 2 - p**2))
    A, B = one_round(kind, weights(name))
    _, C = stationary(A, B, PLACED["smooth"])
    assert np.diag(vectors.T @ C @ vectors) == pytest.approx(variance, abs=1e-10)
    for placement, b in PLACED.items():
        level = vectors @ (s / (1 - p - q) * (vectors.T @ b))
        x, _ = stationary(A, B, b)
        assert x == pytest.approx(level, abs=1e-10)
        assert apart(x) == pytest.approx(plain(placement, name), abs=5.1e-9), "momentum does not multiply it"


def plain(placement: str, name: str) -> float:
    return TABLE["dsgd atc", name][list(PLACED).index(placement)]


def experiment(kind: str, placement: str, name: str, rounds: int, **more: Any) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "task": {"kind": "quadratic", "placement": placement, "dtype": "float64", "eta": ETA},
        "topology": {"graph": "ring", "n": N, "weights": name},
        "algorithm": {**KINDS[kind], "deadline": 1e5},
        **more,
    }


SLOW = {("gradient-tracking", "metropolis"): 700, ("gradient-tracking", "lazy"): 2000, ("d2", "lazy"): 700}
SLOW |= {("extra", "metropolis"): 700}
NOT_RUN = ("d2", "metropolis"), ("extra", "lazy")  # refused; 1200 rounds
RUN = [(kind, name) for kind in KINDS for name in ("metropolis", "lazy") if (kind, name) not in NOT_RUN]


@pytest.mark.parametrize("placement", PLACED)
@pytest.mark.parametrize(("kind", "name"), RUN)
def test_the_engine_ends_there(kind: str, name: str, placement: str) -> None:
    """To 1e-8; where nothing is left of the disagreement, its root is what still falls."""
    rounds = SLOW.get((kind, name), 450)
    run = simulate({**experiment(kind, placement, name, rounds), "eval": {"every": rounds}}, engine="stacked")
    x = np.concatenate(run.vectors)
    number = TABLE.get((kind, name), (plain("smooth", name), plain("alternating", name)))
    assert apart(x) == pytest.approx(number[list(PLACED).index(placement)], abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_every_round_is_the_linear_map_in_the_simulator_too(kind: str) -> None:
    A, B = one_round(kind, weights("lazy"))
    z = np.zeros(len(A))
    for _ in range(40):
        z = A @ z + B @ PLACED["smooth"]
    stacked = simulate(experiment(kind, "smooth", "lazy", 40), engine="stacked")
    assert np.concatenate(stacked.vectors) == pytest.approx(z[:N], abs=1e-10)
    uneven = {"simulation": {"training_jitter": 2.0, "speed_spread": 0.5, "jitter": 0.3}}
    assert simulate(experiment(kind, "smooth", "lazy", 40, **uneven)).digest == stacked.digest


@pytest.mark.parametrize("kind", ["dsgd atc", "dsgd cta", "gradient-tracking", "d2", "extra"])
def test_the_mean_moves_by_the_mean_update(kind: str) -> None:
    draw = np.random.default_rng(4)
    algorithm, W = method(kind), weights("lazy")
    state = algorithm.start(frozen(draw.standard_normal((N, 3))))
    expected = state.x.mean(axis=0)
    for number in range(9):
        update = frozen(draw.standard_normal((N, 3)))
        begun, sent = algorithm.trained(state, update, Step(number, ETA, 1.0))
        state = algorithm.mixed(begun, tuple(frozen(W @ one) for one in sent))
        expected = expected + update.mean(axis=0)
        assert np.abs(algorithm.model(state).mean(axis=0) - expected).max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_too_late_counts_as_if_it_had_been_mixed(kind: str) -> None:
    draw = np.random.default_rng(5)
    algorithm = method(kind)
    state = algorithm.start(frozen(draw.standard_normal((N, 3))))
    for number in range(3):
        begun, sent = algorithm.trained(state, frozen(draw.standard_normal((N, 3))), Step(number, ETA, 1.0))
        late = tuple(frozen(draw.standard_normal((N, 3))) for _ in sent)
        in_time = algorithm.mixed(begun, tuple(frozen(one + more) for one, more in zip(sent, late, strict=True)))
        state = algorithm.corrected(algorithm.mixed(begun, sent), late)
        for field in fields(state):
            one, other = getattr(state, field.name), getattr(in_time, field.name)
            assert one is other or np.abs(one - other).max() < 1e-12, field.name


@pytest.mark.parametrize("kind", ["dsgdm", "qg-dsgdm", "decentlam"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_momentum_follows_the_learning_rate_with_the_same_bits_for_one_peer_and_for_all(kind: str, dtype: str) -> None:
    draw = np.random.default_rng(6)
    algorithm, type_ = method(kind), np.dtype(dtype).type
    first = draw.standard_normal((N, 3)).astype(dtype)
    rows = before = algorithm.start(frozen(first))
    one = algorithm.start(frozen(first[0].copy()))
    for number, rate in enumerate([0.1, 0.1, 0.07, 0.0, 0.03]):
        update = draw.standard_normal((N, 3)).astype(dtype)
        rates = np.full((N, 1), rate, dtype)
        rows, sent = algorithm.trained(rows, frozen(update), Step(number, rates, np.ones((N, 1), type_)))
        one, mine = algorithm.trained(one, frozen(update[0].copy()), Step(number, rate, 1.0))
        assert all((all_[0] == own).all() for all_, own in zip(sent, mine, strict=True))
        if number == 2:
            assert rows.motion == pytest.approx(before.motion * type_(0.7), rel=1e-6)
        rows = before = algorithm.mixed(rows, sent)
        one = algorithm.mixed(one, mine)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said", "advice"),
    [
        ({"topology": {"graph": "torus:4x4"}}, "above -0.333333, and that of 'torus' is -0.6", "lazy"),
        ({"topology": {"graph": "ring", "n": 16}}, "above -0.333333, and that of 'ring' is -0.333333", "lazy"),
        ({"topology": {"graph": "one-peer-exponential", "n": 8}}, "changes by the round", "regular:4"),
        ({"topology": {"graph": "directed-exponential", "n": 6}}, "the same both ways", "metropolis"),
        ({"faults": [{"kind": "drop", "probability": 0.1}]}, "needs every message of every round.* drop", "dsgd"),
        ({"faults": [{"kind": "crash", "peers": [1], "start": 1.0, "after": 1.0}]}, ".* crash", "dsgd"),
    ],
)
def test_d2_is_refused_where_it_would_diverge_or_go_astray(more: dict[str, Any], said: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        simulate({**experiment("d2", "smooth", "lazy", 4), **more})
    assert advice in refused.value.advice
    assert "\n" not in f"{refused.value}{refused.value.advice}"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"topology": {"graph": "one-peer-exponential", "n": 8}}, "extra needs one graph for the whole run"),
        ({"topology": {"graph": "directed-exponential", "n": 6}}, "extra needs weights that are the same both ways"),
        ({"topology": {"graph": "star", "n": 6, "weights": "inverse"}}, "columns of its weights do not sum to one"),
        ({"faults": [{"kind": "drop", "probability": 0.1}]}, "extra needs every message of every round.* drop"),
        ({"faults": [{"kind": "crash", "peers": [1], "start": 1.0, "after": 1.0}]}, "extra needs .* crash"),
        ({"algorithm": {"name": "extra", "combine": "median"}}, "what extra sends has no meaning but in a sum"),
        ({"algorithm": {"name": "extra", "mode": "async"}}, "extra has no async mode"),
        ({"topology": {"graph": "complete", "n": 2, "weights": "exchanged:own"}}, "above -1, and that of 'complete'"),
    ],
)
def test_extra_is_refused_where_its_paper_promises_nothing(
    more: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last: two peers that exchange their models have the eigenvalue -1."""
    (tmp_path / "exchanged.py").write_text("def own(topology):\n    return [[0.0, 1.0], [1.0, 0.0]]\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=said) as refused:
        simulate({**experiment("extra", "smooth", "metropolis", 4), **more})
    assert refused.value.advice and "\n" not in f"{refused.value}{refused.value.advice}"


@pytest.mark.parametrize("name", ["metropolis", "lazy"])
def test_the_step_of_extra_is_bound_by_the_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of curvature 1 it is stable up to (5 + 3 lambda_n) / 4, which is more than the paper's 1 + lambda_n."""
    W = weights(name)
    edge = (5 + 3 * float(np.linalg.eigvalsh(W)[0])) / 4
    for eta, stable in ((0.99 * edge, True), (1.01 * edge, False)):
        monkeypatch.setitem(globals(), "ETA", eta)
        x = stationary(*one_round("extra", W), PLACED["alternating"])[0]
        assert bool(np.isfinite(x).all() and np.abs(x).max() < 1) == stable


def test_d2_diverges_where_it_is_refused() -> None:
    """Metropolis weights of a 4 x 4 torus, lambda_n = -0.6: a round multiplies by about 1.5."""
    A, _ = one_round("d2", build(resolve("torus:4x4", N)).matrix())
    assert np.abs(np.linalg.eigvals(A)).max() > 1.4


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"name": "dsgd", "options": {"order": "other"}}, "dsgd has no order 'other'"),
        ({"name": "dsgdm", "options": {"beta": 1}}, "beta is 1; expected a number from 0 to below 1"),
        ({"name": "qg-dsgdm", "options": {"mu": "much"}}, "mu is 'much'"),
        ({"name": "decentlam", "options": {"beta": -0.1}}, "beta is -0.1"),
        ({"name": "two-tap", "options": {"om": 1.2, "slem": 0.5}}, "one of the options om and slem"),
        ({"name": "two-tap", "options": {"om": 2}}, "om is 2; expected a number between 0 and 2"),
        ({"name": "two-tap", "options": {"slem": 1}}, "slem is 1; expected a number between 0 and 1"),
    ],
)
def test_an_option_out_of_its_range_is_refused(algorithm: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        simulate({**experiment("d2", "smooth", "lazy", 4), "algorithm": algorithm})
    assert refused.value.advice


@pytest.mark.parametrize("name", ["dsgdm", "qg-dsgdm", "decentlam"])
def test_momentum_over_momentum_is_refused(name: str) -> None:
    content = {"rounds": 1, "train": {"momentum": 0.9}, "topology": {"graph": "ring", "n": 4}}
    with pytest.raises(ConfigError, match=f"{name} needs plain SGD"):
        simulate({**content, "algorithm": {"name": name}})
