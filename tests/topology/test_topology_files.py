"""Graphs as files: every ready graph is what it says; a slip in a file is named with its place."""

from __future__ import annotations

import pytest

from fedgossip.base.errors import ConfigError
from fedgossip.topology import build, load, load_weighted, ready, ready_names, resolve, resolve_schedule, spectrum
from fedgossip.topology.graphs import files

PAW = """
name = "paw"
title = "A triangle and one more"
source = "made up"
n = 4
edges = [[0, 1], [0, 2], [1, 2], [2, 3]]
"""


def written(folder, text, name="graph.toml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(call, *words):
    with pytest.raises(ConfigError) as caught:
        call()
    text = f"{caught.value} {caught.value.advice}"
    assert all(word in text for word in words), text
    assert caught.value.advice


# --- the ready ones ---------------------------------------------------------------------------------------------


def test_there_are_at_least_sixteen_ready_graphs():
    assert len(ready_names()) >= 16


@pytest.mark.parametrize("name", ready_names())
def test_a_ready_graph_holds_what_it_expects_and_says_where_it_is_from(name):
    described = files.read(files.ready_path(name))
    assert described.name == name
    assert described.source
    assert described.expect.spectral_gap is not None
    assert ready(name).is_connected


@pytest.mark.parametrize("name", ready_names())
def test_a_ready_graph_has_the_weights_of_its_file(name):
    """By its name as by its path; arcs bring theirs."""
    by_name, by_path = (resolve_schedule(each).mixing(0) for each in (name, str(files.ready_path(name))))
    assert (by_name.rule, by_name.values.tolist()) == (by_path.rule, by_path.values.tolist())


@pytest.mark.parametrize(
    ("name", "n", "edges"),
    [("abilene", 11, 14), ("nsfnet", 14, 21), ("karate", 34, 78), ("southern-women", 32, 89), ("florentine", 15, 20)],
)
def test_public_graphs_have_their_published_sizes(name, n, edges):
    """Internet2 2004; Merit 1991; Zachary (1977); Davis (1941), 18 women and 14 events; Padgett (1993)."""
    assert (ready(name).n, len(ready(name).edges)) == (n, edges)


def test_southern_women_only_meet_at_events():
    edges = ready("southern-women").edges
    assert (edges[:, 0] < 18).all()
    assert (edges[:, 1] >= 18).all()


def test_the_medici_married_most():
    topology = ready("florentine")
    assert topology.label(int(topology.degrees().argmax())) == "Medici"


def test_abilene_knows_its_cities_by_name():
    topology = ready("abilene")
    seattle = topology.labels.index("Seattle")
    assert {topology.label(v) for v in topology.neighbours(seattle)} == {"Sunnyvale", "Denver"}
    assert topology.positions.shape == (11, 2)


def test_an_unknown_ready_graph_gets_the_nearest_name():
    refused(lambda: ready("abilen"), "abilen", "'abilene'")


def test_a_ready_name_is_no_way_out_of_the_folder():
    assert files.ready_path("../pyproject") is None


# --- TOML -------------------------------------------------------------------------------------------------------


def test_a_file_is_found_from_its_base(tmp_path):
    written(tmp_path, PAW)
    assert resolve("graph.toml", base=tmp_path) == ready("paw")


def test_a_file_may_name_a_family_and_a_rule(tmp_path):
    head = 'name = "t"\ntitle = "t"\nsource = "me"\nfamily = "torus:4x4"\nweights = "lazy"\n'
    topology = load(written(tmp_path, head))
    assert topology == resolve("torus:4x4")
    assert (topology.name, topology.weights) == ("t", "lazy")


def test_a_file_may_be_directed(tmp_path):
    text = 'name = "c"\ntitle = "c"\nsource = "me"\nn = 3\ndirected = true\nedges = [[0, 1], [1, 2], [2, 0]]\n'
    assert load(written(tmp_path, text)).successors(2) == (0,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("n = 4", "n = 5"), ("2 components", "node 4")),
        (("n = 4", "n = 3"), ("(2, 3)", "0..2")),
        (("n = 4", "n = 4\nnode = 3"), ("node",)),
        (("n = 4", 'n = "four"'), ("n",)),
        (("n = 4", ""), ("not given", "nodes or n")),
        (("n = 4", "n = 4\na" + ".a" * 10_000 + " = 1"), ("more than 32 deep",)),
        (("n = 4", "n = 0x" + "f" * 6000), ("more than 64 bits",)),
        (("n = 4", "n = 1000000000"), ("1000000000 nodes; a file has at most",)),
        (('source = "made up"', 'source = " "'), ("source",)),
        (('source = "made up"\n', ""), ("source",)),
        (('title = "A triangle and one more"\nsource = "made up"\n', ""), ("title and source are missing",)),
        (("[2, 3]]", "[3, 3]]"), ("node 3", "itself")),
        (("[2, 3]]", '[2, "d"]]'), ("'d'",)),
        (("n = 4", 'nodes = ["a", "b", "c", "dora"]'), None),
        (("[2, 3]]", "[2, 3]]\nweights = 'lasy'"), ("'lasy'", "'lazy'")),
        (("[2, 3]]", "[2, 3]"), ("graph.toml",)),
        (("[2, 3]]", "[2, 3]]\n[expect]\nedges = 5"), ("edges = 5, found 4",)),
        (("[2, 3]]", "[2, 3]]\n[expect]\nspectral_gap = 0.26"), ("spectral_gap = 0.26", "0.25")),
        (("[2, 3]]", "[2, 3]]\n[expect]\ndiameter = 2"), ("diameter",)),
        (("[2, 3]]", "[2, 3]]\nfamily = 'ring'"), ("family",)),
    ],
)
def test_a_slip_in_a_file_is_named(tmp_path, change, words):
    path = written(tmp_path, PAW.replace(*change))
    if words is None:
        assert load(path).label(3) == "dora"
        return
    refused(lambda: load(path), *words)


