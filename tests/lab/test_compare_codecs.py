"""Codecs among the paradigms: a round costs what is told, and the page can say "do not compress here"."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from test_costs import DIM, LINKS, PATIENT, SIZE, C, near, per_round, times

from fedgossip.algorithms.collectives.names import all_gather
from fedgossip.base.errors import ConfigError
from fedgossip.lab.compare import verdict
from fedgossip.lab.compare.names import Setting, paradigm_of
from fedgossip.lab.compare.verdict import compression_of
from fedgossip.lab.costs.base import break_even
from fedgossip.lab.costs.methods import gathered
from tests.commands import in_process

FILE = """
rounds = 40
task = { kind = "quadratic", dim = 2000, placement = "random" }
train = { lr = 0.1, local_steps = 1 }
eval = { every = 2 }
parallel = { workers = 4, bucket = 0 }
simulation = { latency = 0.0, bandwidth = 1e5, downlink = 1e5, per_example = 0.001 }
"""


@pytest.mark.parametrize("m", [1, 3, 8])
def test_a_round_of_a_ring_by_a_codec_takes_what_its_steps_say(m: int) -> None:
    section = {"workers": m, "method": "ring", "codec": "bf16", "bucket": 0, **PATIENT}
    assert near(per_round(parallel=section), gathered("ring", 2 * DIM, SIZE, LINKS, times(m)))


@pytest.mark.parametrize("method", ["ring", "all-to-all"])
@pytest.mark.parametrize("m", [1, 3, 8])
def test_steps_and_the_closed_form_of_a_gather_agree(method: str, m: int) -> None:
    told = gathered(method, 2 * DIM, SIZE, LINKS, times(m))
    assert told.seconds == pytest.approx(C + all_gather(method, m, 2 * DIM, SIZE, LINKS))


@pytest.fixture
def table(tmp_path: Path, unrendered: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> Any:
        (tmp_path / "all.toml").write_text(FILE)
        command = ["compare", "all.toml", "--no-report", "--json", "--paradigms", "ring,ring+top-k:0.1", *words]
        said = in_process(command, tmp_path, monkeypatch, capsys)
        assert said.code == 0, said.err
        return json.loads(said.out)

    return run


def test_on_slow_links_compressing_pays_and_on_quick_ones_the_page_says_not_to(table: Any) -> None:
    slow = table("--set", "compare.target=1003", "--out", "slow")
    assert "Compressing pays here up to a test loss of 1e+03: ring is at the loss after" in slow["sentence"]
    dense, coded = slow["table"]
    assert coded["round_seconds"] < dense["round_seconds"] / 2
    assert coded["compression"]["pays"] and coded["compression"]["below"].startswith("below ")
    assert "compression" not in dense
    assert coded["told"]["round_seconds"] == pytest.approx(coded["round_seconds"], rel=0.2)  # headers of short chunks
    quick = [f"simulation.{key}=1e11" for key in ("bandwidth", "downlink")]
    words = [word for one in quick for word in ("--set", one)]
    assert (
        "Do not compress here: ring is" in table(*words, "--set", "compare.target=1003", "--out", "quick")["sentence"]
    )


CODEC_SECONDS = 0.01
"""A round of a worker's codec, in place of what this machine would measure."""


@pytest.mark.long
def test_the_told_break_even_is_where_the_simulator_says_that_compressing_begins_to_pay(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "codec_seconds", lambda *_: CODEC_SECONDS)

    def compression(name: str, rate: float) -> Any:
        links = [word for key in ("bandwidth", "downlink") for word in ("--set", f"simulation.{key}={rate}")]
        return table(*links, "--set", "compare.target=1003", "--out", name)["table"][1]["compression"]

    told = compression("first", 1e5)["pays_below"]
    assert 1e5 < told < 1e8
    under, over = (compression(name, rate) for name, rate in (("under", told / 1.3), ("over", told * 1.3)))
    assert under["pays"] and not over["pays"]
    assert over["pays_below"] == pytest.approx(told, rel=0.01)  # it does not hang on the links of the experiment
    assert over["below"].startswith("below ")


@pytest.mark.parametrize(
    ("saved", "more", "rate"), [(100.0, 2.0, 50.0), (0.0, 1.0, 0.0), (-5.0, -1.0, 0.0), (5.0, -1.0, math.inf)]
)
def test_a_break_even_is_bytes_by_seconds(saved: float, more: float, rate: float) -> None:
    assert break_even(saved, more) == rate


def test_a_codec_that_never_gets_there_pays_nowhere_and_one_that_alone_does_everywhere() -> None:
    names, setting = ("ring", "ring+sign"), Setting(8 * DIM, LINKS, times(4), element=8)
    seconds: dict[str, float | None] = {"ring": 3.0, "ring+sign": None}
    never = compression_of(names, seconds, seconds, 1.0, setting)
    assert not never.pays and never.sentence == "Do not compress here: ring is at the loss after 3 s, ring+sign never."
    seconds = {"ring": None, "ring+sign": 3.0}
    alone = compression_of(names, seconds, seconds, 1.0, setting)
    assert alone.pays and alone.below == "at any bandwidth" and alone.plain_data()["pays_below"] is None


@pytest.mark.parametrize(
    ("name", "words"),
    [("tree+sign", "tree adds at every step"), ("ring+zip", "no codec 'zip'"), ("gossip+sign", "no paradigm")],
)
def test_what_cannot_be_compared_is_refused_with_advice(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        paradigm_of(name)
    assert refused.value.advice


def test_a_linear_codec_goes_by_every_collective() -> None:
    assert paradigm_of("tree+random-k:0.1").sets["parallel"] == {"method": "tree", "codec": "random-k:0.1"}
