"""What a report says of repeating its run is done, for every kind of run, and the digests are compared."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
import test_report_federated

import fedgossip
from fedgossip.cli import cli
from fedgossip.learning.analytic import Quadratic
from fedgossip.report.page import sections
from fedgossip.report.page.reading import read_run
from fedgossip.report.page.sections import repeating

QUADRATIC = {"kind": "quadratic", "dim": 3, "sigma": 0.1, "placement": "random"}
GOSSIP: dict[str, Any] = {"rounds": 6, "topology": {"graph": "complete", "n": 4}, "task": QUADRATIC}
FEDERATED: dict[str, Any] = {"rounds": 3, "task": QUADRATIC}
LEARNING: dict[str, Any] = {"rounds": 2, "model": {"source": "softmax"}, "train": {"local_steps": 2, "device": "cpu"}}
LOSSY = [{"kind": "drop", "probability": 0.2}, {"kind": "crash", "peers": [1], "start": 0.2, "after": 0.2}]


def federated(base: dict[str, Any], **coordinator: Any) -> dict[str, Any]:
    return {**base, "coordinator": {"clients": 3, "min_clients": 3, **coordinator}}


SIMULATED: dict[str, dict[str, Any]] = {
    "gossip": GOSSIP,
    "learning": {**LEARNING, "topology": {"graph": "ring", "n": 4}},
    "asynchronous": {**GOSSIP, "algorithm": {"mode": "async"}},
    "push-sum": {**GOSSIP, "algorithm": {"name": "push-sum"}},
    "asynchronous push-sum": {**GOSSIP, "algorithm": {"name": "push-sum", "mode": "async"}},
    "private": {**GOSSIP, "algorithm": {"private": True}},
    "window doubling": {
        **GOSSIP, "topology": {"graph": "window-doubling", "n": 4}, "algorithm": {"name": "window-doubling"}
    },
    "faults": {**GOSSIP, "faults": LOSSY, "algorithm": {"deadline": 2.0, "least_deadline": 0.5}},
    "secure": federated(FEDERATED),
    "in the clear": federated(FEDERATED, secure={"on": False}, min_clients=1),
    "fedbuff": federated(FEDERATED, secure={"on": False}, algorithm="fedbuff", min_clients=1),
    "a budget of clients": federated(FEDERATED, privacy={"unit": "client", "noise": 2.0, "max_epsilon": 100.0}),
    "a budget of records": federated(LEARNING, privacy={"unit": "record", "max_epsilon": 100.0}),
    "a budget that ends it": federated({**FEDERATED, "rounds": 9}, privacy={"unit": "client", "max_epsilon": 12.0}),
}  # fmt: skip


def section_of(folder: Path) -> str:
    """The section of a report on repeating its run; the figures of the others take their time."""
    return str(sections.provenance(read_run(folder)))


@pytest.mark.parametrize("kind", ["gossip", "secure"])
def test_the_section_is_in_the_report(tmp_path: Path, kind: str) -> None:
    fedgossip.simulate(SIMULATED[kind], out=tmp_path / "run", report=True)
    told = re.search("<p>In this folder.*?</pre>", section_of(tmp_path / "run"), re.DOTALL)
    assert told and told[0] in (tmp_path / "run" / "report.html").read_text()


def as_the_report_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Type the command that stands in the report of a run; return the digests of the run, and of its repetition."""
    (line,) = re.findall("<pre>(fedgossip run .*?)</pre>", section_of(folder))
    monkeypatch.chdir(folder)
    words = html.unescape(line).split()[1:]
    assert cli([*words, "--out", "again", "--no-report"], standalone_mode=False) in (0, 6, 9)
    first, second = (json.loads((folder / name / "summary.json").read_text())["digest"] for name in (".", "again"))
    return first, second


