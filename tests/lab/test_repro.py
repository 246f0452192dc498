"""Published numbers come out again; a number that does not is told, and ends the command with code 1."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from commands import in_process
from pages import ROOT, Reader, page

from fedgossip.lab.repro import published, run_measures
from fedgossip.lab.repro.published import MEASURES, CheckedValue, PublishedCheck, checked, chosen, list_ids, result_of

AS_TOLD_ON_THE_PAGE = "fedgossip repro "


COSTLY = {"bias-free", "two-tap", "vogels-neighbours", "placement"}
"""Those that take seconds each."""


QUICK = [name for name in list_ids() if chosen(result_of(name), fast=True)]
"""Those of which something is computed with --fast."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in COSTLY else []) for name in QUICK]
)
def test_what_was_published_comes_out(name: str) -> None:
    found = list(checked(result_of(name), fast=True))
    assert found and [f"{one.check.what}: {one.value}, not {one.expected}" for one in found if not one.holds] == []


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in list_ids() if any(one.slow for one in result_of(name).check)])
def test_what_was_published_comes_out_also_where_it_takes_long(name: str) -> None:
    assert [one.check.what for one in checked(result_of(name)) if not one.holds] == []


@pytest.mark.long
@pytest.mark.data
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name in list_ids() if any(one.full for one in result_of(name).check)])
def test_what_was_published_comes_out_of_examples_that_are_not_bundled(
    name: str, real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDGOSSIP_DATA", str(real_data))
    told = [f"{one.check.what}: {one.value}" for one in checked(result_of(name), full=True) if not one.holds]
    assert told == []


def test_a_gain_is_an_end_of_the_interval_of_a_sweep_and_what_takes_minutes_waits_for_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.toml").write_text(
        'seeds = 3\n[base]\nrounds = 40\nmodel = { source = "softmax" }\ntrain = { device = "cpu", lr = 0.5 }\n'
        'data = { partition = { kind = "dirichlet", alpha = 0.1 } }\ntopology = { graph = "none", n = 4 }\n'
        '[grid]\n"topology.graph" = ["none", "complete"]\n'
    )
    (tmp_path / "told.toml").write_text(
        'title = "t"\nsource = "s"\nclaim = "c"\n[[check]]\nwhat = "tied"\nmeasure = "gain_in_sweep"\n'
        'of = { file = "tiny", ours = "topology.graph=complete", theirs = "topology.graph=none" }\n'
        "least = 0.0\nfull = true\n"
    )
    monkeypatch.setattr(run_measures, "FOLDER", tmp_path)
    pair = "tiny", "topology.graph=complete", "topology.graph=none"
    low, mean, high = (run_measures.gain_in_sweep(*pair, end=end) for end in ("low", "mean", "high"))
    assert 0.1 < low < mean < high
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    (tmp_path / "tiny.toml").unlink()  # it is run once a process
    for words, code, said in (
        (["told"], 0, "not computed: it takes minutes"),
        (["told", "--full"], 0, f"agrees   tied: {low:.9g}"),
        (["told", "--full", "--fast"], 2, "give one of them"),
    ):
        done = in_process(["repro", *words], tmp_path, monkeypatch, capsys)
        assert done.code == code and said in done.out + done.err


def test_there_are_enough_of_them_and_each_is_sourced() -> None:
    assert len(list_ids()) >= 14
    for name in list_ids():
        one = result_of(name)
        assert one.title and one.claim and any(year in one.source for year in map(str, range(1970, 2027))), name


@pytest.mark.parametrize("name", list_ids())
def test_every_number_asks_for_something_that_can_fail(name: str) -> None:
    for one in result_of(name).check:
        inspect.signature(MEASURES[one.measure]).bind(**one.of)
        assert (one.expect is None) == (one.least > -float("inf") or one.most < float("inf"))
        assert not CheckedValue(one, float("nan"), 0.0, "computed").holds
        assert not all(CheckedValue(one, value, 0.0, "computed").holds for value in (-1e9, 1e9))


def test_a_number_that_differs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.toml").write_text(
        'title = "t"\nsource = "s"\nclaim = "c"\n'
        '[[check]]\nwhat = "ring"\nmeasure = "slem"\nof = { graph = "ring", n = 16 }\nexpect = 0.9\nwithin = 0.01\n'
    )
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    for words in (["wrong"], ["all"]):
        said = in_process(["repro", *words], tmp_path, monkeypatch, capsys)
        assert said.code == 1 and "DIFFERS  ring: 0.949253022; computed apart 0.9 within 0.01" in said.out
    told = json.loads(in_process(["repro", "wrong", "--json"], tmp_path, monkeypatch, capsys).out)
    assert told["wrong"]["agrees"] is False
    unknown = in_process(["repro", "rong"], tmp_path, monkeypatch, capsys)
    assert unknown.code == 2 and "Did you mean 'wrong'?" in unknown.err


def test_a_share_and_an_end_are_judged_as_they_are_written() -> None:
    near = PublishedCheck("a", "slem", expect=2.0, share=0.1)
    assert CheckedValue(near, 2.19, 0.0, "computed").holds and not CheckedValue(near, 2.21, 0.0, "computed").holds
    above = PublishedCheck("a", "slem", least=1.0)
    assert CheckedValue(above, 1.0, 0.0, "computed").holds and not CheckedValue(above, 0.99, 0.0, "computed").holds


@pytest.mark.sockets
def test_the_page_lists_all_of_them_and_its_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page("repro").read_text()
    assert [name for name in list_ids() if f"| `{name}` |" not in text] == []
    monkeypatch.chdir(tmp_path)
    quick = tmp_path / "repro.md"
    quick.write_text(text.replace("fedgossip repro all --fast ", "fedgossip repro ying-gap --fast "))
    Reader(tmp_path).read(quick)
    assert (ROOT / "docs" / "use" / "repro.md").exists()
