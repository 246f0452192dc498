"""Graphs beside the labels on them: heterogeneity, placement, learned graphs, and the files that are made of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip import simulate
from fedgossip.base.errors import ConfigError
from fedgossip.cli.topology.topology import topology
from fedgossip.drivers.members import check_open
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.plans.tasks import example_counts
from fedgossip.topology import Mixing, build, resolve, resolve_schedule
from fedgossip.topology.graphs import families
from fedgossip.topology.spectra import heterogeneity
from fedgossip.topology.spectra import heterogeneity as h

FILE = """
rounds = 2
data.partition = { kind = "dirichlet", alpha = 0.3 }
train.device = "cpu"
topology = { graph = "ring", n = 8 }
"""


def one_class_each(n: int, classes: int = 10) -> np.ndarray:
    return np.eye(classes)[np.arange(n) % classes]


def plain(W: np.ndarray, P: np.ndarray) -> float:
    """1/n ||W P - 11'P/n||_F^2."""
    return float(((W @ P - P.mean(axis=0)) ** 2).sum() / len(P))


def said(*words: str) -> str:
    result = CliRunner().invoke(topology, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(("degree", "printed"), [(3, 0.21818182), (5, 0.14242424), (9, 0.08181818)])
def test_a_random_regular_graph_leaves_the_published_share_by_chance(degree, printed):
    """n = 100, one class each: ((||W||_F^2 - 1)/(n - 1)) 0.9; 2000 placements meet it, 5 standard errors."""
    mixing, P = build(resolve(f"regular:{degree}", 100)), one_class_each(100)
    assert h.expected(mixing, P) == pytest.approx(printed, abs=5.1e-9)
    drawn = h.draw_placements(mixing, P, 2000, 1)
    assert drawn.mean() == pytest.approx(printed, abs=5 * drawn.std() / 2000**0.5)
    assert h.label_heterogeneity(mixing, P) == pytest.approx(plain(mixing.matrix(), P), abs=1e-14)


@settings(max_examples=20, deadline=None)
@given(st.integers(4, 7), st.integers(0, 1000))
def test_no_swap_betters_the_placement_that_is_found_and_few_placements_do(n, seed):
    mixing, P = build(resolve("ring", n)), np.random.default_rng(seed).dirichlet(np.ones(3) * 0.3, n)
    places, found = h.placed(mixing, P)
    W = mixing.matrix()
    assert sorted(places.tolist()) == list(range(n))
    assert found == pytest.approx(plain(W, P[places]), abs=1e-13)
    for i, j in itertools.combinations(range(n), 2):
        swapped = places.copy()
        swapped[[i, j]] = swapped[[j, i]]
        assert plain(W, P[swapped]) >= found - 1e-10
    everywhere = [plain(W, P[list(one)]) for one in itertools.permutations(range(n))]
    assert found <= np.mean(everywhere) + 1e-12


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 9])
def test_frank_wolfe_reaches_the_published_heterogeneity(steps):
    """Le Bars et al. (2023), n = 100, one class each: H_l = 1/(l + 1) - 1/10, at most l neighbours."""
    P = one_class_each(100)
    mixing = families.stl_fw(P, steps)
    assert h.label_heterogeneity(mixing, P) == pytest.approx(1 / (steps + 1) - 1 / 10, abs=1e-12)
    assert mixing.topology.in_degrees.max() <= steps
    assert (mixing.stochastic, bool((mixing.values >= 0).all())) == ("both", True)


def test_cliques_have_the_published_number_of_edges_and_all_classes():
    """Bellet et al. (2022), n = 1000, one class each, cliques of 10: 9450 edges, 98.108 % fewer than complete."""
    P = one_class_each(1000)
    graph = families.d_cliques(P, 10, "full", 1)
    assert len(graph.edges) == 9450
    assert 1 - len(graph.edges) / (1000 * 999 / 2) == pytest.approx(0.98108, abs=5e-6)
    small = families.d_cliques(one_class_each(100), 10, "ring", 1)
    assert len(small.edges) == 450 + 10
    inside = [clique for clique in _cliques(small) if len(clique) == 10]
    assert len(inside) == 10
    assert all(sorted(node % 10 for node in clique) == list(range(10)) for clique in inside)
    assert small.is_connected


def _cliques(graph: Any) -> list[list[int]]:
    import networkx as nx

    return list(nx.find_cliques(graph.to_networkx()))


@pytest.mark.parametrize("spec", ["stl-fw:5", "d-cliques:4,ring", "d-cliques:4,full", "place:torus"])
def test_what_is_made_is_a_file_that_runs_and_says_where_it_is_from(tmp_path, spec):
    data, out = tmp_path / "e.toml", tmp_path / "made.toml"
    data.write_text(FILE)
    said("make", spec, "--data", str(data), "--out", str(out))
    mixing = resolve_schedule(str(out))
    assert (mixing.n, mixing.stochastic) == (8, "both")
    assert f"topology make {spec}, by the labels of e.toml" in out.read_text()
    assert simulate(data, overrides=[f"topology.graph={out}"]).summary["rounds"] == 2


