"""The site of docs/: the menu has every page; where what builds it is installed, it is built, and asks nobody else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE = {"index.md", "api.md"}
"""Pages that are made: the README, and the Python interface."""


def test_the_menu_has_every_page_once() -> None:
    menu = re.findall(r"^ +- [^:]+: ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(menu) == sorted(MADE | pages)


def test_no_page_has_a_link_by_reference() -> None:
    """A signature such as HOST[:PORT][/PATH] reads as one, and ends the strict build; of code it is none."""
    code = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if "][" in code.sub("", page.read_text())] == []


def built(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.sockets
def test_it_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    said = built(ROOT, tmp_path / "site")
    assert said.returncode == 0, said.stderr
    pages = {path.name: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "api.html", "reference.html"} <= pages.keys()
    for name, text in pages.items():
        fetched = re.findall(r'<(?:script|img|iframe)[^>]*src="(https?:)?//[^"]*"|<link[^>]*href="(?:https?:)?//', text)
        assert fetched == [], name
    assert "JoinedLoop" in pages["api.html"] and "demo.svg" in pages["index.html"]


@pytest.mark.sockets
def test_a_dead_link_and_a_page_outside_the_menu_fail_it(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    for name in ("docs", "fedgossip"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path)
    links = "[dead](nowhere.md), [dead](together/graphs.md#no-such-part)"
    (tmp_path / "docs" / "outside.md").write_text(f"# Outside\n\n{links}\n")
    said = built(tmp_path, tmp_path / "site")
    assert said.returncode != 0
    assert all(word in said.stderr for word in ("outside.md", "nowhere.md", "no-such-part"))
