"""`fedgossip compare`: one file, several paradigms, an ordinary run directory for each, and one page."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgossip import load_experiment
from fedgossip.algorithms.collectives.names import EqualLinks
from fedgossip.base.errors import ConfigError
from fedgossip.cli.lab.compare import USUAL
from fedgossip.cli.run.progress import event_text
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.experiment.reading import content_of
from fedgossip.lab.compare.cells import Cell, experiment_for, workers_of
from fedgossip.lab.compare.measured import MeasuredCell, Point, _parts, setting_of
from fedgossip.lab.compare.names import PARADIGMS, Setting, paradigm_of
from fedgossip.lab.compare.verdict import comparison, sentence
from fedgossip.lab.costs.base import TrainingTimes
from fedgossip.learning.settings import TrainSettings
from fedgossip.report.page.reading import read_run
from tests.commands import Output, in_process

FILE = """
rounds = 20
task = { kind = "quadratic", dim = 2000, placement = "random" }
train = { lr = 0.1, local_steps = 1 }
eval = { every = 2 }
topology = { graph = "ring" }
coordinator = { clients = 4, secure = { on = false } }
parallel = { workers = 4, bucket = 0 }
simulation = { latency = 0.01, bandwidth = 1e6, downlink = 1e6, per_example = 0.05 }
"""
SEVERAL = "mapreduce,ring,star,parameter-server,parameter-server:async,fedavg,gossip,gossip:async"
TWO = "ring,gossip"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "all.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def compared_and_drawn(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> Output:
        command = ["compare", "all.toml", "--no-report", *words]
        if "--paradigms" not in words:
            command += ["--paradigms", TWO]
        return in_process(command, file.parent, monkeypatch, capsys)

    return run


@pytest.fixture
def compared(compared_and_drawn: Any, unrendered: None) -> Any:
    return compared_and_drawn


@pytest.mark.parametrize("size", ["topology.n", "coordinator.clients", "parallel.workers"])
def test_as_many_workers_are_compared_as_the_file_has(size: str) -> None:
    section, key = size.split(".")
    assert workers_of({section: {key: 9}}, "all.toml") == 9
    all_kinds = {"topology": {"n": 2}, "coordinator": {"clients": 2}, "parallel": {"workers": 2}}
    with pytest.raises(ConfigError, match="which number of workers"):
        workers_of(all_kinds | {section: {key: 9}}, "all.toml")


def test_run_refuses_several_kinds_in_one_file_and_names_compare(file: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_experiment(file)
    assert f"fedgossip compare {file}" in refused.value.advice
    file.write_text('[topology]\ngraph = "ring"\nn = 3\n[compare]\ntarget = 0.3\n')
    with pytest.raises(ConfigError, match="a comparison of several runs"):
        load_experiment(file)


def test_the_table_has_a_row_for_each_and_what_was_told_is_what_was_measured(
    compared_and_drawn: Any, file: Path
) -> None:
    said = compared_and_drawn("--workers", "1,3", "--json", "--paradigms", SEVERAL)
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert [(row["paradigm"], row["workers"]) for row in told["table"]] == [
        (name, workers) for workers in (1, 3) for name in SEVERAL.split(",")
    ]
    for row in told["table"]:
        off = 0.25 if row["paradigm"] == "gossip:async" else 0.03
        assert row["round_seconds"] == pytest.approx(row["told"]["round_seconds"], rel=off)
        assert row["compute"] + row["communicate"] + row["wait"] == pytest.approx(row["seconds"], rel=1e-6)
        assert row["speedup"] == pytest.approx(row["workers"] * row["efficiency"])
    assert " is first at test loss" in told["sentence"]
    assert json.loads((file.parent / "all-compared" / "compared.json").read_text()) == told
    each_cell_is_an_ordinary_run_directory_and_the_page_loads_nothing(file.parent / "all-compared")


def each_cell_is_an_ordinary_run_directory_and_the_page_loads_nothing(folder: Path) -> None:
    for name in SEVERAL.split(","):
        assert read_run(folder / f"{name.replace(':', '-')}-w3-s1").summary.status == "finished"
    page = (folder / "comparison.html").read_text()
    assert "Efficiency" in page and "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    for figure in ("parts", "loss-by-round", "loss-by-seconds", "loss-by-bytes", "crossing", "staleness"):
        assert f'<figure id="{figure}">' in page


def test_the_same_command_runs_no_cell_again_and_makes_up_what_is_missing(compared: Any, file: Path) -> None:
    first = compared("--workers", "3", "--json")
    again = compared("--workers", "3", "--json")
    assert again.out == first.out and again.err.count("(was there)") == 2
    shutil.rmtree(file.parent / "all-compared" / "ring-w3-s1")
    (file.parent / "all-compared" / "gossip-w3-s1" / "INCOMPLETE").touch()
    third = compared("--workers", "3", "--json")
    assert third.out == first.out and third.err.count("(was there)") == 0
    page = (file.parent / "all-compared" / "comparison.html").read_text()
    assert "Efficiency" not in page and "Learning rates" not in page, "columns of several numbers of workers, or rates"


def test_a_cell_that_fails_is_shown_and_the_others_are_run(compared: Any, file: Path) -> None:
    file.write_text(FILE.replace('graph = "ring"', 'graph = "torus:2x2"'))
    said = compared("--workers", "3", "--json")
    assert said.code == 9 and "gossip, 3 workers, seed 1: FAILED" in said.err
    rows = {row["paradigm"]: row for row in json.loads(said.out)["table"]}
    assert "torus:2x2" in rows["gossip"]["failed"][0] and rows["ring"]["test_loss"] is not None
    assert "gossip with 3 workers failed" in (file.parent / "all-compared" / "comparison.html").read_text()


@pytest.mark.parametrize(
    ("words", "change", "told"),
    [
        (["--paradigms", "rings"], "", "there is no paradigm 'rings'"),
        (["--paradigms", "ring,ring"], "", "--paradigms ring,ring: write different names"),
        (["--paradigms", ","], "", "write different names"),
        (["--workers", "0"], "", "--workers 0: write different whole numbers"),
        (["--workers", "2,2"], "", "write different whole numbers"),
        ([], "[compare]\nequal = 'words'", "compare"),
        ([], "[compare]\ntargets = 3", "compare"),
        (["--set", "train.local_epochs=1"], "", "local_epochs in a comparison"),
        (["--workers", "3", "--set", "parallel.workers=2"], "", "--set parallel.workers=2, and 3 by another option"),
        (["--out", "a-run"], "", "a-run: experiment.toml is in it, of a run or a sweep"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(
    compared: Any, file: Path, words: list[str], change: str, told: str
) -> None:
    file.write_text(FILE + change)
    (file.parent / "a-run").mkdir()
    (file.parent / "a-run" / "experiment.toml").touch()
    said = compared(*words)
    assert said.code == 2 and told in said.err, said.err
    assert len(said.errors) == 1 and not (file.parent / "all-compared" / "ring-w4-s1").exists()


def test_a_comparison_without_a_finished_run_says_so(compared: Any) -> None:
    said = compared("--paradigms", "gossip", "--workers", "3", "--set", "topology.graph=torus:2x2")
    assert said.code == 9 and "FAILED: " in said.err
    assert "No run ended: the lines above have the reasons." in said.out


def test_a_folder_of_another_file_is_refused_and_left_as_it_was(compared: Any, file: Path) -> None:
    assert compared("--workers", "3").code == 0
    before = (file.parent / "all-compared" / "ring-w3-s1" / "summary.json").read_bytes()
    said = compared("--workers", "3", "--set", "train.lr=0.2")
    assert said.code == 2 and "a cell of another comparison: train.lr" in said.err
    assert (file.parent / "all-compared" / "ring-w3-s1" / "summary.json").read_bytes() == before


@pytest.mark.parametrize("name", PARADIGMS)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_all_paradigms_see_as_many_examples(name: str, workers: int, file: Path) -> None:
    """rounds x workers x batches of a round x examples of a batch: 20 x 4 x 3 x the default."""
    where, content = content_of(file, ["train.local_steps=3"])
    if paradigm_of(name).one_participant:  # which learns from data, and whose steps are those of all its workers
        content, workers_told = {**content, "task": {}}, 1
    else:
        workers_told = workers
    e: Any = experiment_for(content, paradigm_of(name), workers, 4, 1, where)
    steps = e.parallel.accumulate if paradigm_of(name).every_step else e.train.local_steps
    assert e.rounds * workers_told * steps * e.train.batch_size == 20 * 4 * 3 * TrainSettings().batch_size
    assert e.rounds // e.eval.every == 10


def test_keys_that_a_file_omits_have_the_defaults_of_a_run() -> None:
    found = experiment_for({}, paradigm_of("gossip"), 4, 4, 1, "x.toml")
    alone = load_experiment({"topology": {"graph": "ring", "n": 4}})
    assert (found.rounds, found.eval, found.train) == (alone.rounds, alone.eval, alone.train)


def test_a_file_that_says_nothing_of_evaluation_is_compared_with_the_same_measurements() -> None:
    every = [experiment_for({}, paradigm_of(name), 4, 4, 1, "x.toml").eval.every for name in ("ring", "gossip")]
    assert every[0] == every[1] * experiment_for({}, paradigm_of("gossip"), 4, 4, 1, "x.toml").train.local_steps


def test_who_would_win_with_other_links_does_so_when_they_are_given(compared: Any, file: Path) -> None:
    """Of a ring and gossip the sentence names the bandwidth above which the other is first: it is, in a simulation."""
    file.write_text(FILE.replace("latency = 0.01", "latency = 0.001").replace("1e6", "2e5"))
    words = ("--workers", "4", "--paradigms", "ring,gossip", "--json")
    first = json.loads(compared(*words).out)["sentence"]
    winner = first.split(" is first")[0].split()[-1]
    other = {"ring": "gossip", "gossip": "ring"}[winner]
    assert f"{other} would be first" in first, first
    change = first.split("with a ")[1]
    key = "bandwidth" if change.startswith("bandwidth") else "latency"
    value = float(change.split("about ")[1].split()[0]) * (1e6 if "MB/s" in change else 1e3 if "kB/s" in change else 1)
    value *= 2 if "above" in change else 0.5
    changes = ["--set", f"simulation.{key}={value}", "--out", "other"]
    changes += ["--set", f"simulation.downlink={value}"] if key == "bandwidth" else []
    assert f"{other} is first" in json.loads(compared(*words, *changes).out)["sentence"]


STRAGGLER = """
rounds = 12
model = { source = "softmax" }
train = { lr = 0.3, local_steps = 5, device = "cpu" }
eval = { every = 1 }
topology = { graph = "ring" }
parallel = { workers = 8 }
[simulation]
latency = 0.001
bandwidth = 1e8
per_example = 0.001
classes = [{ nodes = "3", slower = 10.0 }]
"""


def test_with_one_that_is_ten_times_slower_who_waits_for_nobody_is_three_times_sooner(
    compared: Any, file: Path
) -> None:
    file.write_text(STRAGGLER)
    names = "parameter-server,parameter-server:3,parameter-server:async"
    rows = json.loads(compared("--workers", "8", "--paradigms", names, "--json").out)["table"]
    waits, bounded, free = (row["seconds_to_target"] for row in rows)
    assert waits >= 3 * free and free < bounded <= waits


PAGE = (Path(__file__).parents[2] / "docs" / "together" / "paradigms.md").read_text()
ROW = r"^\| `([a-z:-]+)` \| (\d+) \| ([\d.]+) ms \| ([\d.]+) ms \| ([\d.]+) s \| ([\d.]+) s \|"
SHOWN = re.compile(ROW, re.MULTILINE)
QUICK = ("fedavg", "gossip")
NAMES = [found[1] for found in SHOWN.finditer(PAGE)]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.long) for n in NAMES])
def test_the_figures_of_the_document_are_those_of_its_command(name: str, compared: Any, file: Path) -> None:
    """Virtual seconds do not depend on the machine; the round at which a target is reached may, by its rounding."""
    file.write_text(PAGE.split("```toml\n")[1].split("```")[0])
    said = compared("--workers", "4", "--paradigms", name, "--json", "--set", "train.device=cpu")
    assert said.code == 0, said.err
    (row,) = json.loads(said.out)["table"]
    (shown,) = [found for found in SHOWN.finditer(PAGE) if found[1] == name]
    assert row["rounds"] == int(shown[2]) and row["seconds"] == pytest.approx(float(shown[5]), rel=0.005)
    assert 1000 * row["round_seconds"] == pytest.approx(float(shown[3]), rel=0.01)
    assert 1000 * row["told"]["round_seconds"] == pytest.approx(float(shown[4]), rel=0.01)
    assert row["seconds_to_target"] == pytest.approx(float(shown[6]), rel=0.1)


SLOW = r"reach the loss after ([\d.]+) s, those .*? after ([\d.]+) s, those .*?after ([\d.]+) s"


@pytest.mark.long
def test_the_documents_straggler_is_that_of_its_command(compared: Any, file: Path) -> None:
    """Every figure of the paragraph, from the command above it; and at the file's own rate the two end at chance."""
    file.write_text(PAGE.split("```toml\n")[1].split("```")[0])
    (line,) = [line for line in PAGE.splitlines() if line.startswith("fedgossip compare") and "slower" in line]
    words = [*shlex.split(line)[3:], "--json", "--set", "train.device=cpu"]
    rows = json.loads(compared(*words).out)["table"]
    told = re.search(SLOW, " ".join(PAGE.split()))
    assert told and [row["paradigm"] for row in rows] == words[words.index("--paradigms") + 1].split(",")
    for row, shown in zip(rows, told.groups(), strict=True):
        assert row["seconds_to_target"] == pytest.approx(float(shown), rel=0.1)
    words[words.index("train.lr=0.1")], words[words.index("slow")] = "train.lr=0.3", "chance"
    found = json.loads(compared(*words).out)
    assert all(row["test_loss"] > 2 for row in found["table"][1:]) and found["sentence"].count("DIVERGED") == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("mark", "shown"),
    [
        ("allow_disconnected", {"round_seconds": 1e-3, "test_loss": 1.0, "models_apart": 1.0}),
        ("ring+bf16", {"round_seconds": 1e-3, "model": 1e-3, "seconds_to_target": 1.0}),
    ],
)
def test_the_documents_tables_are_those_of_their_commands(
    mark: str, shown: dict[str, float], compared: Any, file: Path
) -> None:
    """Every cell of a row, in the order of `shown`, which has the unit of each."""
    file.write_text(PAGE.split("```toml\n")[1].split("```")[0])
    (line,) = [line for line in PAGE.splitlines() if line.startswith("fedgossip compare") and mark in line]
    found = json.loads(compared(*shlex.split(line)[3:], "--json", "--set", "train.device=cpu").out)["table"]
    table = PAGE.split(line)[1].split("\n## ")[0]
    for row in found:
        values = {**row, "model": row["told"] and row["told"]["round_seconds"]}
        (cells,) = re.findall(rf"^\| `{re.escape(row['paradigm'])}`[^|]*\|(.*)\|$", table, re.MULTILINE)
        for (name, unit), cell in zip(shown.items(), cells.split("|"), strict=True):
            assert values[name] == pytest.approx(unit * float(cell.split()[0]), rel=0.01, abs=0.005 * unit), (row, name)


