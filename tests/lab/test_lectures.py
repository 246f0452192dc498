"""Every lecture agrees with its formulas; a number that does not is shown, and ends the command with code 1."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from commands import typed

from fedgossip.base.errors import ConfigError
from fedgossip.cli.explain import entries, meant
from fedgossip.lab.lectures import lesson as lesson_module
from fedgossip.lab.lectures import topics as topics_module
from fedgossip.lab.lectures.lesson import give
from fedgossip.lab.lectures.topics import Topic, TopicNumber, name_of, topics, value_of

QUICK = {"ring", "consistent-hashing"}
LONG = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in topics()]


HASHING = topics()["consistent-hashing"]
FEW = msgspec.structs.replace(HASHING, given={**HASHING.given, "many": 16, "points": 256, "length": 20_000})
"""A lecture that is computed in a hundredth of the time."""


def offer(monkeypatch: pytest.MonkeyPatch, **lectures: Topic) -> None:
    for module in (lesson_module, topics_module):
        monkeypatch.setattr(module, "topics", lambda: lectures)


@pytest.mark.parametrize("name", LONG)
def test_the_numbers_of_a_lecture_agree_with_its_formulas(name: str) -> None:
    lesson = give(name)
    assert [(one.number.what, one.measured, one.expected) for one in lesson.numbers if not one.holds] == []


def test_a_number_beside_its_formula_by_more_than_the_tolerance_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, few=FEW)
    (number, *_) = give("few").numbers
    most = number.number.within * number.expected
    for away, holds in ((0.99, True), (1.01, False), (math.nan, False), (math.inf, False)):
        assert replace(number, measured=number.expected + away * most).holds is holds
    none = replace(number, number=TopicNumber("", "", "", 0.1), expected=0.0)
    assert replace(none, measured=0.09).holds and not replace(none, measured=0.11).holds


def test_formulas_are_arithmetic_alone() -> None:
    assert value_of("C + 2*(m - 1)*(a + d/(m*b))", {"C": 1, "m": 4, "a": 2, "d": 8, "b": 2}) == 1 + 6 * (2 + 1)
    assert value_of("-2**2 + log2(8)*pi", {}) == -4 + 3 * math.pi
    for words in ("__import__('os')", "a.b", "[1]", "m if m else 1", "'text'"):
        with pytest.raises((TypeError, KeyError)):
            value_of(words, {"m": 1, "a": 1})


def test_no_figure_of_a_text_is_typed() -> None:
    """A number with a point, or of two digits, is computed, or is given by its question or a formula."""
    figures = r"(?<![\w^.*/-])(?<!ln )(?:\d+\.\d+|[1-9]\d+)(?![\w^.]*\d)(?! bits)"
    for path in sorted(topics_module.FOLDER.glob("*.toml")):
        for name, topic in tomllib.loads(path.read_text("utf-8")).items():
            texts = [(words, "") for words in topic["says"]] + [(answer, asked) for asked, answer in topic["questions"]]
            formulas = " ".join(one["formula"] for one in topic["numbers"])
            for text, asked in texts:
                given = " ".join([asked, formulas, *re.findall(r"\{.*?\}", text)])
                told = re.findall(figures, re.sub(r"\{.*?\}", "", text))
                assert [figure for figure in told if figure not in given] == [], (name, text)
    assert "10.3; " in topics()["speed-up"].questions[0][1] and "{" not in str([t.says for t in topics().values()])


def test_a_lecture_by_another_word_and_a_wrong_one() -> None:
    assert {name_of(word) for word in ("Hash_Ring", "hash ring", "Consistent hashing")} == {"consistent-hashing"}
    assert all(word == "-".join(word.lower().split()) for topic in topics().values() for word in topic.words)
    with pytest.raises(ConfigError, match="no lecture on 'rign'") as refused:
        name_of("rign")
    assert refused.value.advice == "Did you mean 'ring'?"


NOTES = """all-reduce, ring, parameter server, MapReduce, consistent hashing, stale synchronous, Hogwild, DDP, ZeRO,
FSDP, Megatron-LM, model parallelism, GPipe, PipeDream, ring attention, Ulysses, MoE, mixed precision, DistBelief,
L-BFGS, Downpour SGD, PowerSGD, DGC, QSGD, error feedback, LARS, DiLoCo, local SGD, DDNN, Alpa, Amdahl, weak scaling"""


def test_the_words_of_the_notes_are_explained() -> None:
    known = list(entries())
    assert all(meant(word, known) for word in NOTES.replace("\n", " ").split(", "))


def test_the_command_prints_the_lecture_hides_answers_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, **{**topics(), "consistent-hashing": FEW})
    said = typed(["lecture"], tmp_path)
    assert said.code == 0 and [line.split()[0] for line in said.out.splitlines()] == list(topics())
    said = typed(["lecture", "hashing", "--html", "hash.html"], tmp_path)
    topic, flat = FEW, " ".join(said.out.split())
    assert said.code == 0 and all(words in flat for words in topic.says)
    assert all(asked in flat and answer not in flat for asked, answer in topic.questions)
    text = (tmp_path / "hash.html").read_text()
    assert (
        text.count("<details") == 3
        and "<svg" in text
        and text.count("<td>agrees") + text.count(">agrees</td>") == len(topic.numbers)
    )


def test_a_wrong_number_ends_the_course_with_1(
    tmp_path: Path, unrendered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (number, *_) = FEW.numbers
    wrong = msgspec.structs.replace(FEW, numbers=[msgspec.structs.replace(number, formula="1/servers")])
    offer(monkeypatch, right=FEW, wrong=wrong)
    said = typed(["lecture", "--all", "--out", "course"], tmp_path)
    assert said.code == 1 and "wrong: 0 of 1 numbers agree" in said.out and "right: 4 of 4" in said.out
    assert "Out of tolerance" in (tmp_path / "course" / "wrong.html").read_text()
    assert {path.name for path in (tmp_path / "course").iterdir()} == {"index.html", "right.html", "wrong.html"}
    told = json.loads(typed(["lecture", "wrong", "--json"], tmp_path).out)
    assert told["agrees"] is False and told["numbers"][0]["expected"] == 1 / FEW.given["servers"]
    answers = " ".join(typed(["lecture", "right", "--answers"], tmp_path).out.split())
    assert all(answer in answers for _, answer in FEW.questions)


@pytest.mark.parametrize("words", [["--all", "ring"], ["--html", "x.html"], ["--answers"]])
def test_options_that_go_with_nothing_are_refused(words: list[str], tmp_path: Path) -> None:
    assert typed(["lecture", *words], tmp_path).code == 2 and not list(tmp_path.iterdir())