def test_an_unknown_family_in_a_file_gets_the_nearest_name(tmp_path):
    path = written(tmp_path, 'name = "t"\ntitle = "t"\nsource = "me"\nfamily = "tours:4x4"\n')
    refused(lambda: load(path), "tours", "'torus'")


def test_a_misspelt_node_gets_the_nearest_label(tmp_path):
    text = 'name = "t"\ntitle = "t"\nsource = "me"\nnodes = ["Oslo", "Bergen"]\nedges = [["Oslo", "Bergn"]]\n'
    refused(lambda: load(written(tmp_path, text)), "'Bergn'", "'Bergen'")


def test_a_missing_file_is_named(tmp_path):
    refused(lambda: resolve("nowhere.toml", base=tmp_path), "nowhere.toml", "No such file")


def test_a_binary_file_is_refused(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_bytes(b"\xff\xfe\x00")
    refused(lambda: load(path), "not a text file")


# --- lists of edges ---------------------------------------------------------------------------------------------


def test_a_list_of_ids_is_a_graph(tmp_path):
    path = written(tmp_path, "# a triangle\n0 1\n1 2  # second\n\n2 0\n0 2\n", "triangle.txt")
    assert resolve(str(path)) == resolve("complete", 3)


def test_words_become_labels_in_their_order(tmp_path):
    topology = load(written(tmp_path, "ada bob\nbob cy\n", "friends.edges"))
    assert topology.labels == ("ada", "bob", "cy")
    assert topology.neighbours(1) == (0, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1\n1 3\n3 0\n", ("node 2 is missing",)),
        ("1 2\n2 3\n", ("node 0 is missing",)),
        ("0 1\n1 2 0.5\n", ("line 2", "3 words", "as the first line")),
        ("0 1 0.5\n1 2\n", ("line 2", "2 words", "a weight")),
        ("0 1\n1\n", ("line 2", "1 words")),
        ("0 1\n1 1\n", ("line 2", "itself")),
        ("# nothing\n", ("no edges",)),
        ("0 1\n2 3\n", ("2 components",)),
    ],
)
def test_a_slip_in_a_list_is_named_with_its_place(tmp_path, text, words):
    path = written(tmp_path, text, "graph.txt")
    refused(lambda: resolve(str(path)), *words)


def test_another_n_than_the_files_is_refused(tmp_path):
    path = written(tmp_path, "0 1\n", "pair.txt")
    refused(lambda: resolve(str(path), 3), "2 nodes, not 3")


def test_weights_can_be_read_from_a_list(tmp_path):
    mixing = load_weighted(written(tmp_path, "0 1 0.5\n1 2 0.25\n", "w.txt"))
    assert mixing.row(1) == {0: 0.5, 1: 0.25, 2: 0.25}


def test_a_weight_that_is_no_number_is_named_with_its_line(tmp_path):
    refused(lambda: load_weighted(written(tmp_path, "0 1 half\n", "w.txt")), "line 1", "'half'")


def test_expected_gaps_are_metropolis_gaps():
    assert files.read(files.ready_path("karate")).expect.spectral_gap == pytest.approx(
        spectrum(build(ready("karate"))).spectral_gap, abs=1e-6
    )


# --- files with weights of their own -----------------------------------------------------------------------------

CHORD = """
name = "chord"
title = "A ring of 4 with an arc across"
source = "made up"
n = 4
rule = "mine"
arcs = [[0, 1, 0.5], [1, 2, 0.25], [2, 3, 0.5], [3, 0, 0.5], [0, 2, 0.25]]
"""


def test_arcs_are_weights_of_those_who_hear(tmp_path):
    mixing = resolve_schedule(str(written(tmp_path, CHORD)))
    assert mixing.row(2) == {0: 0.25, 1: 0.25, 2: 0.5}  # what is left of one is its own
    assert (mixing.rule, mixing.stochastic, mixing.topology.directed) == ("mine", "rows", True)
    assert resolve(str(tmp_path / "graph.toml")).successors(0) == (1, 2)
    whole = CHORD.replace("[[0, 1, 0.5]", "[[0, 0, 0.5], [1, 1, 0.75], [2, 2, 0.5], [3, 3, 0.5], [0, 1, 0.25]")
    assert resolve_schedule(str(written(tmp_path, whole))).row(1) == {0: 0.25, 1: 0.75}


