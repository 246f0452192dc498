"""An attacker's program: it reads what is published of tables, and finds every count that this allows.

It shares no line with `fedgossip.data.agreed.suppression`: unknown counts are unknown whole numbers, what is published
are equations and bounds, and all their solutions are enumerated where they are few; else whole-number programmes ask
for the least and the greatest of each unknown (HiGHS).  A count is found where all solutions agree on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from fedgossip.data.agreed.agreed_table import AgreedColumn, AgreedTable

MOST = 1500
"""Maximum number of solutions that are enumerated."""
MISSING = -1
"""The cell of the empty cells."""


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield each way to write a total as so many numbers of 1 or more, in order."""
    for cuts in itertools.combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, total)))


def found_in(table: AgreedTable) -> list[tuple[str, str, int]]:
    """Return (column, what, count) of each count below `suppress` that the file tells or allows to compute."""
    found = []
    for column in table.columns:
        for what, count in _of_column(column, table.records):
            if 0 < count < table.suppress:
                found.append((column.name, what, count))
    return found


def _of_column(column: AgreedColumn, records: int) -> Iterator[tuple[str, int]]:
    told = dict(enumerate(column.counts)) | {MISSING: column.missing}
    if column.counts:
        yield from ((f"cell {k} as it stands", count) for k, count in told.items() if count is not None)
    elif column.missing is not None:
        yield "empty cells as they stand", column.missing
    unknown = [k for k, count in told.items() if count is None]
    if column.missing is None:
        yield "empty cells by subtraction", records - column.count
    if not column.counts or not unknown:
        return
    total = records - sum(count for count in told.values() if count is not None)
    yield "all that is hidden", total
    if total < len(unknown) or math.comb(total - 1, len(unknown) - 1) > MOST:
        return
    apart = {column.categories.index(name) for name in column.uncounted}
    solutions = [
        one for one in compositions(total, len(unknown)) if _fits(column, records, dict(zip(unknown, one, strict=True)))
    ]
    assert solutions, f"{column.name}: what is published is of no table"
    for size in (1, 2):
        for places in itertools.combinations(range(len(unknown)), size):
            values = {sum(one[k] for k in places) for one in solutions}
            if len(values) == 1 and not apart & {unknown[k] for k in places}:
                yield f"cells {[unknown[k] for k in places]} by {len(solutions)} solutions", values.pop()


def _fits(column: AgreedColumn, records: int, unknown: Mapping[int, int]) -> bool:
    """Return whether whole numbers with these counts can have the mean and the deviation that are published."""
    if column.categories or column.common or column.mean is None or column.deviation is None:
        return True
    n = records - (unknown.get(MISSING, 0) if column.missing is None else column.missing)
    counts = [unknown.get(k, count) or 0 for k, count in enumerate(column.counts)]
    sums = sums_of(column, n)
    low, high = whole_ends(column)
    if sums is None or any(count and a > b for count, a, b in zip(counts, low, high, strict=True)):
        return False
    (first, last), (least, most) = sums
    lows, highs = (sum(c * v for c, v in zip(counts, ends, strict=True)) for ends in (low, high))
    if lows > last or highs < first:
        return False
    ends = list(zip(counts, low, high, strict=True))
    low2 = sum(c * (0 if a <= 0 <= b else min(a * a, b * b)) for c, a, b in ends)
    high2 = sum(c * max(a * a, b * b) for c, a, b in ends)
    return low2 <= most and high2 >= least


def sums_of(column: AgreedColumn, n: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return between which whole numbers the sum and the sum of squares of n whole numbers lie; None: n cannot be."""
    mean, deviation = float(column.mean or 0), float(column.deviation or 0)
    if not column.precision:
        total, squares = round(n * mean), round(n * (deviation**2 + mean**2))
        if abs(total / n - mean) > 1e-12 * (1 + abs(mean)):
            return None
        return (total, total), (squares, squares)
    half = 2.0 ** (math.frexp(deviation / column.precision)[1]) / 2  # the coarsest step that it can have been
    first, last = n * (mean - half), n * (mean + half)
    near = max(0.0, abs(mean) - half)
    least = n * (max(0.0, deviation - half) ** 2 + near**2)
    most = n * ((deviation + half) ** 2 + (abs(mean) + half) ** 2)
    return (math.ceil(first), math.floor(last)), (math.floor(least), math.ceil(most))


def whole_ends(column: AgreedColumn, beyond: int = 1000) -> tuple[list[int], list[int]]:
    """Return the least and the greatest whole number of each bin, of those outside too."""
    edges = list(column.edges)
    inner = [math.ceil(one) for one in edges]
    low = [inner[0] - beyond, *inner[:-1], math.floor(edges[-1]) + 1]
    high = [inner[0] - 1, *(one - 1 for one in inner[1:-1]), math.floor(edges[-1]), inner[-1] + beyond]
    return low, high


def bounds_by_programme(column: AgreedColumn, records: int, wanted: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the least and the greatest count of each wanted bin, of a column of whole numbers without empty cells.

    One unknown for each whole number of each bin that is not empty; a bin's count, all of them, their sum and the sum
    of their squares are what is published.  Bins whose programme does not end are left out.
    """
    low, high = whole_ends(column, 12)
    places = [(k, value) for k, count in enumerate(column.counts) if count != 0 for value in range(low[k], high[k] + 1)]
    sums = sums_of(column, records)
    assert sums is not None
    cell, value = np.array([k for k, _ in places]), np.array([v for _, v in places], float)
    rows: list[Any] = [np.ones(len(places)), value, value**2]
    lower, upper = [float(records), *map(float, (sums[0][0], sums[1][0]))], [
        float(records), *map(float, (sums[0][1], sums[1][1]))]  # fmt: skip
    for k, count in enumerate(column.counts):
        if count != 0:
            rows.append((cell == k).astype(float))
            lower.append(1.0 if count is None else float(count))
            upper.append(float(records) if count is None else float(count))
    constraints = LinearConstraint(np.array(rows), lower, upper)
    found = {}
    for k in wanted:
        ends = []
        for sign in (1, -1):
            result = milp(
                sign * (cell == k), constraints=constraints, integrality=np.ones(len(places)),
                bounds=Bounds(0, records), options={"time_limit": 5.0},
            )  # fmt: skip
            if result.status != 0:
                break
            ends.append(round(sign * result.fun))
        if len(ends) == 2:
            found[k] = ends[0], ends[1]
    return found


def logistic_of_codes(records: Any, sums: Any) -> tuple[Any, Any]:
    """Return estimates and errors [k, 3] of logistic models of two codes, by what these follow from.

    `records` [k, 4]: with neither code, the first, the second, both; `sums` [k, 3]: positives, and those of each code.
    """
    x = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1]], float)
    point = np.zeros((len(records), 3))
    for _ in range(12):
        p = 1 / (1 + np.exp(-point @ x.T))
        information = np.einsum("kc,ci,cj->kij", records * p * (1 - p), x, x) + 1e-12 * np.eye(3)
        step = np.linalg.solve(information, (sums - (records * p) @ x)[..., None])[..., 0]
        point = point + np.clip(step, -2, 2)
    return point, np.sqrt(np.diagonal(np.linalg.inv(information), axis1=1, axis2=2))