def test_the_document_has_the_usual_eight() -> None:
    assert ",".join(NAMES) == USUAL and f"{len(NAMES)} paradigms" in PAGE.replace("eight", "8")


def _cell(name: str, losses: list[float]) -> MeasuredCell:
    curve = [Point(at, 2.0 * at, 10 * at, loss, None) for at, loss in enumerate(losses)]
    setting = Setting(4000, EqualLinks(0.01, 1e6, 1e6), TrainingTimes.equal(0.1, 4))
    told = paradigm_of(name).cost(setting)
    parts = {"compute": 1.0, "communicate": 1.0, "wait": 0.0}
    took: dict[str, Any] = {"seconds": 2.0 * len(losses), "round_seconds": 2.0, "parts": parts}
    return MeasuredCell(Cell(name, 4, 1), "", "finished", curve=curve, setting=setting, predicted=told, **took)


def test_the_target_is_held_to_the_end_and_who_diverges_is_named() -> None:
    """A line that touches the least loss and then diverges neither sets the target nor reaches it."""
    steady, touches = _cell("ring", [2.3, 1.0, 0.6, 0.4]), _cell("star", [2.3, 0.2, 1.5, 2.29])
    found = comparison([steady, touches], "examples", None)
    assert found.target == 0.4 and touches.reached(0.4) is None
    said = sentence(found)
    assert "ring is first at test loss 0.4" in said and "star DIVERGED, or learned nothing: it began at 2.3." in said
    assert "ring 0.4, star 2.29" in said
    slow = _cell("star", [2.3, 1.9, 1.5, 1.1])
    assert "star does not hold 0.5 to its end" in sentence(comparison([steady, slow], "examples", 0.5))
    assert comparison([steady, slow], "examples", None).target == 1.1


