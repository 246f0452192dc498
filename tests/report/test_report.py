"""The report: one page that loads nothing, harmless whatever a run is called, and the same whenever it is written."""

from __future__ import annotations

import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgossip.base.errors import ConfigError
from fedgossip.core.records import LOGGED_NAMES, LoggedNumbers
from fedgossip.report.page import numbers, write_comparison, write_report
from fedgossip.report.page.drawing import series_style
from fedgossip.report.page.figures import curve, unbroken
from fedgossip.report.page.forecast import Band, band, inside, sentence
from fedgossip.report.page.markup import cards
from fedgossip.report.page.reading import EVENTS_KEPT, read_run
from fedgossip.report.page.sections import reporter

VOID = {"meta", "link", "br", "hr", "img", "input"}
FIVE_MEGABYTES = 5_000_000


# --- runs that never ran: small gossip in numpy, written in the format of a run directory ------------------------


def ring_rows(n: int) -> list[dict[str, float]]:
    return [{str(j): 1 / 3 for j in sorted({(i - 1) % n, i, (i + 1) % n})} for i in range(n)]


def ring_summary(n: int, **changes: Any) -> dict[str, Any]:
    """Return a summary of a ring with Metropolis weights: l_k = 1/3 + 2/3 cos(2 pi k / n)."""
    eigenvalues = np.sort(1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(n) / n))[::-1]
    slem = float(np.abs(eigenvalues[1:]).max())
    edges = sorted({(min(i, (i + 1) % n), max(i, (i + 1) % n)) for i in range(n)})
    return {
        "name": "digits on a ring",
        "driver": "sim",
        "seed": 7,
        "n": n,
        "graph": f"ring({n})",
        "status": "finished",
        "rounds": 40,
        "digest": "3f8a" * 16,
        "accuracy": {"averaged": None, "mean_peer": None, "worst_peer": None},
        "consensus_distance": 0.0123,
        "bytes_sent": 40 * n * 2 * 31_400,
        "seconds": 12.7,
        "parameters": 7850,
        "schema": "flat",
        "forecast": {
            "slem": slem,
            "spectral_gap": 1 - slem,
            "n_w": 6.1,
            "gamma": 0.9,
            "rounds_to_halve": int(np.ceil(np.log(0.5) / np.log(slem))),
            "rounds_to_1_percent": int(np.ceil(np.log(0.01) / np.log(slem))),
            "floor": 0.83,
            "ceiling": 4.02,
            "mean_contraction": float(np.sqrt(np.mean(eigenvalues[1:] ** 2))),
            "algebraic_connectivity": 2 - 2 * float(np.cos(2 * np.pi / n)),
            "method": "closed form",
            "resolved": True,
        },
        "measured_contraction": slem - 0.01,
        "topology": {
            "n": n,
            "name": f"ring({n})",
            "directed": False,
            "edges": edges,
            "labels": None,
            **({"rows": ring_rows(n)} if n <= 512 else {}),
        },
        "eigenvalues": eigenvalues.tolist(),
        "data": None,
        "events": {},
        "versions": {"fedgossip": "0.1.0", "python": "3.11.2", "torch": "2.13.0"},
        **changes,
    }


def write_run(folder: Path, summary: dict[str, Any], records: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "experiment.toml").write_text(f"name = {json.dumps(summary['name'])}\n[graph]\nfamily = 'ring'\n")
    return folder


