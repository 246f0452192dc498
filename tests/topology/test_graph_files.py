"""Graphs in the files of other programs: each read as the program that wrote it meant it, or refused in one line.

networkx and scipy write the files here; GraphML, GEXF, GML and Matrix Market are described on their own pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from scipy.io import mmwrite
from scipy.sparse import coo_array

from fedgossip.base.errors import ConfigError
from fedgossip.topology import resolve, resolve_schedule
from fedgossip.topology.graphs.files import load, load_mixing
from fedgossip.topology.graphs.names import graph_word
from fedgossip.topology.spectra.sequences import forecast_of

MARKED = ["g.graphml", "g.gexf", "g.gml", "links.json", "adjacency.json"]
"""Files of WRITERS that say what is a name and what is not."""
WORDS = nx.relabel_nodes(nx.petersen_graph(), {node: f"site #{node}" for node in range(10)})


def _mtx(graph: Any, path: Path) -> None:
    mmwrite(path, coo_array(nx.to_numpy_array(graph)), field="pattern", symmetry="symmetric")


WRITERS: dict[str, Callable[[Any, Path], object]] = {
    "g.graphml": nx.write_graphml,
    "g.gexf": nx.write_gexf,
    "g.gml": nx.write_gml,
    "g.mtx": _mtx,
    "g.edgelist": nx.write_edgelist,
    "plain.edgelist": lambda graph, path: nx.write_edgelist(graph, path, data=False),
    "tabs.txt": lambda graph, path: nx.write_edgelist(graph, path, delimiter="\t", data=False),
    "commas.csv": lambda graph, path: nx.write_edgelist(graph, path, delimiter=",", data=False),
    "g.adjlist": nx.write_adjlist,
    "links.json": lambda graph, path: path.write_text(json.dumps(nx.node_link_data(graph))),
    "adjacency.json": lambda graph, path: path.write_text(json.dumps(nx.adjacency_data(graph))),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", WRITERS)
def test_what_networkx_and_scipy_write_is_the_same_graph(name: str, tmp_path: Path) -> None:
    WRITERS[name](nx.petersen_graph(), tmp_path / name)
    found = load(tmp_path / name)
    assert {tuple(sorted((int(found.label(u)), int(found.label(v))))) for u, v in found.edges.tolist()} == {
        tuple(sorted(edge)) for edge in nx.petersen_graph().edges
    }


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", MARKED)
def test_names_with_spaces_and_hashes_are_whole(name: str, tmp_path: Path) -> None:
    WRITERS[name](WORDS, tmp_path / name)
    found = load(tmp_path / name)
    assert sorted(found.labels or ()) == sorted(WORDS.nodes) and len(found.edges) == 15


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", [*MARKED, "g.edgelist", "w.mtx"])
def test_weights_are_those_that_were_written(name: str, tmp_path: Path) -> None:
    graph = nx.cycle_graph(4)
    for u, v in graph.edges:
        graph.edges[u, v]["weight"] = 0.125 if {u, v} == {0, 1} else 0.25
    path = tmp_path / name
    if name == "w.mtx":
        mmwrite(path, coo_array(nx.to_numpy_array(graph)), symmetry="symmetric")
    else:
        WRITERS[name](graph, path)
    found = load_mixing(path)
    assert found is not None and found.row(0) == {0: 0.625, 1: 0.125, 3: 0.25}


def test_a_weight_of_one_for_all_is_none(tmp_path: Path) -> None:
    """networkx and scipy write 1 where nobody meant a weight."""
    nx.write_weighted_edgelist(nx.cycle_graph(3), tmp_path / "g.txt")
    mmwrite(tmp_path / "g.mtx", coo_array(nx.to_numpy_array(nx.cycle_graph(3), dtype=int)), symmetry="symmetric")
    assert load_mixing(tmp_path / "g.mtx") is None and len(load(tmp_path / "g.mtx").edges) == 3


def test_a_directed_graph_stays_one(tmp_path: Path) -> None:
    nx.write_graphml(nx.cycle_graph(3, create_using=nx.DiGraph), tmp_path / "g.graphml")
    mmwrite(tmp_path / "g.mtx", coo_array(np.roll(np.eye(3), 1, axis=1)), field="pattern", symmetry="general")
    assert load(tmp_path / "g.graphml").directed and load(tmp_path / "g.mtx").edges.tolist() == [[0, 1], [1, 2], [2, 0]]


LISTS = {
    "a byte order mark": "\ufeff0 1\n1 2\n2 0\n",
    "its first comment too": "\ufeff# ring\n0 1\n1 2\n2 0\n",
    "carriage returns": "0 1\r1 2\r2 0\r",
    "a heading": "source target\n0 1\n1 2\n2 0\n",
    "a heading of SNAP": "# Nodes: 3 Edges: 3\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n2\t0\n",
    "a comment after an edge": "0 1 # first\n1 2 #second\n2 0\n",
    "networkx' data": "0 1 {}\n1 2 {'color': 'red'}\n2 0 {}\n",
    "commas": "0,1\n1,2\n2,0\n",
    "commas and blanks": "0, 1\n1, 2\n2, 0\n",
    "semicolons": '"0";"1"\n"1";"2"\n"2";"0"\n',
}


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_edges_is_the_triangle_that_it_says(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("g.csv" if kind == "commas and blanks" else "g.txt")
    path.write_bytes(LISTS[kind].encode())
    found = load(path)
    assert found.n == 3 and found.edges.tolist() == [[0, 1], [0, 2], [1, 2]] and found.labels is None


def test_a_toml_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    text = '\ufeffname = "t"\ntitle = "t"\nsource = "me"\nn = 3\nedges = [[0,1],[1,2],[2,0]]\n'
    (tmp_path / "g.toml").write_bytes(text.encode())
    assert load(tmp_path / "g.toml").n == 3


def test_a_hash_inside_a_word_is_part_of_the_name(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text('room#1 room#2\nroom#2 "#3"\n"#3" "New York"\n')
    assert load(tmp_path / "g.txt").labels == ("room#1", "room#2", "#3", "New York")


REFUSED = {
    "#1 #2\n#2 #3\n": "line 1: '#1' begins a comment, or is the name of a node",
    "a b\n#b c\n": "line 2: '#b' begins a comment",
    "a #b\nb c\n": "line 1: '#b' begins a comment",
    "name other\n0 1\n1 2\n": "'name' and 'other' are words, and all other nodes numbers",
    "York,Boston x\n": "'York,Boston' holds a comma",
    "0 1 {'weight': open}\n": "cannot be read",
    f"0 1 {{{'[' * 900}}}\n": "cannot be read",
    "0 1 1_0\n": "weight '1_0' is no number",
    "0 1 {'weight': 0.5}\n1 2 {}\n": "2 words, expected 3",
    "%MatrixMarket matrix coordinate pattern symmetric\n3 3 3\n": "begins with '%MatrixMarket'",
    "%%MatrixMarket matrix array real general\n2 2\n0\n1\n1\n0\n": "a matrix of 'matrix array real general'",
    "%%MatrixMarket matrix coordinate pattern general\n9000000000 9000000000 1\n1 2\n": "9000000000 rows",
    "%%MatrixMarket matrix coordinate pattern general\n3 3 90000000000\n1 2\n": "90000000000 entries",
    "%%MatrixMarket matrix coordinate pattern general\n3 3 1\n7 2\n": "cannot be read",
    "*Vertices 2\n1 a\n2 b\n": "begins with '*Vertices'",
    "graph s {\n a -- b\n}\n": "Graphviz",
    '<!DOCTYPE x [<!ENTITY a "b">]><graphml/>': "a DOCTYPE",
    "<graphml>": "cannot be read",
    "<?xml version='1.0'?><svg/>": "neither graphml nor gexf",
    "<graphml>" * 50_000: "cannot be read",
    '{"nodes": [{"id": 0}], "links": [{"source": 0, "target": 7}]}': "an edge names node '7'",
    '{"nodes": []}': "neither links nor adjacency",
    '{"nodes": ' + "[" * 5000: "not a graph in JSON",
    "graph [ node [ id 0 ] edge [ source 0 target 0 ] ]": "joined to itself",
    "graph [ " + "node [ " * 5000: "cannot be read",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: re.sub(r"\W+", "-", text)[:40])
def test_what_is_no_graph_or_two_is_refused_in_a_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "g.txt")
    assert REFUSED[text] in str(refused.value) and "\n" not in str(refused.value) and refused.value.advice


def test_a_file_in_another_encoding_is_refused_before_its_entities_are_seen(tmp_path: Path) -> None:
    text = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE x [<!ENTITY a "b">]><graphml>&a;</graphml>'
    for encoding in ("utf-16", "cp037"):
        (tmp_path / "g.graphml").write_bytes(text.encode(encoding))
        with pytest.raises(ConfigError):
            load(tmp_path / "g.graphml")


@pytest.mark.parametrize(("graph", "n"), [("shuffled:none", 3), ("shuffled:none", 4), ("shuffled:ring", 3)])
def test_a_graph_that_never_mixes_and_one_that_mixes_at_once_have_a_forecast(graph: str, n: int) -> None:
    """Of none a round leaves all, and nothing settles; of a ring of three with weights 1/3 it leaves nothing."""
    found = forecast_of(resolve_schedule(graph, n, allow_disconnected=True), 0.9)
    if graph == "shuffled:none":
        assert found.rate == 1.0 and found.floor is None and found.n_w == pytest.approx(1.0)
    else:
        assert found.rate == pytest.approx(0.0, abs=1e-7) and found.n_w == pytest.approx(3.0)


@pytest.mark.parametrize("graph", ["shuffled:none", "every:2:none:none"])
def test_one_peer_alone_has_nothing_to_disagree_about(graph: str) -> None:
    assert forecast_of(resolve_schedule(graph, 1), 0.9).slem == 0.0


@pytest.mark.parametrize("graph", ["shuffled:none", "every:2:none:none"])
def test_rounds_that_together_leave_nodes_apart_are_refused_as_one_such_graph_is(graph: str) -> None:
    assert resolve_schedule(graph, 4, allow_disconnected=True).n == 4
    with pytest.raises(ConfigError, match="components"):
        resolve_schedule(graph, 4)
    assert resolve_schedule("every:3:ring:none", 4).n == resolve_schedule("shuffled:ring", 4).n == 4


def test_an_edge_of_weight_zero_carries_nothing(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("0 1 0.\n")
    found = load_mixing(tmp_path / "g.txt")
    assert found is not None and resolve("none", 2).n == found.n
    assert forecast_of(found, 0.9).slem == 1.0


def test_a_file_whose_ending_is_no_format_is_not_called_an_unknown_family(tmp_path: Path) -> None:
    (tmp_path / "mine.adj").write_text("0 1\n1 2\n")
    with pytest.raises(ConfigError, match="its ending names no format of graphs") as refused:
        resolve("mine.adj", base=tmp_path)
    assert ".edgelist" in refused.value.advice


def test_no_name_of_a_graph_is_advised_twice() -> None:
    with pytest.raises(ConfigError) as refused:
        resolve("zzzz", 4)
    known = refused.value.advice.removeprefix("Known: ").removesuffix(".").split(", ")
    assert len(known) == len(set(known)) > 20


def test_outputs_call_a_graph_of_a_file_by_its_name_without_folders() -> None:
    for graph, word in (("/a/b/mine.edgelist", "mine.edgelist"), ("torus:2x4", "torus:2x4"), ("mine.gml", "mine.gml")):
        assert graph_word(graph) == word
