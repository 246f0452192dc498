"""One way to make a figure: fixed style in, the text of one SVG out, the same bytes every time.

Colours are written into the SVG, ready for a paper; the dark page's style sheet replaces the few in `DARK`.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import pathlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgossip.base import owner_files
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.untrusted_text import printable
from fedgossip.report.page.numbers import second_unit
from fedgossip.report.page.reading import DataSpread, PeerTotal, RecordedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path
    from numpy.typing import NDArray

    Places = NDArray[np.floating[Any]]


INK, QUIET, EDGE, LINE, PALE = "#1f2430", "#5b6472", "#aeb6c1", "#c9ced6", "#e9ecf0"
# Okabe and Ito, Color universal design (2008): distinct under every common colour blindness; without the yellow
BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER, QUIET, INK)
# Paul Tol's "muted" (2018): ten classes, safe as neighbouring areas
CLASSES = (
    "#332288", "#88ccee", "#44aa99", "#117733", "#999933", "#ddcc77", "#cc6677", "#882255", "#aa4499", "#bbbbbb",
)  # fmt: skip
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 2, 1.2, 2)))
MARKERS = "osD^vP*X"
DARK = {
    INK: "#e6e9ef",
    QUIET: "#a3adbb",
    LINE: "#444c5a",
    PALE: "#2a303b",
    EDGE: "#5d6775",
    BLUE: "#4596e6",
    SKY: "#a3dafa",
    ORANGE: "#ff8b4a",
    GREEN: "#35c79b",
    "#332288": "#7a6fe0",
    "#117733": "#3aa35c",
    "#882255": "#c2558a",
}
WIDTH = 4.7  # inches: one column of the page, one column and a little of a paper

NARROW = 4.0
"""Width in inches below which letters are smaller, as in one column of a paper."""

# Any: settings have separate types, and other versions of matplotlib have other settings
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and edited
    "svg.hashsalt": "fedgossip",
    "font.family": ["DejaVu Sans"],  # the widest usual font: text that fits in it fits in the reader's
    "font.size": 9.0,
    "text.parse_math": False,  # a label with two dollars is a label, not a formula
    "text.color": INK,
    "axes.labelcolor": QUIET,
    "axes.labelsize": 9.0,
    "axes.edgecolor": LINE,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.formatter.useoffset": False,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": QUIET,
    "ytick.labelcolor": QUIET,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.size": 3,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 2.2,
}


def series_style(at: int) -> tuple[str, Any, str]:
    """Return the colour, the dash and the mark of series number `at`: dash and mark differ when colours repeat."""
    turn = at + at // len(SERIES)
    return SERIES[at % len(SERIES)], DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)]


@dataclass(frozen=True)
class Drawing:
    """A figure before the choice of a format."""

    height: float
    """In inches, like `width`."""
    paint: Callable[[Figure], None]
    width: float = WIDTH
    numbers: Sequence[Mapping[str, Any]] = ()
    """All its numbers, one row each, with the same keys in all rows."""


def draw(name: str, height: float, paint: Callable[[Figure], None], width: float = WIDTH) -> str:
    """Return the SVG of a figure of `width` x `height` inches drawn by `paint`; `name`, of any letters, makes its ids
    unique.
    """
    with _painted(height, paint, width) as figure:
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg")
        axes = next((json.dumps(_axes(one)) for one in figure.axes if one.get_gid() == ZOOMABLE), None)
    svg = _inline(printable(buffer.getvalue(), keep="\n"), name)
    return svg if axes is None else svg.replace("<svg ", f"<svg data-axes='{axes}' ", 1)


FORMATS: Mapping[str, Mapping[str, Any]] = {
    ".pdf": {"metadata": {"CreationDate": None}},
    ".png": {"dpi": 200, "facecolor": "white", "metadata": {"Software": None}},
    ".svg": {"metadata": {"Date": None}},
}
"""Settings for each file format: without the time of creation."""


def save(place: pathlib.Path, drawing: Drawing) -> None:
    """Write a figure as PDF, PNG or SVG, by the suffix of `place`.  Raises ConfigError for another, OSError."""
    kind = place.suffix.lower()
    if kind not in FORMATS:
        raise ConfigError(f"{place}: no figure is written as {kind or 'a file without ending'}", nearest(kind, FORMATS))
    with _painted(drawing.height, drawing.paint, drawing.width) as figure:
        content = io.BytesIO()
        figure.savefig(content, format=kind[1:], **FORMATS[kind])
    owner_files.placed(place, content.getvalue())


@contextlib.contextmanager
def _painted(height: float, paint: Callable[[Figure], None], width: float) -> Iterator[Figure]:
    """Paint a figure in the house's style until it is saved."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        # a label may contain characters missing in the measuring font; the reader's browser draws the text
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="constrained_layout not applied")  # by a label as long as the page
        matplotlib.rcdefaults()  # not the reader's matplotlibrc: the same run gives the same page everywhere
        matplotlib.rcParams.update({**STYLE, "pdf.fonttype": 42})  # letters stay letters, as journals ask
        if width < NARROW:
            sizes: Any = {size: 0.8 * STYLE[size] for size in ("font.size", "axes.labelsize", "legend.fontsize")}
            matplotlib.rcParams.update(sizes)
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        yield figure


ZOOMABLE = "zoomable"


def zoomable(axes: Axes) -> None:
    """Let the page's script enlarge this plot: lines and areas, over linear or logarithmic axes."""
    axes.set_gid(ZOOMABLE)


