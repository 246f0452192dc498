"""What a run leaves has one owner, `core/run_format`: what is written is declared there, and only there."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, get_type_hints

import msgspec
import pytest
from rooms import FILES, PACKAGE

from fedgossip.cli.run import runs
from fedgossip.core import records, run_format, run_summary
from fedgossip.core.run_summary import RunSummary
from fedgossip.drivers.simulate import simulate
from fedgossip.report.board import heads
from fedgossip.report.page import participation, reading

NAMES = {value for name, value in vars(run_format).items() if name.isupper()}
WORDS = {name for name in NAMES if name.isalpha() and name.islower()}
"""Names that are plain words too: counted where a path is made of them."""
QUOTED = re.compile(f"[\"'/](?:{'|'.join(map(re.escape, sorted(NAMES)))})[\"'/.]")
"""Only files with such a text are parsed."""


def named_in(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the literals in which a declared name is a part of a path."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    joined = {id(node.right) for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            parts = set(node.value.removesuffix(".").split("/"))
            if parts & (NAMES - WORDS) or (id(node) in joined and parts & WORDS):
                yield node


def test_no_other_module_has_a_name_of_the_format_as_a_literal() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value!r}"
        for path in FILES
        if path.stem != "run_format" and QUOTED.search(text := path.read_text())
        for node in named_in(ast.parse(text))
    ]
    assert found == []


def test_a_literal_is_found_wherever_it_makes_a_path() -> None:
    text = 'a = folder / "peers" / "summary.json"; b = f"{folder}/log.txt"; c = ["peers"]; d = "see log.txt for more"'
    assert QUOTED.search(text) and {node.value for node in named_in(ast.parse(text))} == {
        "summary.json",
        "peers",
        "/log.txt",
    }


def test_every_name_is_declared_once_with_a_place() -> None:
    declared = [name for name in vars(run_format) if name.isupper()]
    assert len(NAMES) == len(declared)
    assert [name for name in declared if name not in run_format.__annotations__] == []


def test_a_run_leaves_declared_files_alone(tmp_path: Path) -> None:
    content = {"rounds": 2, "topology": {"graph": "ring", "n": 3}, "task": {"kind": "quadratic", "dim": 4}}
    simulate({**content, "track": {"to": ["csv"]}}, out=tmp_path / "run")
    left = {part for path in (tmp_path / "run").rglob("*") for part in PurePosixPath(path.relative_to(tmp_path)).parts}
    assert {"summary.json", "metrics.jsonl", "model", "rounds.csv"} <= left
    assert left - NAMES - {"run"} == set()


KINDS = {
    "gossip": {"topology": {"graph": "ring", "n": 3}},
    "federated": {"coordinator": {"clients": 3}},
    "parallel": {"parallel": {"workers": 2}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_a_summary_is_declared(kind: str, tmp_path: Path) -> None:
    """A key, also of an inner object, that is not declared would be dropped; one of another type is refused."""
    simulate({"rounds": 2, "task": {"kind": "quadratic", "dim": 4}, **KINDS[kind]}, out=tmp_path / "run")
    content = (tmp_path / "run" / run_format.SUMMARY).read_bytes()
    assert msgspec.json.decode(content, type=RunSummary) == json.loads(content)


@pytest.mark.parametrize(
    ("reader", "declared"),
    [
        (reading.Summary, RunSummary),
        (reading.Scores, run_summary.ScoreFacts),
        (reading.BestRound, run_summary.BestFacts),
        (reading.DataSpread, run_summary.DataFacts),
        (reading.PrivacySpent, run_summary.PrivacyFacts),
        (reading.RecordedRefusal, run_summary.RefusalFacts),
    ],
)
def test_what_a_report_reads_of_a_summary_is_declared(reader: type[msgspec.Struct], declared: Any) -> None:
    assert set(reader.__struct_fields__) <= get_type_hints(declared).keys()


@pytest.mark.parametrize(
    ("reader", "written"),
    [
        (participation.ReportedRound, records.NetworkRow),
        (participation.ReportedPeerRound, records.PeerRow),
        (participation.ReportedEvent, records.EventRow),
    ],
)
def test_what_a_report_reads_of_a_record_is_written(
    reader: type[msgspec.Struct], written: type[msgspec.Struct]
) -> None:
    assert set(reader.__struct_fields__) <= set(written.__struct_fields__)


def test_lists_of_runs_read_declared_keys() -> None:
    assert {*heads._KEPT, *runs._KEPT, *runs._OPTIONAL} <= get_type_hints(RunSummary).keys()
