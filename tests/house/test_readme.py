"""The README invites: it is short, and every command, file and snippet that it shows really works, in its order."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pages import README, ROOT, Reader, blocks
from picture import PICTURE

from fedgossip.cli.run.demo import GRAPHS

TEXT = README.read_text()


@pytest.mark.sockets
@pytest.mark.anywhere
@pytest.mark.timeout(600)  # it bounds a hang of many commands
def test_everything_that_the_readme_shows_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_compiler: None
) -> None:
    monkeypatch.chdir(tmp_path)
    Reader(tmp_path).read(README)
    runs = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/summary.json")]
    first = {run["driver"]: run["digest"] for run in runs if run["name"] == "first" and run.get("graph") == "ring"}
    assert first["sim"] == first["local"]
    loops = [
        (run["driver"], run["digest"]) for run in runs if run["name"] == "train"
    ]  # own-loop/train.py too, simulated
    (real,) = (digest for driver, digest in loops if driver == "local")
    assert ("sim", real) in loops


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len(TEXT.splitlines()) <= 200


def test_only_blocks_with_a_reason_are_left_out() -> None:
    left_out = [block for block in blocks(README) if block.left_out]
    assert [block.text.split()[:2] for block in left_out] == [["make", "demo"], ["fedgossip", "host"]]
    assert all(len(block.note) > len("skip: because") for block in left_out)
    assert {block.kind for block in blocks(README)} == {"sh", "python", "toml", "text"}


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", TEXT)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_picture_is_a_small_one_of_the_demos_graphs() -> None:
    assert f"]({PICTURE.relative_to(ROOT)})" in TEXT
    assert PICTURE.stat().st_size < 150_000
    words = " ".join("".join(ElementTree.parse(PICTURE).getroot().itertext()).split())
    assert [title for title, _ in GRAPHS if title.split()[-1] not in words] == []


def test_the_picture_is_made_by_a_command() -> None:
    assert "tests/picture.py runs/picture --write" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("word", ["revolutionary", "blazing", "seamless", "powerful", "cutting-edge", "effortless"])
def test_the_readme_describes_and_does_not_praise(word: str) -> None:
    assert word not in TEXT.lower()