def test_a_dead_worker_does_not_wait() -> None:
    """Of two peers one dies at 2 s of 10 and is back at 5; the other dies at 4 s for good."""

    def row(peer: int, round: int, seconds: float, training: float, waiting: float) -> PeerRow:
        return PeerRow(round, peer, None, None, 0, 0, training, waiting, 0.0, seconds)

    back = [row(0, 1, 2.0, 2.0, 0.0), EventRow(1, 0, "crashed"), EventRow(1, 0, "restarted"), row(0, 2, 10.0, 4.0, 1.0)]
    gone = [row(1, 1, 4.0, 3.0, 1.0), EventRow(1, 1, "crashed")]
    parts = _parts([*back, *gone], 2, 10.0)
    assert parts == {"compute": 4.5, "communicate": 0.0, "wait": 1.0}
    assert _parts([back[0], back[3], gone[0]], 2, 10.0)["wait"] == 5.5, "without the events all of it is waiting"


def test_a_regrouping_without_anybody_missing_names_nobody() -> None:
    told = [event_text(EventRow(4, 0, "regrouped", {"workers": [0, 1, 2], "without": gone})) for gone in ([], [2])]
    assert "nobody" not in told[0] and "without 2" in told[1]


def test_times_to_the_target_do_not_depend_on_the_evaluated_rounds() -> None:
    often, seldom = _cell("ring", [2.0, 1.6, 1.2, 0.8, 0.4]), [2.0, 1.2, 0.4]
    rarely = replace(often, curve=[Point(2 * at, 4.0 * at, 20 * at, loss, None) for at, loss in enumerate(seldom)])
    here, there = often.reached(1.0), rarely.reached(1.0)
    assert here and there and here.seconds == pytest.approx(5.0) and there.seconds == pytest.approx(5.0)
    assert there.bytes_sent == pytest.approx(25.0) and there.round == pytest.approx(2.5)
    again = replace(often, curve=[*often.curve, Point(5, 10.0, 50, 1.4, None), Point(6, 12.0, 60, 0.6, None)])
    back = again.reached(1.0)
    assert back and back.seconds == pytest.approx(11.0), "it left the target and came back"