def gossip(n: int, rounds: int, push: float, seed: int = 1) -> list[dict[str, Any]]:
    """Return the network's records of gossip on a ring of n, each peer pushed by `push` times noise every round."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(n, 1000)) * (push == 0)
    records = []
    for r in range(rounds + 1):
        noise = push * random.normal(size=vectors.shape) * bool(r)
        spread, vectors = distance(noise), vectors + noise
        before = distance(vectors)
        if r:
            vectors = (np.roll(vectors, 1, 0) + vectors + np.roll(vectors, -1, 0)) / 3
        record = {"kind": "network", "round": r, "seconds": 0.31 * r, "bytes_sent": r * n * 2 * 31_400}
        record |= {"consensus_before": before, "consensus_distance": distance(vectors), "update_spread": spread}
        records.append(record)
    return records


def distance(vectors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.sum((vectors - vectors.mean(axis=0)) ** 2, axis=1))))


def learning_run(folder: Path, n: int = 16, rounds: int = 40, **changes: Any) -> Path:
    random = np.random.default_rng(3)
    records = gossip(n, rounds, push=0.02)
    final = 0.9 - 0.12 * random.random(n)
    for record in records:
        learned = 1 - np.exp(-record["round"] / 9)
        record["loss"] = 2.3 * (1 - 0.9 * learned) if record["round"] else None
        record["test_loss"] = 2.3 * (1 - 0.85 * learned)
        for name, best in (("averaged", 0.93), ("mean_peer", final.mean()), ("worst_peer", final.min())):
            record[f"accuracy_{name}"] = 0.1 + (best - 0.1) * learned if record["round"] % 2 == 0 else None
    for r in range(1, rounds + 1):
        for peer in range(n):
            seconds = {"training": 0.2 + 0.01 * peer, "waiting": 0.3 - 0.01 * peer, "mixing": 0.02}
            records.append(
                {
                    "kind": "peer",
                    "round": r,
                    "peer": peer,
                    "loss": 0.3,
                    "accuracy": float(final[peer]) if r == rounds else None,
                    "bytes_sent": 62_800,
                    "bytes_received": 62_800,
                    "seconds": 0.31 * r,
                    **{f"seconds_{name}": value for name, value in seconds.items()},
                }
            )
    records.append({"kind": "event", "round": 4, "peer": 3, "name": "missed", "value": {"from": 2}})
    records.append({"kind": "a later version's kind", "round": 4})
    shares = random.dirichlet(np.ones(10) * 0.5, size=n) * 112
    details: dict[str, Any] = {
        "accuracy": {"averaged": 0.924, "mean_peer": float(final.mean()), "worst_peer": float(final.min())},
        "data": {"source": "digits", "classes": 10, "shares": shares.round().tolist(), "sizes": None},
        "events": {"missed": 1},
        "rounds": rounds,
    }
    return write_run(folder, ring_summary(n, **(details | changes)), records)


def averaging_run(folder: Path, n: int = 12, **changes: Any) -> Path:
    return write_run(folder, ring_summary(n, name="averaging", **changes), gossip(n, 30, push=0.0))


def interrupted_run(folder: Path) -> Path:
    path = learning_run(folder, rounds=3, status="interrupted", measured_contraction=None)
    with (path / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"kind": "network", "rou')  # killed while it wrote
    return path


def large_run(folder: Path, n: int = 1000) -> Path:
    records = gossip(n, 20, push=0.01)
    records += [{"kind": "peer", "round": 20, "peer": i, "accuracy": i / n, "seconds_training": 1.0} for i in range(n)]
    shares = np.random.default_rng(5).integers(0, 60, size=(n, 10)).tolist()
    data = {"source": "mnist", "classes": 10, "shares": shares, "sizes": [sum(row) for row in shares]}
    return write_run(folder, ring_summary(n, data=data, name="a thousand"), records)


def bare_run(folder: Path) -> Path:
    """Return a run with nothing but what every summary has."""
    return write_run(folder, {"name": "bare", "n": 1, "rounds": 0, "status": "interrupted"}, [])


RUNS = [learning_run, averaging_run, interrupted_run, large_run, bare_run]


# --- reading a page ----------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Collects what the claims need: open tags, attributes, ids, the text by tag."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.source = path.read_text()
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


# --- the page ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each kind, with its report; drawn once, because drawing is what takes the time."""
    folders = {make.__name__: make(tmp_path_factory.mktemp("run")) for make in RUNS}
    for folder in folders.values():
        assert write_report(folder) == folder / "report.html"
    return folders


