"""What a curious node can solve for: known graphs, brute force, and the words of `fedgossip topology audit`."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.base.errors import ConfigError
from fedgossip.cli.topology.topology import topology
from fedgossip.topology import Mixing, Topology, build, resolve, resolve_schedule
from fedgossip.topology.exposure import PRIME, Audit, Exchange, Situation, _product, _reduce_to_field, audit, worst


def audited(graph: str, n: int | None = None, rounds: int = 20, colluding: int = 1) -> Audit:
    return audit(resolve_schedule(graph, n, seed=1), rounds, colluding)


def counts(found: Audit, exchange: Exchange, situation: Situation, what: str = "exact") -> tuple[int, int]:
    """The fewest and the most nodes that are exposed to one set."""
    sizes = [len(victims) for victims in getattr(found.find(exchange, situation), what).values()]
    return min(sizes), max(sizes)


# --- known answers ----------------------------------------------------------------------------------------------------


def test_five_rounds_of_plain_averaging_expose_all_fifteen_others_and_sums_none() -> None:
    """The figures of the design: a random 4-regular graph of 16 nodes."""
    found = audited("regular:4", 16, rounds=5)
    assert counts(found, "clear", "averaging") == counts(found, "clear", "averaging", "float32") == (15, 15)
    assert counts(found, "sums", "averaging") == counts(found, "sums", "averaging", "float32") == (0, 0)


def test_three_that_pool_break_twenty_rounds_of_averaged_sums() -> None:
    found = audited("regular:4", 16, rounds=20, colluding=3)
    assert found.sets == 560 and found.all_sets
    assert counts(found, "sums", "averaging", "float32") == (13, 13)


def test_a_node_alone_needs_fifteen_rounds_of_sums_and_numbers_that_nobody_has() -> None:
    """One equation a round: 16 unknowns, of which one is its own.  Rounding hides what is left of the differences."""
    found = audited("regular:4", 16, rounds=20)
    assert counts(found, "sums", "averaging") == (15, 15)
    assert {max(victims.values()) for victims in found.find("sums", "averaging").exact.values()} == {15}
    assert counts(found, "sums", "averaging", "float32") == (0, 0)


def test_on_a_torus_of_sixteen_sums_isolate_the_node_opposite() -> None:
    """It is a hypercube: at distance 4 there is one node, and its vector comes by itself after 4 rounds."""
    found = audited("torus:4x4").find("sums", "averaging")
    for (node,), victims in found.float32.items():
        row, column = divmod(node, 4)
        assert victims == {(row + 2) % 4 * 4 + (column + 2) % 4: 4}
    assert found.exact == found.float32


def test_a_node_with_one_neighbour_has_its_model_whatever_is_summed() -> None:
    found = audited("star", 6, rounds=3)
    for situation in ("averaging", "training"):
        exposed = found.find("sums", situation).exact  # type: ignore[arg-type]
        assert {node: victims for (node,), victims in exposed.items()} == {0: {}} | {k: {0: 1} for k in range(1, 6)}


def test_with_training_between_plain_gossip_exposes_the_neighbours_and_sums_nobody() -> None:
    found = audited("regular:4", 16)
    graph = resolve("regular:4", 16, seed=1)
    clear = found.find("clear", "training").exact
    assert clear == {(node,): dict.fromkeys(graph.neighbours(node), 1) for node in range(16)}
    assert counts(found, "sums", "training") == (0, 0)


def test_a_receiver_and_all_its_neighbours_but_one_have_the_last_ones_model() -> None:
    """The petersen graph, of degree 3: three nodes do; two never, for no two have two neighbours in common."""
    graph = resolve("petersen")
    three = audited("petersen", rounds=2, colluding=3).find("sums", "training").exact
    for node in range(10):
        for pair in combinations(graph.neighbours(node), 2):
            (last,) = set(graph.neighbours(node)) - set(pair)
            assert last in three[tuple(sorted((node, *pair)))]
    assert not any(audited("petersen", rounds=2, colluding=2).find("sums", "training").exact.values())


def test_other_graphs_in_other_rounds_show_other_neighbours() -> None:
    found = audited("el-oracle:4", 16)
    assert counts(found, "clear", "training")[1] == 15  # of some node: it had had everybody as a neighbour
    assert counts(found, "sums", "training") == (0, 0)


# --- against brute force ----------------------------------------------------------------------------------------------


def rank(rows: list[list[Fraction]]) -> int:
    rows, found = [row[:] for row in rows], 0
    for column in range(len(rows[0])):
        pivot = next((k for k in range(found, len(rows)) if rows[k][column]), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        for k in range(found + 1, len(rows)):
            factor = rows[k][column] / rows[found][column]
            rows[k] = [a - factor * b for a, b in zip(rows[k], rows[found], strict=True)]
        found += 1
    return found


def by_fractions(graph: Topology, rounds: int, node: int, *, sums: bool) -> set[int]:
    """Whom the node can solve for, by rational numbers: a unit vector adds nothing to the rank of what is seen."""
    n, degrees = graph.n, graph.degrees()
    W = [[Fraction(0)] * n for _ in range(n)]
    for u, v in graph.edges.tolist():
        W[u][v] = W[v][u] = Fraction(1, 1 + int(max(degrees[u], degrees[v])))
    for k in range(n):
        W[k][k] = 1 - sum(W[k])
    power = [[Fraction(int(i == j)) for j in range(n)] for i in range(n)]
    rows: list[list[Fraction]] = []
    for _ in range(rounds):
        near = graph.neighbours(node)
        rows.append(power[node])
        if sums:
            rows.append([sum((W[node][j] * power[j][k] for j in near), Fraction(0)) for k in range(n)])
        else:
            rows += [power[j] for j in near]
        power = [[sum((W[i][j] * power[j][k] for j in range(n)), Fraction(0)) for k in range(n)] for i in range(n)]
    units = [[Fraction(int(v == k)) for k in range(n)] for v in range(n)]
    return {v for v in range(n) if v != node and rank([*rows, units[v]]) == rank(rows)}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5), st.booleans())
def test_the_prime_field_says_what_fractions_say(seed: int, rounds: int, sums: bool) -> None:
    graph = resolve("erdos-renyi:0.6", 7, seed=seed)
    found = audit(build(graph, "metropolis"), rounds).find("sums" if sums else "clear", "averaging").exact
    for node in (0, 3):
        assert set(found[(node,)]) == by_fractions(graph, rounds, node, sums=sums)


def test_counts_only_grow_with_the_rounds_and_the_first_round_is_the_first() -> None:
    whole = audited("regular:3", 10, rounds=12)
    for rounds in range(1, 12):
        part = audited("regular:3", 10, rounds=rounds)
        for a, b in zip(part.exposures, whole.exposures, strict=True):
            for one, other in ((a.exact, b.exact), (a.float32, b.float32)):
                assert one == {s: {v: r for v, r in victims.items() if r <= rounds} for s, victims in other.items()}


def test_a_sum_in_which_one_weighs_nearly_all_is_as_good_as_its_vector() -> None:
    """Not in the span, and known to 1 % all the same: 1 / 1000 of the weight is another's."""
    weights = np.array([[0.5, 0.4995, 0.0005], [0.4995, 0.5, 0.0005], [0.0005, 0.0005, 0.999]])
    found = audit(Mixing.from_matrix(weights), 1).find("sums", "averaging")
    assert found.exact[(0,)] == {} and found.float32[(0,)] == {1: 1}


