"""The figures of a report are enlarged by the page's own script, and are whole without it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from test_board import DRAG
from test_report import learning_run
from test_watch_page import rendered

from fedgossip.report.page.page import write_comparison, write_report


def axes_of(page: str) -> dict[str, dict[str, dict[str, float]]]:
    """What the page's script is told of each figure that it can enlarge."""
    found = re.findall(r'<figure id="([\w-]+)">\s*<svg [^>]*data-axes=\'([^\']*)\'', page)
    return {name: json.loads(html.unescape(told)) for name, told in found}


def test_every_figure_of_curves_tells_where_its_axes_are(tmp_path: Path) -> None:
    folder = learning_run(tmp_path)
    told = axes_of(write_report(folder).read_text())
    assert set(told) == {"score-by-round", "score-by-bytes", "score-by-time", "loss", "consensus"}
    compared = axes_of(write_comparison(tmp_path / "both.html", [folder, folder], "Both").read_text())
    assert len(compared) >= 4
    for axes in (*told.values(), *compared.values()):
        assert axes["frame"]["x"] > 0 and axes["frame"]["x"] + axes["frame"]["width"] <= 72 * 4.7
        assert axes["x"]["low"] < axes["x"]["high"] and axes["y"]["low"] < axes["y"]["high"]


def test_the_axes_are_where_the_figure_has_them(tmp_path: Path) -> None:
    """A curve's points, in the figure's units, are those that follow from the rounds by the axes told."""
    page = write_report(learning_run(tmp_path)).read_text()
    name, axes = next((name, axes) for name, axes in axes_of(page).items() if axes["x"]["high"] > 39)
    figure = page[page.index(f'<figure id="{name}">') :]
    lines = re.findall(r'<path d="M ([\d. \nL]+)"\s+clip-path', figure.split("</figure>")[0])
    x = [float(pair.split()[0]) for pair in max(lines, key=len).split("L")]  # the others are of the grid
    frame, low, high = axes["frame"], axes["x"]["low"], axes["x"]["high"]
    rounds = [low + (at - frame["x"]) / frame["width"] * (high - low) for at in x]
    assert rounds[0] == pytest.approx(round(rounds[0]), abs=0.02)
    assert rounds[-1] == pytest.approx(40, abs=0.02)


def enlarged(folder: Path, tmp_path: Path, drag: bool) -> str:
    page = write_report(folder).read_text()
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    if drag:
        page = page.replace("</body>", f"<script>{DRAG % 'JSON.parse(svg.dataset.axes).frame'}</script></body>")
    (tmp_path / "page.html").write_text(page)
    return rendered((tmp_path / "page.html").as_uri(), tmp_path, 3000)


def lines_of(page: str) -> list[list[tuple[float, float]]]:
    """The curves of the first figure that can be enlarged."""
    figure = page.split("data-axes")[1].partition("</figure>")[0]
    drawn = re.findall(r'<path d="M ([\d. \nL-]+)"\s+clip-path', figure)
    return [[(float(a), float(b)) for a, b in (pair.split() for pair in one.split("L"))] for one in drawn]


@pytest.mark.browser
@pytest.mark.sockets
def test_dragging_over_a_figure_enlarges_what_was_marked_and_renews_the_axes(tmp_path: Path) -> None:
    folder = learning_run(tmp_path)
    whole, half = (enlarged(folder, tmp_path, drag) for drag in (False, True))
    assert 'class="enlarged"' not in whole and half.count('class="enlarged"') == 1
    before, after = max(lines_of(whole), key=len), max(lines_of(half), key=len)
    assert len(before) == len(after) > 10
    assert after[5][0] - after[4][0] == pytest.approx(2 * (before[5][0] - before[4][0]), abs=0.01)
    assert after[5][1] == pytest.approx(before[5][1], abs=0.01)
    marks = re.findall(r"<text [^>]*>([^<]*)</text>", half.split('class="enlarged"')[1].split("</g>")[0])
    rounds = [float(mark) for mark in marks if "%" not in mark]
    assert rounds and min(rounds) >= 8 and max(rounds) <= 32
    assert "Show all" in half
