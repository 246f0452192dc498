"""The reference: every word has a meaning where it is declared, the page is of today, `explain` prints the same."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import reference
from commands import in_process

from fedgossip.base.errors import EXIT_CODES, FedgossipError
from fedgossip.cli import COMMANDS, main
from fedgossip.cli.explain import CODE, COMMAND, EVENT, KEY, Term, entries
from fedgossip.cli.topology.topology import COMPARED
from fedgossip.core.glossary import SITES, first_sentence, terms, terms_of, used_in
from fedgossip.core.records import event_kinds
from fedgossip.experiment import load_experiment
from fedgossip.experiment.meanings import REQUIRED, keys, written
from fedgossip.experiment.run_sections import COMPARE
from fedgossip.lab.compare.cells import compare_section

ALL = list(entries())
KINDS = ({"topology": {"graph": "none", "n": 3}}, {"coordinator": {"clients": 3}}, {"parallel": {"workers": 3}})


def named(kind: str) -> dict[str, Term]:
    return {one.name: one for one in ALL if one.kind == kind}


def test_the_page_is_of_todays_declarations() -> None:
    for path, made in reference.PAGES_OF.items():
        assert path.read_text() == made(), f"write it again: {reference.RENEW}"


def test_the_list_for_programs_links_every_page_and_has_every_command() -> None:
    text, docs = reference.LIST.read_text(), reference.LIST.parent
    links = re.findall(r"^- \[[^\]]+\]\(([\w/-]+\.md)\)", text, re.MULTILINE)
    assert set(links) == {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert all(f"- `fedgossip {name}`: " in text for name in COMMANDS)


@pytest.mark.parametrize("entry", [one for one in ALL if one.kind == KEY], ids=lambda one: one.name)
def test_every_key_has_a_meaning(entry: Term) -> None:
    assert len(entry.meaning) > 5
    assert entry.meaning.endswith((".", ")"))
    assert "None" not in entry.meaning, "a file has no word for it: none"


IN_LISTS = "faults.", "simulation.classes.", "coordinator.tiers."
"""Beginnings of the keys of blocks in lists, which --set replaces as a whole."""


@pytest.mark.parametrize("content", KINDS, ids=str)
def test_a_file_with_every_default_that_is_told_is_the_empty_file(content: dict[str, dict[str, object]]) -> None:
    empty = load_experiment(content)
    told = [
        f"{name}={one.default}"
        for name, (one, *_) in keys().items()
        if one.default not in ("none", REQUIRED) and name.partition(".")[0] in empty.__struct_fields__
        if not name.startswith(IN_LISTS)
    ]
    assert len(told) > 30
    assert load_experiment(content, told) == empty


def test_what_is_told_of_a_default_is_toml() -> None:
    value = {"kind": "dirichlet", "alpha": 0.3}
    assert tomllib.loads(f"v = {written(value)}")["v"] == value
    assert written(None) == "none"


def test_what_a_declaration_does_not_allow_is_refused() -> None:
    for name, (one, *_) in keys().items():
        if one.allowed.startswith(("at least", "above 0")) and not name.startswith(IN_LISTS):
            if name.startswith(f"{COMPARE}."):
                with pytest.raises(FedgossipError, match=name.rpartition(".")[2]):
                    compare_section({COMPARE: {name.rpartition(".")[2]: -1.0}}, "all.toml")
                continue
            content = next(kind for kind in KINDS if name.partition(".")[0] in load_experiment(kind).__struct_fields__)
            with pytest.raises(FedgossipError, match=name.rpartition(".")[2]):
                load_experiment(content, [f"{name}=-1"])


def test_every_error_ends_with_a_code_that_is_told() -> None:
    codes = {0, 130, *(kind.exit_code for kind in FedgossipError.__subclasses__())}
    assert codes < set(EXIT_CODES)
    assert named(CODE).keys() == {str(code) for code in EXIT_CODES}


def test_every_event_and_every_command_is_there() -> None:
    assert named(EVENT).keys() == event_kinds().keys()
    assert {name.partition(" ")[0] for name in named(COMMAND)} == COMMANDS.keys()
    assert all(one.meaning for one in named(COMMAND).values())


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["train.lr"], ["train.lr", "0.1", "above 0"]),
        (["lr"], ["train.lr"]),
        (["deadline"], ["algorithm.deadline", "coordinator.deadline", "parallel.deadline"]),
        (["[topology]"], ["topology.graph", "topology.seed"]),
        (["coordinator"], ["coordinator.clients", "coordinator.secure.bits"]),
        (["9"], ["partial"]),
        (["partition"], ["kind of fault", "event", "data.partition"][:2]),
        (["ended.json"], ["ended.json  (file)", "written last", "participant"]),
        (["summary.score.averaged"], ["key of summary.json", "mean over the models"]),
        (["wall_seconds"], ["summary.wall_seconds"]),
        (["keys", "new"], ["fedgossip keys new", "--address"]),
        (["gossip"], ["decentralized  (lecture)", "fedgossip lecture decentralized"]),
        (["all"], ["train.lr", "130", "superseded", "fedgossip topology draw"]),
    ],
)
def test_explain_prints_what_a_word_means(
    words: list[str],
    shown: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = in_process(["explain", *words], tmp_path, monkeypatch, capsys)
    assert said.code == 0
    assert [one for one in shown if one not in said.out] == []


def test_terms_of_tables_are_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Every head of a table of graphs can be looked up, and so can both meanings of a word with two."""
    assert set(COMPARED) - {"edges", "degree"} <= set(terms())
    said = in_process(["explain", "n_w", "mean", "peer"], tmp_path, monkeypatch, capsys)
    assert said.code != 0, said.out  # three words, of which two are one term: in quotes
    both = in_process(["explain", "staleness"], tmp_path, monkeypatch, capsys).out
    assert "parallel.server.staleness  (key)" in both and "staleness  (term)" in both, both
    assert "Vogels" in in_process(["explain", "n_w"], tmp_path, monkeypatch, capsys).out
    assert "common test set" in in_process(["explain", "mean", "peer"], tmp_path, monkeypatch, capsys).out


def test_the_terms_in_a_document_are_found_with_one_sentence_each() -> None:
    """In the order of their use, whole words alone, and none inside a key or another term."""
    found = used_in(
        ["masks, and a calibration error", "coordinator.secure.bound, clipped, an Epsilon of 3 at delta 1e-05"]
    )
    assert list(found) == ["mask", "calibration error", "epsilon", "delta"]
    assert all(one.endswith(".") and len(one) < 220 for one in map(first_sentence, terms_of(SITES).values()))


def test_explain_tells_programs_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_process(["explain", "train.lr", "9", "--json"], tmp_path, monkeypatch, capsys)
    lr, code = json.loads(said.out)
    assert (lr["name"], lr["facts"]["default"], lr["meaning"]) == ("train.lr", "0.1", keys()["train.lr"][0].meaning)
    assert code["kind"] == "exit code"


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("topologie", "Did you mean 'topology'?"),
        ("train.learning", "Did you mean"),
        ("xyzzy", "fedgossip explain all"),
        ("", "fedgossip explain all"),
    ],
)
def test_a_word_that_is_not_known_gets_the_nearest(
    word: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_process(["explain", word], tmp_path, monkeypatch, capsys)
    assert said.code == 2
    assert len(said.errors) == 1 and advice in said.err and len(said.err.splitlines()) == 2


def test_the_help_has_every_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["fedgossip", "--help"])
    with pytest.raises(SystemExit):
        main()
    told = " ".join(capsys.readouterr().out.split())
    assert all(f"{code} {one.name}" in told for code, one in EXIT_CODES.items())