def test_products_in_the_field_do_not_overflow() -> None:
    random = np.random.default_rng(1)
    a, b = (random.integers(PRIME - 50, PRIME, (40, 40), dtype=np.int64) for _ in range(2))
    expected = [[sum(int(x) * int(y) for x, y in zip(row, column, strict=True)) % PRIME for column in b.T] for row in a]
    assert _product(a, b).tolist() == expected


def test_a_third_is_a_third_in_the_field() -> None:
    W = _reduce_to_field(build(resolve("ring", 5), "metropolis"))
    assert {int(w) * 3 % PRIME for w in W.ravel() if w} == {1}
    assert (W.sum(axis=1) % PRIME == 1).all()


@pytest.mark.parametrize(("n", "rounds", "colluding"), [(129, 5, 1), (8, 101, 1), (8, 5, 8)])
def test_what_would_take_too_long_or_leave_nobody_is_refused(n: int, rounds: int, colluding: int) -> None:
    with pytest.raises(ConfigError, match="an audit of"):
        audited("ring", n, rounds, colluding)


def test_too_many_sets_become_those_of_neighbours() -> None:
    found = audited("regular:3", 40, rounds=1, colluding=3)
    assert not found.all_sets and 0 < found.sets <= 1000
    graph = resolve("regular:3", 40, seed=1)
    for curious in found.find("sums", "training").exact:
        assert any(set(curious) <= {node, *graph.neighbours(node)} for node in range(40))


# --- the command ------------------------------------------------------------------------------------------------------


def said(*words: str) -> str:
    result = CliRunner().invoke(topology, ["audit", *words], catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_says_what_plain_gossip_shows_and_what_sums_hide() -> None:
    text = said("regular:4", "--n", "16", "--rounds", "5")
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "plain gossip nothing 15 of 15 4 rounds 15 of 15 4 rounds" in rows
    assert "private gossip nothing 0 of 15 - 0 of 15 -" in rows
    assert "plain gossip training 4 of 15 1 round 4 of 15 1 round" in rows
    assert "no node can solve for another's model" in text and "here 4 nodes" in text


def test_the_command_names_who_is_exposed_to_whom_and_what_would_help() -> None:
    text = said("torus:4x4")
    assert "node 0 can solve for node 10 after 4 rounds (and 15 more such of 16)" in text
    assert "train between mixings" in text
    three = said("petersen", "--rounds", "2", "--colluding", "3")
    assert re.search(r"nodes \d, \d and \d can solve for node \d after 1 round \(and \d+ more such of 120\)", three)
    assert "More neighbours" in three


def test_the_command_says_where_private_gossip_is_refused_and_why() -> None:
    text = said("star", "--n", "6")
    assert "nodes 1, 2, 3, 4, 5 have fewer" in text and "node 1 can solve for node 0 after 1 round" in text


def test_names_are_those_of_the_graph() -> None:
    assert "Medici sees 6 models" in said("florentine", "--rounds", "2")


def test_json_has_every_set_and_every_victim() -> None:
    found: dict[str, Any] = json.loads(said("torus:4x4", "--json"))
    assert (found["n"], found["rounds"], found["colluding"], found["sets"]) == (16, 20, 1, 16)
    assert found["refused"] is None and json.loads(said("ring", "--n", "8", "--json"))["refused"]
    (sums,) = [e for e in found["exposures"] if (e["exchange"], e["situation"]) == ("sums", "averaging")]
    assert sums["exact"]["0"] == {"10": 4} and len(sums["float32"]) == 16


def test_the_worst_is_the_largest_and_among_equals_the_earliest() -> None:
    assert worst({(0,): {}, (1,): {2: 9, 3: 9}, (2,): {4: 1, 5: 3}}) == ((2,), {4: 1, 5: 3})