@pytest.fixture(params=[make.__name__ for make in RUNS])
def folder(request: pytest.FixtureRequest, reports: dict[str, Path]) -> Path:
    return reports[request.param]


def test_every_kind_of_run_gives_a_sound_page(folder: Path) -> None:
    page = Page(folder / "report.html")
    assert page.open == []
    assert page.tags.count("figure") == page.tags.count("figcaption")
    assert len(page.source.encode()) < FIVE_MEGABYTES


def test_a_page_asks_the_network_for_nothing(folder: Path) -> None:
    page = Page(folder / "report.html")
    targets = [
        value or "" for name, value in page.attributes if name in {"src", "href", "xlink:href", "srcset", "data"}
    ]
    assert all(target.startswith("#") or target == "data:," for target in targets)
    assert all(target.startswith("#") for target in re.findall(r"url\(\s*([^)]*)\)", page.source))
    assert not re.search(r"https?://|@import|//cdn", page.source)


def test_ids_are_unique_and_references_meet_them(folder: Path) -> None:
    page = Page(folder / "report.html")
    ids = [value for name, value in page.attributes if name == "id"]
    references = [value[1:] for name, value in page.attributes if name == "xlink:href" and value]
    references += re.findall(r"url\(#([^)]*)\)", page.source)
    assert len(ids) == len(set(ids))
    assert set(references) <= set(ids)


def test_every_figure_is_described_for_those_who_do_not_see_it(folder: Path) -> None:
    page = Page(folder / "report.html")
    described = [value for name, value in page.attributes if name == "aria-label"]
    assert len(described) == page.tags.count("figure")
    assert all(described)


def test_the_same_run_gives_the_same_bytes(folder: Path) -> None:
    first = (folder / "report.html").read_bytes()
    assert write_report(folder).read_bytes() == first


def test_nothing_is_said_of_clients_where_there_are_peers(folder: Path) -> None:
    words = Page(folder / "report.html").text.lower()
    assert "client" not in words and "coordinator" not in words


