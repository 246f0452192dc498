"""How much smaller estimates of proportional hazards are where times are rounded up to a grid, by rules of ties.

    python benchmarks/cox_ties.py [--draws 10]

1000 records of one site, some 760 events, two columns of coefficients 0.5 and -0.3; beside the estimates of exact
times, by the partial likelihood of times that all differ.  One table alone has the estimates of many sites.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fedgossip.sites.fits.cox.cox_result import CoxFit, attenuation, cox_fit
from fedgossip.sites.fits.cox.cox_steps import fitted_alone
from fedgossip.sites.fits.cox.cox_sums import CoxDesign, CoxLayout, SiteHazards, TimedRecords
from fedgossip.sites.fits.survival.survival_times import places_of

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

ROWS, END, TRUE = 1000, 600.0, np.array([0.5, -0.3])
GRIDS = (100, 60, 30, 12, 5)
"""Points of a grid up to END."""


def drawn(seed: int) -> tuple[Values, Values, Mask]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, len(TRUE)))
    times, gone = rng.exponential(300 * np.exp(-x @ TRUE)), rng.uniform(200, 900, ROWS)
    seen = np.minimum(gone, END)
    return x, np.minimum(times, seen), times <= seen


def exact(x: Values, times: Values, events: Mask) -> Values:
    """Return the estimates of times that all differ, by Newton's steps."""
    order = np.argsort(-times)
    x, events, point = x[order], events[order], np.zeros(x.shape[1])
    for _ in range(8):
        w = np.exp(x @ point)[:, None]
        s0, s1 = w.cumsum(0), (w * x).cumsum(0)
        s2 = (w[:, :, None] * x[:, :, None] * x[:, None, :]).cumsum(0)
        mean = s1 / s0
        spread = s2 / s0[:, :, None] - mean[:, :, None] * mean[:, None, :]
        point = point + np.linalg.solve(spread[events].sum(0), (x - mean)[events].sum(0))
    return point


def on_grid(points: int, ties: str, x: Values, times: Values, events: Mask) -> CoxFit:
    grid = tuple(float(one) for one in END * np.arange(1, points + 1) / points)
    names, none = tuple(f"x{k}" for k in range(len(TRUE))), (0.0,) * len(TRUE)
    layout = CoxLayout(
        CoxDesign(
            ties=ties,
            time="time",
            event="event",
            grid=grid,
            least=10,
            ridge=0.0,
            strata=("",),
            columns=names,
            places=tuple(range(len(TRUE))),
            mean=none,
            deviation=(1.0,) * len(TRUE),
            steps=16,
        )
    )
    columns = [np.ascontiguousarray(column) for column in x.T]
    records = TimedRecords(columns, times, places_of(grid, times), events, np.zeros(len(x), np.int64))
    found = cox_fit(layout, fitted_alone(layout, SiteHazards(layout, records)), 1)
    assert found is not None and found.converged
    return found


def shrunken(count: int) -> Iterator[tuple[int, str, float, float, float]]:
    """Yield points, rule of ties, mean reported times, by which part estimates are smaller, and what the fits state of
    that (of Breslow's ties), over `count` draws."""
    draws = [drawn(seed) for seed in range(count)]
    lengths = [float(np.linalg.norm(exact(*one))) for one in draws]
    for points in GRIDS:
        for ties in ("breslow", "efron"):
            found = [on_grid(points, ties, *one) for one in draws]
            b = [np.array([each.estimate for each in one.coefficients]) for one in found]
            less = [1 - np.linalg.norm(one) / length for one, length in zip(b, lengths, strict=True)]
            stated, times = [attenuation(one) or 0.0 for one in found], [len(one.strata[0].points) for one in found]
            yield points, ties, float(np.mean(times)), float(np.mean(less)), float(np.mean(stated))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=10)
    count = parser.parse_args().draws
    print(f"events {np.mean([drawn(seed)[2].sum() for seed in range(count)]):.0f}")
    print("points of the grid  ties     reported times  estimates smaller by  stated")
    for points, ties, told, less, stated in shrunken(count):
        print(f"{points:18}  {ties:7}  {told:10.0f}  {100 * less:18.1f} %  {100 * stated:4.1f} %", flush=True)


if __name__ == "__main__":
    main()
