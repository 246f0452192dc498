"""The picture of the README, docs/demo.svg: what the peers of `fedgossip demo` learned on each graph.

python tests/picture.py FOLDER --write        draw it again, of the folder that a demo has left
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedgossip.report.page import drawing
from fedgossip.report.page.figures import SCORES
from fedgossip.report.page.graphs import draw_small
from fedgossip.report.page.reading import RecordedRun, read_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = Path(__file__).parents[1] / "docs" / "demo.svg"
WIDTH, HEIGHT = 9.6, 3.7  # inches
MARKERS = ("o", "D", "v")


def picture(folder: Path) -> str:
    """Return the SVG of a demo: its graphs in a row, below each the accuracy of its peers."""
    runs = [read_run(place) for place in sorted((folder / "simulated").iterdir())]
    runs.sort(key=lambda run: -(run.summary.score.mean_peer or 0))

    def paint(figure: Figure) -> None:
        axes = figure.subplots(2, len(runs), height_ratios=(1, 2.3), sharey="row")
        for above, below, run in zip(*axes, runs, strict=True):
            if run.summary.topology:
                draw_small(above, run.summary.topology, strength=0.3)
            _scores(below, run)
        drawing.percent_axis(axes[1, 0])
        axes[1, 0].set_ylabel("test accuracy")
        axes[1, 0].set_ylim(0, 1)
        figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SCORES))

    svg = drawing.draw("demo", HEIGHT, paint, width=WIDTH)
    page = svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"', 1)
    return re.sub(r"(<svg[^>]*>)", r'\1<rect width="100%" height="100%" fill="white"/>', page, count=1) + "\n"


def _scores(axes: Axes, run: RecordedRun) -> None:
    score = run.summary.score
    values = [score.averaged or 0.0, score.mean_peer or 0.0, score.worst_peer or 0.0]
    axes.plot([0, 0], [min(values), max(values)], color=drawing.LINE, linewidth=3, solid_capstyle="round")
    for value, (_, label, colour, _), marker in zip(values, SCORES, MARKERS, strict=True):
        axes.plot([0], [value], marker, color=colour, label=label, markersize=6)
    axes.set_xlim(-1, 1)
    axes.set_xticks([0], [run.name.replace(" ", "\n", 1)])
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)


def main(words: list[str]) -> int:
    """Draw it; without --write print it."""
    drawn = picture(Path(words[0]))
    if "--write" in words:
        PICTURE.write_text(drawn)
    else:
        print(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