def test_a_name_that_is_a_script_is_only_a_name(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&"
    folder = learning_run(tmp_path, name=evil, graph=evil, digest=evil, versions={evil: evil}, events={evil: 2})
    summary = json.loads((folder / "summary.json").read_text())
    summary["topology"] |= {"labels": [evil] * 16, "name": evil}
    summary["data"]["source"] = evil
    (folder / "summary.json").write_text(json.dumps(summary))
    page = Page(write_report(folder))
    assert page.tags.count("script") == 1  # the page's own
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert evil in page.text


def test_a_comparison_escapes_names_and_title(tmp_path: Path) -> None:
    evil = "</title><script>alert(1)</script>"
    folders = [learning_run(tmp_path / str(k), n=4, rounds=2, name=evil, graph=evil) for k in range(2)]
    page = Page(write_comparison(tmp_path / "comparison.html", folders, title=evil))
    assert page.tags.count("script") == 1
    assert page.open == []


def test_labels_with_dollars_newlines_and_rare_letters_are_drawn(tmp_path: Path) -> None:
    summary = ring_summary(4)
    summary["topology"]["labels"] = ["$x^$", "two\nlines", "東京", "\x07bell"]
    page = Page(write_report(write_run(tmp_path, summary, gossip(4, 5, push=0.0))))
    assert "$x^$" in page.text
    assert "東京" in page.text
    assert "\x07" not in page.source


def test_an_interrupted_run_says_so(reports: dict[str, Path]) -> None:
    page = Page(reports["interrupted_run"] / "report.html")
    assert "did not finish" in page.text
    assert "up to round 3" in page.text


def test_a_partial_run_says_that_the_others_went_on(tmp_path: Path) -> None:
    path = learning_run(tmp_path, status="partial")
    write_report(path)
    both = write_comparison(tmp_path / "both.html", [path, path], "two")
    for page in (path / "report.html", both):
        assert "ended without some of its peers" in Page(page).text and "did not finish" not in Page(page).text


def test_numbers_of_the_summary_stand_on_the_page(reports: dict[str, Path]) -> None:
    page = Page(reports["learning_run"] / "report.html")
    for shown in (
        "92.4\u202f%",
        "40.2\u202fMB",
        "12.7\u202fs",
        "fedgossip run experiment.toml --on sim --seed 7",
        "missed",
    ):
        assert shown in page.text
    assert ("title", "3f8a" * 16) in page.attributes


def test_a_run_without_accuracy_shows_none(reports: dict[str, Path]) -> None:
    page = Page(reports["averaging_run"] / "report.html")
    assert "Averaged model" not in page.text
    assert "Accuracy by round" not in page.text


def test_scores_that_were_not_measured_have_no_card(tmp_path: Path) -> None:
    """Loops of several machines measure their own models, and none their mean."""
    for name, score in (("own", {"mean_peer": 0.9, "worst_peer": 0.8, "round": 3}), ("none", {"round": 3})):
        nothing = dict.fromkeys(("averaged", "mean_peer", "worst_peer"))
        shown = Page(write_report(averaging_run(tmp_path / name, score={**nothing, **score}))).text
        assert ("Worst peer" in shown, "Averaged model" in shown) == (name == "own", False)


def test_a_figure_of_many_letters_is_set_smaller() -> None:
    assert 'class="value long">5.04 × 10⁻⁴<' in cards([("Consensus distance", "5.04 × 10⁻⁴", "")])
    assert 'class="value">90.2 %<' in cards([("Mean peer", "90.2 %", "")])


@pytest.mark.parametrize("n", [2, 3])
def test_the_picture_of_a_graph_has_a_width_and_a_height(tmp_path: Path, n: int) -> None:
    """Two peers lie on one line; what a clip of no width holds is not seen."""
    page = write_report(learning_run(tmp_path, n=n)).read_text()
    clips = re.findall(r'<clipPath id="graph-[^>]*>\s*<rect [^>]*width="([^"]*)" height="([^"]*)"', page)
    assert min(float(side) for side in clips[0]) > 100


def test_a_graph_whose_edges_were_not_kept_is_counted_and_not_drawn(tmp_path: Path) -> None:
    topology = {"n": 300, "name": "complete(300)", "edges": []}
    summary = ring_summary(300, topology=topology, forecast={"edges": 44_850, "degree_max": 299})
    page = Page(write_report(write_run(tmp_path, summary, [])))
    assert "44\u202f850 edges a drawing would show only a blot" in page.text
    assert "up to 299" in page.text


def test_peers_without_edges_are_said_to_be_on_their_own(tmp_path: Path) -> None:
    summary = ring_summary(3, topology={"n": 3, "edges": []})
    assert "every peer was on its own" in Page(write_report(write_run(tmp_path, summary, []))).text


def test_a_failed_report_leaves_the_old_page_and_no_other_file(tmp_path: Path) -> None:
    folder = bare_run(tmp_path)
    before = write_report(folder).read_bytes()
    (folder / "summary.json").write_text("{")
    with pytest.raises(ConfigError):
        write_report(folder)
    assert (folder / "report.html").read_bytes() == before
    assert {path.name for path in folder.iterdir()} == {
        "report.html",
        "summary.json",
        "metrics.jsonl",
        "experiment.toml",
    }


@pytest.mark.sockets
def test_importing_the_report_does_not_import_matplotlib_or_networkx() -> None:
    import subprocess

    code = "import sys, fedgossip.report.page; print(sorted({'matplotlib', 'networkx', 'torch'} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_drawing_leaves_the_settings_of_matplotlib_alone(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    write_report(averaging_run(tmp_path))
    assert dict(matplotlib.rcParams) == before


# --- comparison --------------------------------------------------------------------------------------------------


def test_a_comparison_names_every_run_and_links_the_reports_that_exist(tmp_path: Path) -> None:
    folders = [
        learning_run(tmp_path / "a", n=4, rounds=4, name="ring"),
        learning_run(tmp_path / "b b", n=4, rounds=4, name="star"),
        averaging_run(tmp_path / "c"),
    ]
    write_report(folders[1])
    page = Page(write_comparison(tmp_path / "comparison.html", folders, title="Three graphs"))
    links = [value for name, value in page.attributes if name == "href" and value != "data:,"]
    assert links == ["./b%20b/report.html"]
    assert all(name in page.text for name in ("Three graphs", "ring", "star", "averaging"))
    assert page.tags.count("figure") == page.tags.count("figcaption") == 6 + 3


@pytest.mark.sockets
def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    kinds = [("ring", "sim"), ("ring", "local"), ("star", "sim"), ("star", "sim")]
    summaries = [ring_summary(4, name="x", graph=graph, driver=driver, topology=None) for graph, driver in kinds]
    folders = [write_run(tmp_path / str(k), summary, []) for k, summary in enumerate(summaries)]
    page = Page(write_comparison(tmp_path / "comparison.html", folders, title="x"))
    assert all(f"{name}</td>" in page.source for name in ("x, star #1", "x, star #2"))
    assert all(f"{name}</td>" in page.source for name in ("x, ring, simulated", "x, ring, real processes"))


def test_a_comparison_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        write_comparison(tmp_path / "comparison.html", [], title="x")


# --- forecast ----------------------------------------------------------------------------------------------------


def test_averaging_stays_below_the_bound(tmp_path: Path) -> None:
    run = read_run(averaging_run(tmp_path))
    forecast = band(run)
    assert forecast is not None
    assert forecast.lower is None
    assert inside(run, forecast) == 1.0
    first, slem = run.network[0].consensus_distance, run.summary.forecast.slem
    assert first is not None and slem is not None
    assert forecast.upper == pytest.approx(first * slem ** np.arange(31))


def test_gossip_pushed_by_fresh_noise_stays_in_the_band(tmp_path: Path) -> None:
    run = read_run(learning_run(tmp_path))
    forecast = band(run)
    assert forecast is not None
    assert forecast.lower is not None
    assert inside(run, forecast) == 1.0


def test_a_spread_of_some_rounds_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def spy(eigenvalues: Any, spread: Any) -> tuple[Any, Any]:
        seen.append(spread.tolist())
        return np.zeros(len(spread)), np.ones(len(spread))

    monkeypatch.setattr("fedgossip.topology.spectra.convergence.disagreement_band", spy)
    spreads = {1: None, 2: 3.0, 3: None, 4: 5.0, 5: None}
    records = [
        {"kind": "network", "round": r, "consensus_distance": 0.5, "update_spread": spread}
        for r, spread in spreads.items()
    ]
    band(read_run(write_run(tmp_path, ring_summary(4), records)))
    assert seen == [[3.0, 3.0, 3.0, 5.0, 5.0]]


def test_the_sentence_counts_the_rounds_inside(tmp_path: Path) -> None:
    records = [{"kind": "network", "round": r, "consensus_distance": float(r)} for r in (1, 2, 3, 4)]
    run = read_run(write_run(tmp_path, ring_summary(4, measured_contraction=0.2), records))
    forecast = Band(np.arange(0, 5), np.full(5, 1.5), np.full(5, 3.5))
    assert "inside the band, give or take 5\u202f%, in 50.0\u202f% of the rounds" in sentence(run, forecast)
    assert "Measured: 0.2, within the bound." in sentence(run, forecast)


# --- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', '{"name": "x"}', '{"name": "x", "n": "many"}'])
def test_a_corrupt_summary_is_a_config_error_with_advice(text: str, tmp_path: Path) -> None:
    (learning_run(tmp_path) / "summary.json").write_text(text)
    with pytest.raises(ConfigError, match=r"summary\.json") as caught:
        write_report(tmp_path)
    assert caught.value.advice


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl"])
def test_a_missing_file_is_a_config_error_with_advice(name: str, tmp_path: Path) -> None:
    (learning_run(tmp_path) / name).unlink()
    with pytest.raises(ConfigError, match=re.escape(name)) as caught:
        write_report(tmp_path)
    assert caught.value.advice


def test_the_folder_of_a_run_in_its_middle_is_called_that_and_no_folder_of_another_kind(tmp_path: Path) -> None:
    (learning_run(tmp_path) / "summary.json").unlink()
    with pytest.raises(ConfigError) as caught:
        write_report(tmp_path)
    assert "is active, or was killed" in caught.value.advice and "folder of a run?" not in caught.value.advice
    (tmp_path / "endpoint.toml").touch()
    with pytest.raises(ConfigError) as caught:
        write_report(tmp_path)
    assert "fedgossip collect" in caught.value.advice


@pytest.mark.parametrize(
    "line", ["{", "3", '{"kind": "network", "round": "x"}', '{"kind": "peer", "round": 1, "peer": 99}']
)
def test_a_corrupt_line_is_named(line: str, tmp_path: Path) -> None:
    (averaging_run(tmp_path) / "metrics.jsonl").write_text(f'{{"kind": "future"}}\n{line}\n')
    with pytest.raises(ConfigError, match="line 2"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"sizes": [1, 2]}},
        {"data": {"shares": [[1]]}},
        {"topology": {"n": 12, "edges": [[0, 99]]}},
        {"topology": {"n": 3, "edges": []}},
        {"topology": {"n": 12, "edges": [], "labels": ["a"]}},
    ],
)
def test_lists_that_do_not_fit_the_peers_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_run(write_run(tmp_path, ring_summary(12, **change), []))