def _axes(axes: Axes) -> dict[str, Any]:
    figure = axes.get_figure(root=True)
    assert figure is not None
    width, height = (72 * inches for inches in figure.get_size_inches())
    box = axes.get_position()
    frame = {"x": box.x0 * width, "y": (1 - box.y1) * height, "width": box.width * width, "height": box.height * height}
    sides = {"x": (axes.get_xlim(), axes.get_xscale()), "y": (axes.get_ylim(), axes.get_yscale())}
    content: dict[str, Any] = {"frame": {key: round(float(value), 3) for key, value in frame.items()}}
    for name, ((low, high), scale) in sides.items():
        content[name] = {"low": float(low), "high": float(high), "log": scale == "log", "percent": False}
    content["y"]["percent"] = axes.yaxis.get_gid() == PERCENT
    return content


PERCENT = "percent"


def _inline(svg: str, name: str) -> str:
    """Return `svg` for a page: no prologue, no metadata, unique ids."""
    svg, name = svg[svg.index("<svg") :], re.sub(r"[^\w-]", "-", name, flags=re.ASCII)
    svg = re.sub(
        r'id="(?:matplotlib\.axis_([12])|percent)"', lambda m: f'data-axis="{"y" if m[1] != "1" else "x"}"', svg
    )
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("'DejaVu Sans'", "'DejaVu Sans', sans-serif")
    used = set(re.findall(r'#([\w.-]+)[")]', svg))
    svg = re.sub(r'\sid="([\w.-]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{name}-", svg)
    return re.sub(r"\s*\n\s*", "\n", svg).strip()


def rectangles(left: Places, right: Places, bottom: Places, top: Places) -> Path:
    """Return one path for many rectangles: few bytes, and one colour."""
    from matplotlib.path import Path

    x = np.stack([left, right, right, left, left], axis=1)
    y = np.stack([bottom, bottom, top, top, bottom], axis=1)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(x)
    return Path(np.stack([x, y], axis=2).reshape(-1, 2), codes)


def legend_above(axes: Axes, columns: int = 3) -> None:
    """Place the legend above the plot, so that it hides no data; none if no curve has a label."""
    if not axes.get_legend_handles_labels()[0]:
        return
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        columnspacing=1.4,
        handletextpad=0.6,
    )


def legend_outside(figure: Figure, labels: Sequence[str], width: float) -> None:
    """Place one legend of the labelled curves of all axes above them; curves with one label have one entry."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        found |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    shown = [label for label in labels if label in found]
    columns = legend_columns(shown, width)
    figure.legend([found[one] for one in shown], shown, loc="outside upper left", ncols=columns, columnspacing=1.4)


def legend_columns(labels: Sequence[str], width: float) -> int:
    """Return the number of columns for the labels in about `width` inches."""
    letter = 0.06 if width >= NARROW else 0.05
    return max(1, min(len(labels), int(width / (0.55 + letter * max(map(len, labels), default=0)))))


def percent_axis(axes: Axes) -> None:
    """Label the y axis in percent; its values are shares of one."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g} %"))
    axes.yaxis.set_gid(PERCENT)


def set_whole_axis(axes: Axes, most: int = 7) -> None:
    """Keep fractions of rounds or peers off the x axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(most, integer=True))


def log_axis(axes: Axes, which: str = "y") -> None:
    """Make the y or x axis logarithmic, with plain labels: decades, and 2 and 5 if these are few.

    Call it after the curves are drawn.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    from fedgossip.report.page.numbers import power_of_ten

    (axes.set_yscale if which == "y" else axes.set_xscale)("log")
    low, high = axes.get_ylim() if which == "y" else axes.get_xlim()
    axis = axes.yaxis if which == "y" else axes.xaxis
    few = high / low < (200 if which == "y" else 20)  # labels side by side need more room
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
    axis.set_minor_formatter(NullFormatter())


MOST_BARS = 250  # a column of the page has no room for more
MOST_BARS_APART = 80  # with space between them
MOST_CLASSES = 64
HEIGHT = 2.8
ACTIVITIES = (("training", BLUE), ("communicating", ORANGE), ("waiting", AMBER), ("mixing", GREEN))
CLIENT_ACTIVITIES = (("training", BLUE), ("communicating", ORANGE), ("waiting", EDGE))


def data_shares(run: RecordedRun, name: str) -> str | None:
    """Return the examples of each peer, by class if known; None if the examples are unknown."""
    data = run.summary.data
    if data is None or not (data.shares or data.sizes):
        return None
    if has_few_classes(data):
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


def has_few_classes(data: DataSpread) -> bool:
    """Return whether classes are known, and few enough for one colour each."""
    return bool(data.shares) and 1 < max(map(len, data.shares or [])) <= MOST_CLASSES


def time_spent(run: RecordedRun, name: str) -> str | None:
    """Return the seconds of each peer or client by activity; None if no time was recorded."""
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
    """Return the seconds of one peer by activity, in a run `led` by a coordinator or not.

    A client's rows end with its training: it waited for the rest of the time, except while dead.
    """
    if not led:
        return peer.seconds
    training, communicating = peer.seconds["training"], peer.seconds["communicating"]
    waiting = max(0.0, (run.summary.seconds or 0.0) - training - communicating - peer.away)
    return {"training": training, "communicating": communicating, "waiting": waiting if training else 0.0}


def stack(axes: Axes, parts: NDArray[np.float64], colours: Sequence[str], labels: Sequence[str], who: str) -> None:
    """Stack ``parts[kind, who]``, one path of rectangles for each kind; many participants are drawn as means of
    a few.
    """
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
    set_whole_axis(axes)


def _class_colours(classes: int) -> list[str]:
    """Return a colour for each class: hues for a few, dark to light for many."""
    if classes == 1:
        return [BLUE]
    if classes <= len(CLASSES):
        return list(CLASSES[:classes])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["cividis"](place)) for place in np.linspace(0.0, 1.0, classes)]