def test_a_staleness_can_be_named_and_a_word_cannot() -> None:
    assert paradigm_of("parameter-server:3").sets["parallel.server"] == {"staleness": 3}
    with pytest.raises(ConfigError, match="no paradigm"):
        paradigm_of("parameter-server:x")


def test_a_graph_that_falls_apart_does_not_converge_and_the_complete_one_is_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rings of four, two classes at each peer: the parts never agree, and are refused where nobody asks."""
    content = FILES_APART.replace("ALLOW", "true")
    (tmp_path / "apart.toml").write_text(content)
    words = ["compare", "apart.toml", "--paradigms", "gossip@complete,gossip@ring,gossip@circulant:2", "--workers", "8"]
    said = in_process([*words, "--no-report", "--json"], tmp_path, monkeypatch, capsys)
    assert said.code == 0, said.err
    complete, ring, apart = json.loads(said.out)["table"]
    assert complete["models_apart"] < 1e-3 and ring["models_apart"] < apart["models_apart"] / 1.5
    assert complete["test_loss"] < ring["test_loss"] < apart["test_loss"], "after as many rounds"
    assert complete["rounds"] == ring["rounds"] == apart["rounds"]
    (tmp_path / "apart.toml").write_text(FILES_APART.replace("ALLOW", "false"))
    said = in_process([*words, "--no-report", "--out", "other"], tmp_path, monkeypatch, capsys)
    assert said.code == 9 and "falls into 2 components" in said.err and "topology.allow_disconnected" in said.err


FILES_APART = """
rounds = 12
model = { source = "softmax" }
data = { partition = { kind = "pathological", classes_per_peer = 2 } }
train = { lr = 0.2, batch_size = 32, local_steps = 5, device = "cpu" }
eval = { every = 12 }
topology = { graph = "ring", allow_disconnected = ALLOW }
"""


def test_rates_are_looked_for_among_the_same_five_and_the_search_is_shown(compared: Any, file: Path) -> None:
    said = compared("--workers", "1,3", "--tune", "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert [row["paradigm"] for row in told["tuned"]] == TWO.split(",")
    for row in told["tuned"]:
        assert [one["lr"] for one in row["losses"]] == [0.025, 0.05, 0.1, 0.2, 0.4]
        losses = {one["lr"]: one["test_loss"] for one in row["losses"]}
        assert losses[row["lr"]] == min(losses.values())
        for workers in (1, 3):
            path = file.parent / "all-compared" / f"{row['paradigm']}-w{workers}-s1"
            assert load_experiment(path / "experiment.toml").train.lr == row["lr"]
    page = (file.parent / "all-compared" / "comparison.html").read_text()
    assert "Learning rates" in page and "lr 0.025" in page
    again = compared("--workers", "1,3", "--tune", "--json")
    assert again.out == said.out and again.err.count("(was there)") == 4


@pytest.mark.sockets
@pytest.mark.filterwarnings("ignore")  # of submitit
def test_six_cells_on_a_cluster_are_the_table_of_this_machine_and_are_not_run_again(
    compared: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job is cancelled that has ended its work: its controller would print a traceback."""
    pytest.importorskip("submitit")
    cancelled: list[str] = []
    monkeypatch.setattr("submitit.local.local.LocalJob.cancel", lambda job, **_: cancelled.append(job.job_id))
    words = ["--workers", "2,3,4", "--json"]
    here = rows_of(compared(*words, "--out", "here"))
    there = compared(*words, "--out", "there", "--backend", "slurm:local", "-j", "2")
    assert there.code == 0 and "was there" not in there.err
    assert len(here) == 6 and rows_of(there) == here and cancelled == []
    again = compared(*words, "--out", "there", "--backend", "slurm:local", "-j", "2")
    assert again.err.count("was there") == 6 and rows_of(again) == here


