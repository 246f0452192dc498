"""`fedgossip topology compare`: 30 graphs and sequences, whose columns are norms of products of their rounds."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from fedgossip.cli.topology.topology import topology
from fedgossip.topology import resolve_schedule

N = 16
SETTLED = [
    *("ring", "path", "star", "complete", "torus", "grid", "hypercube", "exponential", "directed-exponential"),
    *("circulant:1,5", "regular:3", "erdos-renyi:0.4", "small-world:4,0.3", "barabasi-albert:2", "tree", "two-cliques"),
    *("spanning-tree:torus", "debruijn:2", "kautz:2", "equi-static:3", "u-equi-static:3"),
    *("one-peer-exponential", "one-peer-hypercube", "base:1", "base:2", "simple-base:2", "leja:torus"),
    *("every:4:complete:ring", "every:3:star:one-peer-exponential", "every:2:ring:debruijn:2"),
]
DRAWN = ["random-matching", "el-oracle:3", "equi-dynamic", "u-equi-dynamic", "matcha:0.5:torus", "shuffled:star"]
GRAPHS = [*SETTLED, *DRAWN]


def said(*words: str) -> str:
    result = CliRunner().invoke(topology, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, float]]:
    return {row["graph"]: row for row in json.loads(said("compare", *GRAPHS, "--n", str(N), "--json"))}


def products(graph: str, rounds: int, seed: int = 1) -> list[np.ndarray]:
    """W_t ... W_1 - J for t = 1, 2, ..., rounds, dense and plain."""
    schedule, P, found = resolve_schedule(graph, N, seed=seed), np.eye(N), []
    for number in range(rounds):
        P = schedule.mixing(number).matrix() @ P
        found.append(P - 1 / N)
    return found


def first(shares: list[float], factor: float) -> int:
    return next(t for t, share in enumerate(shares, 1) if share <= factor * (1 + 1e-9))


@pytest.mark.parametrize("graph", SETTLED)
def test_worst_and_typical_rounds_are_those_of_product_norms(graph, table):
    """worst(t) = ||P_t - J||_2, typical(t) = ||P_t - J||_F / sqrt(n - 1): the first t at which they are that small."""
    row, left = table[graph], products(graph, 500)
    worst = [float(np.linalg.norm(P, 2)) for P in left]
    typical = [float(np.linalg.norm(P)) / math.sqrt(N - 1) for P in left]
    assert (row["rounds_to_halve"], row["rounds_to_1_percent"]) == (first(worst, 0.5), first(worst, 0.01))
    assert (row["typical_to_halve"], row["typical_to_1_percent"]) == (first(typical, 0.5), first(typical, 0.01))


@pytest.mark.parametrize("graph", [*DRAWN[:3], *(pytest.param(graph, marks=pytest.mark.long) for graph in DRAWN[3:])])
def test_where_rounds_are_drawn_typical_is_the_expected_square_and_worst_the_median(graph, table):
    """Against 120 draws of their own seeds: the square within 5 standard errors at the round said, not before it; the
    median within a round or a tenth."""
    row = table[graph]
    rounds = 2 * row["typical_to_1_percent"]
    draws = [products(graph, rounds, seed) for seed in range(1000, 1120)]
    squares = np.array([[float((P**2).sum()) / (N - 1) for P in draw] for draw in draws])
    mean, error = squares.mean(axis=0), 5 * squares.std(axis=0) / math.sqrt(len(draws))
    for key, share in (("typical_to_halve", 0.25), ("typical_to_1_percent", 1e-4)):
        at = row[key] - 1
        assert mean[at] - error[at] <= share
        assert at == 0 or mean[at - 1] + error[at - 1] > share
    for key, share in (("rounds_to_halve", 0.5), ("rounds_to_1_percent", 0.01)):
        worst = [first([float(np.linalg.norm(P, 2)) for P in draw], share) for draw in draws[:60]]
        assert abs(row[key] - np.median(worst)) <= max(1, 0.1 * row[key])


def test_csv_has_the_fields_of_json(table):
    rows = list(csv.DictReader(io.StringIO(said("compare", "ring", "base:1", "--n", str(N), "--csv"))))
    assert [row["graph"] for row in rows] == ["ring", "base:1"]
    assert rows[0].keys() == table["ring"].keys()
    assert float(rows[0]["slem"]) == table["ring"]["slem"]
    assert rows[1]["slem"] == ""


def test_a_long_name_cuts_no_number_off():
    text = said("compare", "ring", "every:4:complete:one-peer-exponential", "--n", "64")
    assert "896 / 1433" in text
    assert "0.00321" in text
    assert "exact" in text
