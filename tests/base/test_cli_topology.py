"""`fedgossip topology`: a table for people, JSON for programs, errors left to the main program."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from fedgossip.base.errors import ConfigError
from fedgossip.cli.topology.topology import topology
from fedgossip.topology import family_names, ready_names, schedule_names, weighted_names

FIELDS = {
    "n",
    "edges",
    "degree_max",
    "weights",
    "lambda2",
    "lambda_n",
    "slem",
    "spectral_gap",
    "algebraic_connectivity",
    "n_w",
    "rounds_to_halve",
    "rounds_to_1_percent",
    "method",
    "residual",
    "resolved",
}


def said(*words: str) -> str:
    result = CliRunner().invoke(topology, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list_names_every_family_schedule_and_ready_graph():
    names = {*family_names(), *weighted_names(), *schedule_names(), *ready_names()}
    found = json.loads(said("list", "--json"))
    assert {entry["name"] for entry in found} == names
    text = said("list")
    assert all(name in text for name in names)


def test_show_gives_all_fields_as_json_and_nothing_else():
    found = json.loads(said("show", "ring", "--n", "16", "--json"))
    assert found.keys() >= FIELDS
    assert found["spectral_gap"] == pytest.approx(0.0507469783)


def test_the_gap_is_never_shown_without_effective_neighbours():
    for words in (("show", "star", "--n", "32"), ("compare", "star", "ring", "--n", "32")):
        text = said(*words)
        assert "gap" in text
        assert "n_W" in text
        assert "1.67" in text


def test_show_says_where_a_ready_graph_is_from():
    assert "Zachary" in said("show", "karate")


def test_show_says_never_where_nobody_meets():
    assert "never" in said("show", "none", "--n", "4")


def test_show_uses_the_rule_that_the_file_names(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text('name = "t"\ntitle = "t"\nsource = "me"\nfamily = "torus:4x4"\nweights = "lazy"\n')
    assert json.loads(said("show", str(path), "--json"))["weights"] == "lazy"
    assert json.loads(said("show", str(path), "--weights", "uniform", "--json"))["weights"] == "uniform"


def test_show_says_where_a_model_counts_negatively():
    """FDLA on the star of 9: leaves 2/(n + 1) each, so the centre keeps 1 - 16/10."""
    assert "smallest weight is -0.6" in said("show", "star", "--n", "9", "--weights", "fdla")
    assert "smallest weight" not in said("show", "star", "--n", "9", "--weights", "fmmc")


def test_a_name_with_colons_is_no_picture():
    assert said("show", "leja:ring", "--n", "8").startswith("leja:ring: 8 nodes")


def test_compare_keeps_the_order_given():
    found = json.loads(said("compare", "star", "complete", "ring", "--n", "8", "--json"))
    assert [entry["graph"] for entry in found] == ["star", "complete", "ring"]


def test_show_says_in_words_when_a_schedule_is_exact():
    text = said("show", "base:2", "--n", "25")
    assert "after 6 rounds" in text
    assert "slem" not in text  # one step says little
    assert "never" in said("show", "el-oracle:4", "--n", "25")


def test_compare_puts_schedules_beside_one_graph():
    """Nothing is cut off at 80 columns; base:1 is exact after 9 rounds (Takezawa et al., NeurIPS 2023)."""
    text = said("compare", "ring", "one-peer-exponential", "base:1", "el-oracle:4", "window-doubling", "--n", "25")
    (row,) = (line.split() for line in text.splitlines() if line.strip().startswith("base:1"))
    assert row[-1] == "9"
    assert row[3] == "-" and "and no gap" in " ".join(text.split()), "one step says little"
    assert "one-peer-exponential " in text
    assert "drawn afresh" in " ".join(text.split())


def test_compare_shows_sizes_where_they_differ():
    text = said("compare", "petersen", "karate")
    assert "nodes" in text
    assert "34" in text


@pytest.mark.parametrize(("graph", "rounds"), [("base:1", 5), ("one-peer-exponential", 4), ("el-local:3", 4)])
def test_draw_shows_the_rounds_of_a_schedule_side_by_side(tmp_path, graph, rounds):
    """All of a period (base:1 has 5 at n = 12, Takezawa et al.), and some examples of what is drawn afresh."""
    out = tmp_path / "rounds.svg"
    said("draw", graph, "--n", "12", "--out", str(out))
    assert out.read_text().count('<g id="axes_') == rounds


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_draw_writes_a_picture(tmp_path, suffix):
    out = tmp_path / f"graph.{suffix}"
    said("draw", "abilene", "--out", str(out))
    assert out.stat().st_size > 2000


def test_draw_draws_arcs(tmp_path):
    said("draw", "directed-exponential", "--n", "8", "--out", str(tmp_path / "arcs.svg"))
    assert (tmp_path / "arcs.svg").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "rign", "--n", "4"), "rign"),
        (("show", "ring"), "number of nodes"),
        (("show", "ring", "--n", "4", "--gamma", "1"), "gamma"),
        (("show", "star", "--n", "4", "--weights", "uniform"), "uniform"),
        (("show", "base:0", "--n", "4"), "base:0"),
        (("show", "one-peer-hypercube", "--n", "12"), "power of two"),
        (("draw", "petersen", "--out", "graph.gif"), "graph.gif"),
        (("draw", "ring", "--n", "5000", "--out", "graph.svg"), "5000"),
        (("draw", "petersen", "--out", "/nowhere/graph.svg"), "/nowhere"),
    ],
)
def test_errors_are_left_to_the_main_program(words, message):
    with pytest.raises(ConfigError, match=message):
        said(*words)