@pytest.mark.parametrize(
    "change",
    [
        {"n": 10**12},
        {"n": -1},
        {"n": 4, "roles": [{"name": "peer", "count": 4}, {"name": "x", "first": 4, "count": 10**12, "learns": False}]},
        {"n": 10**12, "mode": "federated"},
    ],
)
def test_more_participants_than_a_run_has_are_refused_and_nothing_is_allocated_for_them(
    change: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="participants") as caught:
        read_run(write_run(tmp_path, {**ring_summary(4), "topology": None, "data": None, **change}, []))
    assert caught.value.advice


@pytest.mark.parametrize(
    "row", [{"kind": "network"}, {"kind": "peer", "peer": 1}, {"kind": "event", "peer": 1, "name": "abandoned"}]
)
def test_a_round_that_so_few_rows_cannot_have_is_refused(row: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 1: round 1000000000000 after 0 rows"):
        read_run(write_run(tmp_path, ring_summary(4), [{**row, "round": 10**12}]))


def test_of_many_participants_only_those_with_rows_take_memory(tmp_path: Path) -> None:
    summary = {**ring_summary(4), "topology": None, "data": None, "n": 10**6}
    run = read_run(write_run(tmp_path, summary, [{"kind": "peer", "round": 1, "peer": 5, "loss": 0.5}]))
    assert len(set(map(id, run.peers))) == 2
    assert (run.peers[5].rounds, run.peers[4].rounds) == (1, 0)


def test_numbers_that_are_not_finite_count_as_not_measured(tmp_path: Path) -> None:
    folder = averaging_run(tmp_path)
    (folder / "metrics.jsonl").write_text(
        '{"kind": "network", "round": 1, "loss": NaN, "consensus_distance": Infinity}\n'
    )
    run = read_run(folder)
    assert run.network[0].loss is None
    assert run.network[0].consensus_distance is None


def test_an_event_of_the_whole_run_has_its_words_in_place_of_a_number(tmp_path: Path) -> None:
    event = {"kind": "event", "round": 1, "peer": -1, "name": "not_finite", "value": {"figure": "loss"}}
    run = read_run(write_run(tmp_path, ring_summary(4), [event, {**event, "peer": 2}]))
    assert [reporter(run, one) for one in run.events] == ["the run", "2"]


def test_events_are_kept_up_to_a_limit(tmp_path: Path) -> None:
    events = [{"kind": "event", "round": r, "peer": None, "name": "missed"} for r in range(EVENTS_KEPT + 5)]
    assert len(read_run(write_run(tmp_path, ring_summary(4), events)).events) == EVENTS_KEPT


def test_bytes_and_seconds_of_a_peer_are_summed(tmp_path: Path) -> None:
    peer = read_run(learning_run(tmp_path, rounds=10)).peers[2]
    assert peer.bytes_sent == 10 * 62_800
    assert peer.seconds["training"] == pytest.approx(10 * 0.22)


# --- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0, "0"),
        (0.87143, "0.871"),
        (12.345, "12.3"),
        (0.9996, "1"),
        (999.6, "1\u202f000"),
        (2143.0, "2\u202f140"),
        (4.2e-7, "4.2 × 10⁻⁷"),
        (-0.5, "−0.5"),
        (0.9999868406, "1"),
        (float("inf"), "∞"),
        (float("nan"), "–"),
    ],
)
def test_numbers_have_three_significant_digits(value: float | None, shown: str) -> None:
    assert numbers.number(value) == shown


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (numbers.data_size(0), "0\u202fB"),
        (numbers.data_size(1_230_000), "1.23\u202fMB"),
        (numbers.duration(0.0042), "4.2\u202fms"),
        (numbers.duration(90), "1.5\u202fmin"),
        (numbers.near_one(0.9999868406), "1 − 1.32 × 10⁻⁵"),
        (numbers.near_one(1.0), "1"),
        (numbers.percent(0.8934), "89.3\u202f%"),
        (numbers.plural(1, "peer"), "1 peer"),
    ],
)
def test_units_fit_the_number(shown: str, expected: str) -> None:
    assert shown == expected