def test_a_file_keeps_every_digit(tmp_path):
    out = tmp_path / "fdla.toml"
    said("make", "star", "--n", "5", "--weights", "fdla", "--out", str(out))
    again = resolve_schedule(str(out))
    assert isinstance(again, Mixing)
    assert np.array_equal(again.matrix(), build(resolve("star", 5), "fdla").matrix())
    assert again.rule == "fdla"  # whose weights may be negative


def test_heterogeneity_says_what_a_placement_brings(tmp_path):
    data = tmp_path / "e.toml"
    data.write_text(FILE)
    rows = json.loads(said("heterogeneity", "ring", "complete", "--data", str(data), "--json"))
    ring, complete = rows
    assert ring["best"] <= ring["drawn_least"] + 1e-12 <= ring["expected"]
    assert complete["as_placed"] == pytest.approx(0, abs=1e-15)
    text = said("heterogeneity", "ring", "--data", str(data))
    assert f"{ring['best']:.5g}" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("make", "stl-fw:3", "--out", "g.toml"), "labels of peers"),
        (("make", "ring", "--n", "4", "--out", "g.txt"), "TOML"),
        (("make", "ring", "--n", "4", "--out", "/nowhere/g.toml"), "/nowhere"),
        (("make", "stl-fw:1", "--data", "FILE", "--out", "g.toml"), "falls apart"),
        (("make", "stl-fw:0", "--data", "FILE", "--out", "g.toml"), "stl-fw:0"),
        (("make", "d-cliques:7,ring", "--data", "FILE", "--out", "g.toml"), "d-cliques:7"),
        (("make", "d-cliques:4,star", "--data", "FILE", "--out", "g.toml"), "ring or full"),
        (("make", "place:base:1", "--data", "FILE", "--out", "g.toml"), "every round"),
        (("heterogeneity", "karate", "--data", "FILE"), "34 nodes, not 8"),
        (("heterogeneity", "ring", "--data", "AVERAGING"), "label counts"),
    ],
)
def test_what_cannot_be_made_is_said(tmp_path: Path, words, message):
    (tmp_path / "e.toml").write_text(FILE)
    (tmp_path / "a.toml").write_text('rounds = 2\ntask.kind = "averaging"\ntopology = { graph = "ring", n = 4 }\n')
    named = {"FILE": str(tmp_path / "e.toml"), "AVERAGING": str(tmp_path / "a.toml")}
    with pytest.raises(ConfigError) as caught:
        said(*(named.get(word, word) for word in words))
    assert message in f"{caught.value} {caught.value.advice}"


# --- weights by numbers of examples -------------------------------------------------------------------------------


def by_sizes(**more: Any) -> dict[str, Any]:
    topology_ = {"graph": "ring", "n": 8, "weights": "sizes", **more}
    partition = {"kind": "dirichlet", "alpha": 0.3}
    return {"rounds": 2, "data": {"partition": partition}, "train": {"device": "cpu"}, "topology": topology_}


def test_weights_by_sizes_keep_the_mean_weighted_by_numbers_of_examples(tmp_path: Path) -> None:
    """pi W = pi for pi the numbers of examples, which are unequal; in a file too."""
    experiment = load_experiment(by_sizes())
    sizes = np.array(example_counts(experiment, 8), np.float64)
    W = compose.plan(experiment).schedule.matrix()
    assert np.ptp(sizes) > 10 and np.abs(sizes @ W - sizes).max() < 1e-9 and np.abs(W.sum(axis=1) - 1).max() < 1e-12
    place = tmp_path / "e.toml"
    place.write_text(FILE)
    said("make", "ring", "--weights", "sizes", "--data", str(place), "--out", str(tmp_path / "g.toml"))
    again = resolve_schedule(str(tmp_path / "g.toml"))
    assert again.stochastic == "rows" and np.abs(again.mixing(0).matrix() - W).max() < 1e-12


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (by_sizes() | {"task": {"kind": "averaging"}, "data": {}, "train": {}}, "not known to the others"),
        (by_sizes(graph="base:1"), "not one graph"),
        (by_sizes(graph="directed-exponential"), "is directed"),
    ],
)
def test_weights_by_sizes_are_refused_where_there_are_none(content: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose.plan(load_experiment(content))


def test_weights_by_sizes_are_told_from_others_before_a_link_is_opened() -> None:
    marks = {str(compose.plan(load_experiment(content)).fingerprint) for content in
             (by_sizes(), by_sizes() | {"seed": 2}, by_sizes(weights="metropolis"))}  # fmt: skip
    assert len(marks) == 3


def test_weights_by_sizes_need_the_same_peers_throughout() -> None:
    with pytest.raises(ConfigError, match="no peer can join"):
        check_open(compose.plan(load_experiment(by_sizes())))
    with pytest.raises(ConfigError, match="without an experiment"):
        build(resolve("ring", 8), "sizes")


# --- by updates, and by modes -------------------------------------------------------------------------------------

QUADRATIC = """
rounds = 1
task = { kind = "quadratic", placement = "PLACE", eta = 0.1, sigma = SIGMA, dim = 400, dtype = "float64" }
topology = { graph = "ring", n = 16 }
"""


def by_updates(tmp_path: Path, placement: str, sigma: float) -> dict[str, float]:
    file = tmp_path / "q.toml"
    file.write_text(QUADRATIC.replace("PLACE", placement).replace("SIGMA", str(sigma)))
    found = json.loads(said("heterogeneity", "ring", "--data", str(file), "--gradients", "--json"))[0]
    return {key: value for key, value in found.items() if key != "graph"}


@pytest.mark.parametrize(("placement", "mode"), [("smooth", 0.9492530217), ("alternating", 1 / 3)])
def test_updates_in_one_mode_leave_the_square_of_its_eigenvalue(tmp_path, placement, mode):
    """f_i = 1/2 ||x - b_i||^2, mean b^2 = 1 in each of 400 coordinates: u = 0.1 (b_i - x), and W u = l u."""
    found = by_updates(tmp_path, placement, 0.0)
    assert found["alone"] == pytest.approx(4.0, rel=1e-9) and found["noise"] == 0.0
    assert found["as_placed"] == pytest.approx(4.0 * mode**2, rel=1e-8)
    assert found["best"] <= found["drawn_least"] * (1 + 1e-9) < found["expected"] < 0.9 * found["alone"]


def test_noise_of_updates_is_told_apart_from_what_lasts(tmp_path):
    """eta^2 sigma^2 a coordinate, 400 of them; a ring's round leaves (16/3 - 1)/15 of what is not the mean's."""
    found = by_updates(tmp_path, "smooth", 1.0)
    assert found["noise_alone"] == pytest.approx(0.01 * 400 * 15 / 16, rel=0.05)
    assert found["noise"] == pytest.approx(found["noise_alone"] * (16 / 3 - 1) / 15, rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["ring", "torus", "star", "complete", "regular:3"]), st.integers(0, 1000))
