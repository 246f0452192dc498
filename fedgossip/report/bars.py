"""What belongs to each peer, as stacked areas: its examples by class, its time by activity."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from fedgossip.report import drawing
from fedgossip.report.drawing import AMBER, BLUE, CLASSES, GREEN, draw, legend_above
from fedgossip.report.numbers import second_unit
from fedgossip.report.reading import Data, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MOST_BARS = 250  # a column of the page has no room for more
MOST_BARS_APART = 80  # with air between them
MOST_CLASSES = 64
HEIGHT = 2.8
ACTIVITIES = (("training", BLUE), ("waiting", AMBER), ("mixing", GREEN))


def data_shares(run: Run, name: str) -> str | None:
    """Return the examples of each peer, by class where classes are known; None where neither is."""
    data = run.summary.data
    if data is None or not (data.shares or data.sizes):
        return None
    if by_class(data):
        counts = np.array(list(zip_longest(*(data.shares or []), fillvalue=0.0)))
    else:
        counts = np.array([data.sizes or [sum(row) for row in data.shares or []]], dtype=np.float64)
    colours = _class_colours(len(counts))
    labels = [str(label) for label in range(len(counts))] if 1 < len(counts) <= len(CLASSES) else []

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        _stack(axes, counts, colours, labels)
        axes.set_ylabel("examples")
        if labels:
            axes.legend(
                loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True, title="class", handlelength=0.9, fontsize=8
            )

    return draw(name, HEIGHT, paint)


def by_class(data: Data) -> bool:
    """Return whether classes are known and few enough to have a colour each."""
    return bool(data.shares) and 1 < max(map(len, data.shares or [])) <= MOST_CLASSES


def time_spent(run: Run, name: str) -> str | None:
    """Return the seconds of each peer by activity; None where no time was recorded."""
    seconds = np.array([[peer.seconds[activity] for peer in run.peers] for activity, _ in ACTIVITIES])
    if not seconds.any():
        return None
    unit, length = second_unit(float(seconds.sum(axis=0).max()))

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        _stack(axes, seconds / length, [colour for _, colour in ACTIVITIES], [activity for activity, _ in ACTIVITIES])
        axes.set_ylabel(f"time ({unit})")
        legend_above(axes)

    return draw(name, HEIGHT, paint)


def _stack(axes: Axes, parts: NDArray[np.float64], colours: list[str], labels: list[str]) -> None:
    """Stack ``parts[kind, peer]``, one path of rectangles for each kind; many peers are drawn as means of a few."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    peers = parts.shape[1]
    group = math.ceil(peers / MOST_BARS)
    starts = np.arange(0, peers, group)
    ends = np.minimum(starts + group, peers)
    means = np.add.reduceat(parts, starts, axis=1) / (ends - starts)
    air = 0.09 if group == 1 and peers <= MOST_BARS_APART else 0.0
    left, right = starts - 0.5 + air, ends - 0.5 - air
    tops = means.cumsum(axis=0)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(starts)
    for kind, top in enumerate(tops):
        bottom = top - means[kind]
        x = np.stack([left, right, right, left, left], axis=1)
        y = np.stack([bottom, bottom, top, top, bottom], axis=1)
        path = Path(np.stack([x, y], axis=2).reshape(-1, 2), codes)
        label = labels[kind] if labels else None
        axes.add_patch(PathPatch(path, facecolor=colours[kind], linewidth=0, label=label))
    axes.set_xlim(-0.6, peers - 0.4)
    axes.set_ylim(0.0, float(tops[-1].max()) * 1.05 or 1.0)
    axes.set_xlabel("peer" if group == 1 else f"peer (each bar is the mean of {group})")
    axes.tick_params(axis="x", length=0)
    drawing.whole_axis(axes)


def _class_colours(classes: int) -> list[str]:
    """Return a colour for each class: unlike hues for a few, dark to light for many."""
    if classes == 1:
        return [BLUE]
    if classes <= len(CLASSES):
        return list(CLASSES[:classes])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["cividis"](place)) for place in np.linspace(0.0, 1.0, classes)]