@pytest.mark.parametrize("kind", SIMULATED)
def test_a_simulated_run_is_repeated_bit_for_bit_by_the_line_in_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Asynchronous runs too, and those with noise: all of it is drawn from the seed there."""
    fedgossip.simulate({**SIMULATED[kind], "seed": 5}, out=tmp_path / "run")
    how = repeating(read_run(tmp_path / "run"))
    first, second = as_the_report_says(tmp_path / "run", monkeypatch)
    assert how.same and "the same digest, bit for bit" in how.text
    assert first is not None and first == second


def test_a_run_on_stacked_arrays_is_repeated_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fedgossip.simulate(SIMULATED["learning"], engine="stacked", out=tmp_path / "r")
    assert "--on stacked" in str(repeating(read_run(tmp_path / "r")).command)
    first, second = as_the_report_says(tmp_path / "r", monkeypatch)
    assert first == second


def test_of_a_task_that_a_program_gave_no_command_is_shown(tmp_path: Path) -> None:
    """experiment.toml says digits there, and its command trained something else."""
    content = {**GOSSIP, "task": {"kind": "learning"}}
    task = Quadratic(4, placement="random", eta=0.1, sigma=0.1, dim=3, dtype="float32", seed=7)
    runs = [fedgossip.simulate(content, task=task, out=tmp_path / str(k)) for k in range(2)]
    assert runs[0].digest == runs[1].digest, "the same call repeats it, as the report says"
    page = section_of(tmp_path / "0")
    assert "<pre>fedgossip run" not in page and "the same call with the same task" in page.lower()


def test_a_module_of_ones_own_is_named_as_what_has_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "import torch\n\ndef wide(shape, classes):\n    return torch.nn.Linear(64, classes)\n"
    (tmp_path / "my_models_here.py").write_text(text)
    content = {**LEARNING, "model": {"source": "my_models_here:wide"}, "topology": {"graph": "ring", "n": 4}}
    fedgossip.simulate(content, out=tmp_path / "run")
    assert "a copy of my_models_here.py" in repeating(read_run(tmp_path / "run")).text
    (tmp_path / "run" / "my_models_here.py").write_text(text)
    first, second = as_the_report_says(tmp_path / "run", monkeypatch)
    assert first == second


# --- real runs --------------------------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_a_run_of_real_peers_is_repeated_by_a_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fedgossip.run_local(GOSSIP, tmp_path / "run", report=False)
    assert repeating(read_run(tmp_path / "run")).same
    first, second = as_the_report_says(tmp_path / "run", monkeypatch)
    assert first is not None and first == second


@pytest.mark.sockets
def test_the_noise_of_a_real_run_is_not_repeated_and_its_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is from the operating system: "the same digest, bit for bit" stood there."""
    fedgossip.run_local(SIMULATED["a budget of clients"], tmp_path / "run", report=False)
    how = repeating(read_run(tmp_path / "run"))
    assert not how.same and "the noise of a real run is from the operating system" in how.text
    first, second = as_the_report_says(tmp_path / "run", monkeypatch)
    assert first != second


REAL: list[tuple[dict[str, Any], str, str]] = [
    ({}, "", "bit for bit"),
    ({"privacy": {"epsilon": 3.0, "unit": "record"}}, "", "is from the operating system"),
    ({"algorithm": "fedbuff"}, "", "arrived in an order of their own"),
    ({"events": {"missed": 2}}, "", "at times of their own (missed)"),
    ({"events": {"unlike": 1}}, "", "processors of several kinds"),
    ({"digest": None}, "", "there is no digest of this run"),
    ({"kernels": "as they come"}, "", "torch was imported before fedgossip"),
    ({}, "[[faults]]\nkind = 'drop'\n", "at times of their own (faults)"),
    ({}, "[train]\nthreads = 4\n", "bit for bit"),
    ({}, "[train]\nprocesses = 2\n", "2 processes add up"),
    ({}, "train = 3\nmodel = []\ndata = 'x'\n", "bit for bit"),
    ({}, "[train]\nprocesses = 'many'\ndevice = 7\n", "bit for bit"),
    ({}, "no toml [", "bit for bit"),
    ({}, "[train]\ndevice = 'cuda:0'\n", "a GPU rounds"),
    ({}, "[train]\nportable = true\n", "on any x86-64 processor"),
    ({"processor": "Some CPU"}, "[train]\ndevice = 'cpu'\n", "of the same kind (Some CPU), with the same versions"),
    ({}, "[data]\nsource = 'csv:/s/{peer}.csv'\n", "every participant’s file"),
]


@pytest.mark.sockets
@pytest.mark.parametrize(("facts", "experiment", "words"), REAL)
def test_a_report_says_where_the_digest_will_be_another(
    tmp_path: Path, facts: dict[str, Any], experiment: str, words: str
) -> None:
    usual = {"driver": "local", "digest": "ab" * 32, "events": {}}
    folder = test_report_federated.plain_run(tmp_path, **{**usual, **facts})
    (folder / "experiment.toml").write_text(experiment)
    how = repeating(read_run(folder))
    assert words in how.text
    assert how.same == ("bit for bit" in how.text)
    assert words in html.unescape(section_of(folder))