def test_energies_of_the_modes_add_up_to_the_heterogeneity(spec, seed):
    """sum E_k = n H(I), sum l_k^2 E_k = n H(W)."""
    mixing, P = build(resolve(spec, 12)), np.random.default_rng(seed).dirichlet(np.ones(4) * 0.3, 12)
    values, energy = heterogeneity.energies(mixing, P)
    assert energy.sum() == pytest.approx(12 * h.alone(P), rel=1e-9)
    assert (values**2 * energy).sum() == pytest.approx(12 * h.label_heterogeneity(mixing, P), rel=1e-8, abs=1e-12)
    assert np.abs(values - np.linalg.eigvalsh(mixing.matrix())[::-1][1:]).max() < 1e-12
    there = [energy[np.abs(values - value) < 1e-9] for value in values]
    assert all(np.ptp(equal) < 1e-12 for equal in there), "which vectors of one eigenvalue are taken says nothing"


@pytest.mark.parametrize(
    ("spec", "n", "most", "alike"),
    [
        ("one-peer-exponential", 12, 0.20912908, False),  # the period's product
        ("base:1", 25, 0.0, True),
        ("matcha:0.5:matcha-8", None, 0.643974968**0.5, False),  # E[W'W] - J
        ("el-oracle:4", 16, (0.2 * (1 - 4 / 15)) ** 0.5, True),
        ("debruijn:2", 16, 1.0, False),  # singular values: nothing is nearer after one round in some directions
        ("hypercube", 16, 3 / 5, False),
    ],
)
def test_what_is_left_of_the_modes_is_the_published_worst_and_the_typical(spec, n, most, alike):
    schedule = resolve_schedule(spec, n)
    left = heterogeneity.compute_remaining_modes(schedule)
    assert len(left) == schedule.n - 1 and np.abs(left).max() == pytest.approx(most, abs=1e-8)
    assert (np.ptp(left) < 1e-9) == alike
    if isinstance(schedule, Mixing):
        squares = (float((schedule.matrix() ** 2).sum()) - 1) / (schedule.n - 1)
        assert np.mean(left**2) == pytest.approx(squares, rel=1e-9)


def test_the_modes_are_drawn_and_what_cannot_be_is_said(tmp_path: Path) -> None:
    place, data = tmp_path / "modes.svg", tmp_path / "e.toml"
    data.write_text(FILE)
    said("show", "ring", "--n", "8", "--spectrum", str(place), "--data", str(data))
    assert "eigenvalue" in place.read_text() and "labels differ" in place.read_text()
    for words, why in (
        (("show", "base:1", "--n", "8", "--spectrum", "m.svg", "--data", str(data)), "another graph in every round"),
        (("show", "ring", "--n", "9", "--spectrum", "m.txt"), "cannot draw to m.txt"),
        (("show", "ring", "--n", "9", "--data", str(data)), "in a drawing"),
        (("show", "regular:4", "--n", "4000", "--spectrum", "m.svg"), "are not known"),
        (("show", "directed-exponential", "--n", "8", "--spectrum", "m.svg", "--data", str(data)), "both ways"),
    ):
        with pytest.raises(ConfigError, match=why):
            CliRunner().invoke(topology, words, catch_exceptions=False)