# --- trees ------------------------------------------------------------------------------------------------------------


def cells_of_trees(
    model: Mapping[str, Any],
    fit: Mapping[str, Any],
    told: Sequence[Sequence[int | None]],
    positives: int,
    asked: Collection[tuple[int, ...]],
) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """Yield (cell, least, greatest) of the records of asked cells between the cuts of all columns of logistic trees.

    `model`, `fit`: trees.json and trees-fit.json; `told`: the histogram of each column, as agreed.  Unknown are the
    records and positives of each cell; margins of a cell before each tree are known, so all that is published bounds a
    sum over cells.  More is given than is published: the step to which each value was rounded.
    """
    design = fit["design"]
    rate, l2, least = design["learning_rate"], design["l2"], design["suppress"]
    cells = list(itertools.product(*(range(len(cuts) + 1) for cuts in design["cuts"])))
    rows, low, high = list[Any](), list[float](), list[float]()

    def add(of_records: Any, of_positives: Any, at_least: float, at_most: float) -> None:
        rows.append(np.concatenate([of_records, of_positives]))
        low.append(at_least)
        high.append(at_most)

    every, none = np.ones(len(cells)), np.zeros(len(cells))
    add(every, none, fit["records"], fit["records"])
    add(none, every, positives, positives)
    for k, cell in enumerate(cells):
        only = np.eye(len(cells))[k]
        add(only, -only, 0, np.inf)
        assert len(cell) == len(told)
    for column, counts in enumerate(told):
        for place, count in enumerate(counts):
            inside = np.array([float(cell[column] == place) for cell in cells])
            add(inside, none, count or 0, fit["records"] if count is None else count)
    margins = np.full(len(cells), model["base"][0])
    for tree, loss in zip(model["trees"], fit["losses"], strict=True):
        share = 1 / (1 + np.exp(-margins))
        within = 1.01 * 2.0 ** math.floor(math.log2(least / fit["records"])) * fit["records"]
        added, all_loss = none, loss * fit["records"]
        add(np.logaddexp(0, margins), -margins, all_loss - within, all_loss + within)
        for node, inside in nodes_of(tree["root"], design, cells, every > 0):
            if node.get("records") is not None:
                add(1.0 * inside, none, node["records"], node["records"])
            add(1.0 * inside, none, design["min_records"], np.inf)
            if node.get("value") is None:
                continue
            h = inside * share * (1 - share)
            step = node["step"]
            add(h, none, rate * least / step - l2 - 1e-6, 2 * rate * least / step - l2 + 1e-6)
            for sign in (1, -1):  # sign (rate G + value (H + l2)) <= step / 2 (H + l2)
                of_h = sign * node["value"] - step / 2
                add(sign * rate * inside * share + of_h * h, -sign * rate * inside, -np.inf, 1e-6 - of_h * l2)
            added = added + inside * node["value"]
        margins = margins + added
    constraint = LinearConstraint(np.array(rows), np.array(low), np.array(high))
    for cell in asked:
        found = []
        for sign in (1, -1):
            aim = np.concatenate([sign * np.eye(len(cells))[cells.index(cell)], none])
            solved = milp(
                aim, constraints=constraint, integrality=np.ones(2 * len(cells)), bounds=Bounds(0, fit["records"]),
                options={"mip_rel_gap": 0.0},
            )  # fmt: skip
            assert solved.status == 0, solved.message
            found.append(sign * solved.fun)
        yield cell, round(found[0]), round(found[1])


def nodes_of(
    node: dict[str, Any], design: Mapping[str, Any], cells: Any, inside: Any
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield each node below one, and which of the cells that are `inside` come there."""
    yield node, inside
    if "yes" in node:
        column = design["columns"].index(node["column"])
        place = design["cuts"][column].index(node["below"])
        left = np.array([cell[column] <= place for cell in cells])
        yield from nodes_of(node["yes"], design, cells, inside & left)
        yield from nodes_of(node["no"], design, cells, inside & ~left)
