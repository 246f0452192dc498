"""No refusal is lost: each of tests/refusals.txt is there, in its words or in better ones."""

from __future__ import annotations

from refusals import FROZEN, lost, present, refusals

REMOVED = "python tests/refusals.py --write, if what it refuses is possible now or cannot occur"


def test_no_refusal_is_lost() -> None:
    assert lost(set(FROZEN.read_text().splitlines()), present()) == [], REMOVED


def test_a_refusal_is_the_words_of_its_call_and_reworded_by_half_of_them() -> None:
    source = """
def read(path):
    text = f"{path}: source is empty"
    raise ConfigError(text, "Name the paper.")
"""
    (words,) = refusals(source)
    assert words == ": source is empty Name the paper."
    assert lost({words}, {"the source is empty; name the paper of the graph"}) == []
    assert lost({words}, {"a graph without nodes"}) == [words]
    one, other = f"{words} Now.", f"{words} Or the map."
    assert lost({one, other}, {words}) == [other], "one new refusal stands for one earlier refusal"