def rows_of(said: Output) -> list[dict[str, Any]]:
    """The table, with the runs by their names."""
    rows = json.loads(said.out)["table"]
    return [{**row, "runs": [Path(run).name for run in row["runs"]]} for row in rows]


def test_a_backend_of_cells_that_there_is_not_is_refused(compared: Any, file: Path) -> None:
    found = compared("--backend", "slrum:gpu", "--out", "c")
    assert found.code == 2 and "slrum:gpu" in found.err
    found = compared("-j", "4", "--out", "c")
    assert found.code == 2 and "--backend" in found.err


@pytest.mark.parametrize(
    ("simulation", "modelled"),
    [
        ({"bandwidth": 1e6}, True),
        ({"bandwidth": 1e6, "classes": [{"nodes": "0", "slower": 2.0}]}, True),
        ({"bandwidth": 1e6, "racks": {"size": 2, "bandwidth": 1e6}}, True),
        ({"bandwidth": 1e6, "classes": [{"nodes": "0", "bandwidth": 1e5}]}, False),
    ],
)
def test_unequal_links_have_no_model_and_no_formula(simulation: dict[str, Any], modelled: bool) -> None:
    parallel = {"method": "ring", "workers": 4}
    run = load_experiment({"rounds": 1, "task": {"kind": "quadratic"}, "parallel": parallel, "simulation": simulation})
    assert (setting_of(run, 40) is not None) == modelled