def test_an_asynchronous_run_is_not_held_against_the_forecast_of_rounds(tmp_path: Path) -> None:
    from fedgossip import simulate

    simulate(
        {
            "rounds": 6,
            "task": {"kind": "averaging"},
            "topology": {"graph": "ring", "n": 4},
            "algorithm": {"mode": "async"},
        },
        out=tmp_path / "run",
        report=True,
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "when it suited them" in page and "forecast bound" not in page


def test_what_rounding_left_of_an_eigenvalue_is_nothing() -> None:
    """The ring of 3 mixes exactly in one round: its slem is 0, and the solver says 2.2e-16."""
    assert [numbers.near_one(value) for value in (2.22e-16, -2.22e-16, 0.0)] == ["0", "0", "0"]
    assert [numbers.near_one(value) for value in (1 - 2.22e-16, 1.0)] == ["1", "1"]
    assert numbers.near_one(1 - 1.32e-5) == "1 − 1.32 × 10⁻⁵"


def test_two_measurements_are_two_points_and_no_line() -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    for x in ([0.0, 10.0], [0.0, 5.0, 10.0]):
        curve(axes, x, x, label="", colour="k", dash="-")
    assert [line.get_linestyle() for line in axes.get_lines()] == ["None", "-"]
    assert all(line.get_marker() == "o" for line in axes.get_lines())


def test_a_line_breaks_where_rounds_were_not_measured() -> None:
    from matplotlib.figure import Figure

    assert unbroken([0, 5, 10, 15, 40, 45, 60]) == [(0, 4), (4, 6), (6, 7)]
    assert unbroken([1, 2, 3, 5, 6, 7]) == [(0, 3), (3, 6)]
    assert unbroken([0, 5, 10, 12]) == [(0, 4)] and unbroken([3]) == [(0, 1)] and unbroken([4, 9]) == [(0, 2)]
    axes = Figure().subplots()
    x = [*map(float, range(20)), 30.0, *map(float, range(40, 60))]
    curve(axes, [0.1 * at for at in x], x, label="it", colour="k", dash="-", rounds=x)
    line, alone = axes.get_lines()
    assert np.isnan(np.asarray(line.get_ydata(), dtype=float)).sum() == 2
    assert list(alone.get_xdata()) == [3.0] and alone.get_marker() == "o"


def test_curves_reach_the_round_of_the_tile_of_an_interrupted_run(tmp_path: Path) -> None:
    score = {"averaged": 0.5, "mean_peer": 0.4, "worst_peer": 0.3, "round": 3}
    run = read_run(learning_run(tmp_path, n=4, rounds=3, status="interrupted", accuracy=score))
    last = [run.series(f"score_{of}")[-1] for of in ("averaged", "mean_peer", "worst_peer")]
    assert [(row.round, value) for row, value in last] == [(3, 0.5), (3, 0.4), (3, 0.3)]


def test_a_peer_that_died_is_a_crossed_disc_and_in_no_score(tmp_path: Path) -> None:
    def page_of(name: str, *events: str) -> Page:
        folder = learning_run(tmp_path / name, n=4, rounds=4)
        rows = [{"kind": "peer", "round": 1, "peer": 2, "score": 0.01}]  # the last that peer 2 wrote is its worst
        rows += [{"kind": "event", "round": 1, "peer": 2, "name": event} for event in ("missed", *events)]
        with (folder / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in [*rows[1:2] * (2 * EVENTS_KEPT), *rows])
        return Page(write_report(folder))

    dead, back = page_of("dead", "died"), page_of("back", "died", "resumed")
    assert "An empty disc with a cross is a peer that ended before the run." in dead.text
    assert "An empty disc with a cross" not in back.text
    assert "peer 2 at the end" in back.text and "peer 2 at the end" not in dead.text


def test_what_loops_logged_is_drawn_by_name(tmp_path: Path) -> None:
    folder = learning_run(tmp_path, n=4, rounds=4)
    with (folder / "metrics.jsonl").open("a") as file:
        for peer, round in ((p, r) for r in range(1, 5) for p in range(4)):
            values = {"grad/<b>norm": 1.0 * peer * round, "lr": 0.1 if peer else None}
            file.write(json.dumps({"kind": "peer", "round": round, "peer": peer, "logged": values}) + "\n")
    run, page = read_run(folder), Page(write_report(folder))
    assert run.logged["grad/<b>norm"] == [(r, 1.5 * r, 0.0, 3.0 * r) for r in range(1, 5)]
    assert run.logged["lr"] == [(r, pytest.approx(0.1), 0.1, 0.1) for r in range(1, 5)]
    assert "Other recorded numbers" in page.text and "lowest to highest peer" in page.text
    assert all(name in page.text for name in ("grad/<b>norm.", "lr."))


def test_logged_numbers_are_thinned_evenly_in_whatever_order_they_arrive() -> None:
    found = LoggedNumbers(most=8)
    for peer in range(2):
        for round in range(1, 101):
            found.add(round, {"a": float(round + peer), "nothing": None, "nan": math.nan})
    for number in range(2 * LOGGED_NAMES):
        found.add(1, {f"name {number}": 1.0})
    lines = found.lines()
    assert [point[0] for point in lines["a"]] == [16, 32, 48, 64, 80, 96, 100]
    assert lines["a"][-1] == (100, 100.5, 100.0, 101.0) and len(lines) == LOGGED_NAMES


def test_no_two_of_sixteen_runs_have_the_same_dash_or_mark_in_the_same_colour() -> None:
    styles = [series_style(at) for at in range(16)]
    assert len({(colour, str(dash)) for colour, dash, _ in styles}) == 16
    assert len({(colour, mark) for colour, _, mark in styles}) == 16
