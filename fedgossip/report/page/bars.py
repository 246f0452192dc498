"""Stacked areas per peer: its examples by class, its time by activity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from fedgossip.report.page import drawing
from fedgossip.report.page.drawing import AMBER, BLUE, CLASSES, EDGE, GREEN, ORANGE, draw, legend_above, rectangles
from fedgossip.report.page.numbers import second_unit
from fedgossip.report.page.reading import DataSpread, PeerTotal, RecordedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MOST_BARS = 250  # a column of the page has no room for more
MOST_BARS_APART = 80  # with space between them
MOST_CLASSES = 64
HEIGHT = 2.8
ACTIVITIES = (("training", BLUE), ("communicating", ORANGE), ("waiting", AMBER), ("mixing", GREEN))
CLIENT_ACTIVITIES = (("training", BLUE), ("communicating", ORANGE), ("waiting", EDGE))


def data_shares(run: RecordedRun, name: str) -> str | None:
    """Return the examples of each peer, by class where classes are known; None where neither is known."""
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
        stack(axes, counts, colours, labels, run.roles.one)
        axes.set_ylabel("examples")
        if labels:
            axes.legend(
                loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True, title="class", handlelength=0.9, fontsize=8
            )

    return draw(name, HEIGHT, paint)


def by_class(data: DataSpread) -> bool:
    """Return whether classes are known and few enough to have a colour each."""
    return bool(data.shares) and 1 < max(map(len, data.shares or [])) <= MOST_CLASSES


def time_spent(run: RecordedRun, name: str) -> str | None:
    """Return the seconds of each peer or client by activity; None where no time was recorded."""
    led = run.summary.led
    activities = CLIENT_ACTIVITIES if led else ACTIVITIES
    each = [time_of(run, peer, led=led) for peer in run.learners]
    seconds = np.array([[one[activity] for one in each] for activity, _ in activities])
    if not seconds.any():
        return None
    unit, length = second_unit(float(seconds.sum(axis=0).max()))

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        labels, colours = zip(*activities, strict=True)
        stack(axes, seconds / length, colours, labels, run.roles.one)
        axes.set_ylabel(f"time ({unit})")
        legend_above(axes)

    return draw(name, HEIGHT, paint)


def time_of(run: RecordedRun, peer: PeerTotal, *, led: bool) -> dict[str, float]:
    """Return the seconds of one peer by activity, in a run that is `led` by a coordinator or not.

    A client's rows end with its training: it spent the rest of the run waiting, for its turn or for others, but for
    the time in which it was dead.
    """
    if not led:
        return peer.seconds
    training, communicating = peer.seconds["training"], peer.seconds["communicating"]
    waiting = max(0.0, (run.summary.seconds or 0.0) - training - communicating - peer.away)
    return {"training": training, "communicating": communicating, "waiting": waiting if training else 0.0}


def stack(axes: Axes, parts: NDArray[np.float64], colours: Sequence[str], labels: Sequence[str], who: str) -> None:
    """Stack ``parts[kind, who]``, one path of rectangles for each kind; many are drawn as means of a few."""
    from matplotlib.patches import PathPatch

    members = parts.shape[1]
    group = math.ceil(members / MOST_BARS)
    starts = np.arange(0, members, group)
    ends = np.minimum(starts + group, members)
    means = np.add.reduceat(parts, starts, axis=1) / (ends - starts)
    air = 0.09 if group == 1 and members <= MOST_BARS_APART else 0.0
    tops = means.cumsum(axis=0)
    for kind, top in enumerate(tops):
        path = rectangles(starts - 0.5 + air, ends - 0.5 - air, top - means[kind], top)
        label = labels[kind] if labels else None
        axes.add_patch(PathPatch(path, facecolor=colours[kind], linewidth=0, label=label))
    axes.set_xlim(-0.6, members - 0.4)
    axes.set_ylim(0.0, float(tops[-1].max()) * 1.05 or 1.0)
    axes.set_xlabel(who if group == 1 else f"{who} (each bar is the mean of {group})")
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