def test_arcs_both_ways_are_an_undirected_graph_and_expect_its_own_numbers(tmp_path):
    """Path of 3 with weights 1/2: eigenvalues 1, 1/2, -1/2."""
    text = 'name = "p"\ntitle = "p"\nsource = "me"\nnodes = ["a", "b", "c"]\n'
    text += 'arcs = [["a", "b", 0.5], ["b", "a", 0.5], ["b", "c", 0.5], ["c", "b", 0.5]]\n[expect]\nslem = 0.5\n'
    mixing = resolve_schedule(str(written(tmp_path, text)))
    assert (mixing.topology.directed, mixing.stochastic, mixing.topology.label(1)) == (False, "both", "b")
    refused(lambda: load(written(tmp_path, text.replace("slem = 0.5", "slem = 0.6"))), "slem", "0.5")


def test_a_weighted_list_is_a_graph_with_these_weights_and_runs(tmp_path):
    from fedgossip import simulate

    path = written(tmp_path, "a b 0.5\nb c 0.25\n", "w.edges")
    mixing = resolve_schedule(str(path))
    assert mixing.row(1) == {0: 0.5, 1: 0.25, 2: 0.25}
    assert mixing.topology.label(2) == "c"
    run = {"rounds": 2, "task": {"kind": "averaging"}, "topology": {"graph": str(path)}}
    assert simulate(run).digest == simulate(run, engine="stacked").digest
    assert simulate(run).digest != simulate({**run, "topology": {"graph": "path", "n": 3}}).digest


def test_peers_with_other_weights_in_their_file_are_told_apart(tmp_path):
    from fedgossip.experiment import load_experiment
    from fedgossip.plans import compose

    marks = []
    for weight in ("0.5", "0.4"):
        path = written(tmp_path, f"0 1 {weight}\n1 2 0.25\n", "w.edges")
        run = {"rounds": 2, "task": {"kind": "averaging"}, "topology": {"graph": str(path)}}
        marks.append(dict(compose.plan(load_experiment(run)).fingerprint)["topology"])
    assert marks[0] != marks[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[0, 2, 0.25]", "[0, 2, 0.25], [2, 2, 0.48]"), ("row 2", "0.98")),
        (("[0, 1, 0.5]", "[0, 1, 1.5]"), ("row 1", "-0.5")),
        (("[0, 2, 0.25]", "[0, 1, 0.25]"), ("twice",)),
        (("n = 4", "n = 3"), ("0..2",)),
        (("n = 4", 'n = 4\nweights = "lazy"'), ("with edges or weights",)),
        (("n = 4", "n = 4\nedges = [[0, 1]]"), ("with edges or weights",)),
        (("n = 4", ""), ("not given",)),
        (("[0, 1, 0.5]", "[0, 1]"), ("graph.toml",)),
    ],
)
def test_a_slip_in_weights_is_named(tmp_path, change, words):
    refused(lambda: resolve_schedule(str(written(tmp_path, CHORD.replace(*change)))), *words)


def test_weights_beside_a_file_that_has_some_are_refused(tmp_path):
    path = written(tmp_path, CHORD)
    refused(lambda: resolve_schedule(str(path), weights="metropolis"), "brings its own")
    refused(lambda: resolve_schedule(str(path), 5), "4 nodes, not 5")


# --- matchings ----------------------------------------------------------------------------------------------------


def test_matcha_uses_the_matchings_of_the_file(tmp_path):
    """All in one round where the budget is whole; the file's three in place of four that a colouring finds."""
    path = written(tmp_path, PAW + "matchings = [[[0, 1], [2, 3]], [[0, 2]], [[1, 2]]]\n")
    assert [one.tolist() for one in load(path).matchings] == [[[0, 1], [2, 3]], [[0, 2]], [[1, 2]]]
    whole = resolve_schedule(f"matcha:1:{path}").mixing(0)
    assert whole.topology == load(path)
    drawn = {tuple(map(tuple, resolve_schedule(f"matcha:0.5:{path}").mixing(k).topology.edges)) for k in range(40)}
    assert all(((0, 1) in edges) == ((2, 3) in edges) for edges in drawn) and len(drawn) > 2


@pytest.mark.parametrize(
    ("matchings", "words"),
    [
        ("[[[0, 1], [0, 2]], [[1, 2]], [[2, 3]]]", ("matching 0", "node 0", "share a node")),
        ("[[[0, 1], [2, 3]], [[0, 2]]]", ("are not the edges", "every edge")),
        ("[[[0, 1], [2, 3]], [[0, 2]], [[1, 2]], [[1, 3]]]", ("are not the edges", "every edge")),
    ],
)
def test_matchings_that_are_none_are_refused(tmp_path, matchings, words):
    refused(lambda: load(written(tmp_path, f"{PAW}matchings = {matchings}\n")), *words)
