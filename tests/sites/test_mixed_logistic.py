"""`mixed-logistic`: a logistic model with a random intercept of each site, beside all records in one place."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from commands import typed
from fit_sites import own_tables, total

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.core.task import Job
from fedgossip.data.columns.declarations import EncodedColumn, TableEncoding
from fedgossip.sites.fits.families.family import (
    FamilyDesign,
    FamilyFit,
    FamilyLayout,
    FamilyTask,
    SiteSample,
    upper,
)
from fedgossip.sites.fits.families.mixed_logistic import (
    LAST_SHARE,
    LEAST,
    SHARE,
    SPREAD,
    STAGES,
    STEPS,
    WHOLE,
    WIDEST,
    MixedLogistic,
    MixedSearch,
    marginal,
)
from fedgossip.sites.plans.fits import FAMILIES

SITES = 9
QUERY = "label=ill"
Tables = list[tuple[np.ndarray, np.ndarray]]


def write(folder: Path, tables: Tables, names: Sequence[str]) -> Path:
    """Write an experiment, the tables x [m, p], y [m] of sites, and the first as the common one."""
    for name, (x, y) in [*((f"site-{k}", one) for k, one in enumerate(tables)), ("test", tables[0])]:
        rows = [
            ",".join([*(f"{value:.6g}" for value in row), "yes" if ill else "no"])
            for row, ill in zip(x, y > 0.5, strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join([",".join([*names, "ill"]), *rows]) + "\n")
    text = own_tables("ill", QUERY, source="mixed-logistic").replace("clients = 5", f"clients = {len(tables)}")
    (folder / "ill.toml").write_text(text)
    assert (said := typed(["data", "agree", "ill.toml"], folder)).code == 0, said
    return folder


def hospitals(deviation: float, seed: int = 0) -> Tables:
    """Draw uneven sites; at the last one nobody is ill, if they differ."""
    rng, found = np.random.default_rng(seed), []
    for site in range(SITES):
        m = int(rng.integers(30, 150))
        x = np.round(np.column_stack([rng.normal(60, 12, m), rng.normal(27, 4, m)]), 3)
        eta = 0.06 * (x[:, 0] - 60) - 0.1 * (x[:, 1] - 27) - 0.4 + deviation * rng.normal()
        y = (rng.random(m) < 1 / (1 + np.exp(-eta))).astype(float)
        found.append((x, y * 0 if deviation and site == SITES - 1 else y))
    return found


def tumours() -> Tables:
    """Return scikit-learn's breast cancer table, cut into nine uneven sites in the order of its file."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    x = np.array([[float(f"{value:.6g}") for value in row] for row in data.data[:, [1, 4, 8]]])
    ends = [0, 40, 90, 150, 220, 300, 390, 460, 520, 569]
    return [(x[a:b], data.target[a:b].astype(float)) for a, b in itertools.pairwise(ends)]


def pooled(tables: Tables, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return b and s of all tables, their errors, and the log likelihood, by scipy's adaptive quadrature and roots."""
    from scipy import integrate, optimize, special

    every = np.concatenate([x for x, _ in tables])
    mean, deviation = every.mean(0), every.std(0)
    scaled = [(np.column_stack([np.ones(len(x)), (x - mean) / deviation]), y) for x, y in tables]
    turned = np.diag(np.concatenate([[1.0], 1 / deviation, [1.0]]))
    turned[0, 1:-1] = -mean / deviation

    def integrals(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Return the likelihood of a site, and its derivatives by b and s, over that at z = 0."""
        none = float(y @ (x @ at[:-1]) - np.logaddexp(0, x @ at[:-1]).sum())

        def inside(z: float) -> np.ndarray:
            eta = x @ at[:-1] + at[-1] * z
            here = math.exp(float(y @ eta - np.logaddexp(0, eta).sum()) - none - z * z / 2) / math.sqrt(2 * math.pi)
            residuals = y - special.expit(eta)
            return here * np.concatenate([[1.0], x.T @ residuals, [z * residuals.sum()]])

        found, _ = integrate.quad_vec(inside, -12, 12, epsabs=0, epsrel=1e-12, limit=400)
        return np.concatenate([found, [none]])

    def gradient(at: np.ndarray) -> np.ndarray:
        each = [integrals(x, y, at) for x, y in scaled]
        return np.asarray(sum(one[1:-1] / one[0] for one in each))

    start = np.linalg.solve(turned, begin)
    found = optimize.root(gradient, start + 0.01, tol=1e-12).x
    step = np.eye(len(found)) * 1e-5
    slopes = np.array([(gradient(found + one) - gradient(found - one)) / 2e-5 for one in step])
    spread = np.linalg.inv(-(slopes + slopes.T) / 2)
    likelihood = sum(math.log(one[0]) + one[-1] for one in (integrals(x, y, found) for x, y in scaled))
    return turned @ found, np.sqrt(np.diag(turned @ spread @ turned.T)), likelihood


def fitted(folder: Path, *more: str) -> FamilyFit:
    said = typed(["fit", "ill.toml", *more], folder)
    assert said.code == 0, said
    return msgspec.json.decode((folder / "fits/ill/tables.json").read_bytes(), type=FamilyFit)


@pytest.fixture(scope="module")
def different(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("different"), hospitals(0.9), ("age", "bmi"))


@pytest.mark.parametrize("which", ["hospitals", "tumours"])
def test_a_random_intercept_of_sites_is_that_of_all_records_in_one_place(
    which: str, different: Path, tmp_path: Path
) -> None:
    """To 1e-3 of an error, and errors to their two digits; of the hospitals one has a single outcome."""
    folder = different if which == "hospitals" else write(tmp_path, tumours(), ("texture", "smooth", "symmetry"))
    found = fitted(folder)
    ours = np.array([*found.column(0, "estimate"), found.tables[1].rows[0][1]], float)
    assert ours[-1] > 0.3
    estimates, errors, likelihood = pooled(hospitals(0.9) if which == "hospitals" else tumours(), ours)
    assert np.abs((ours - estimates) / errors).max() < 1e-3, (ours, estimates, errors)
    assert np.array(found.column(0, "std. error"), float) == pytest.approx(errors[:-1], rel=0.055)
    _, s, low, high = found.tables[1].rows[0]
    assert (low, high) == pytest.approx((max(0, s - 1.96 * errors[-1]), s + 1.96 * errors[-1]), rel=0.03)
    told = re.match(r"log likelihood (\S+):", found.remarks[1])
    assert told and float(told[1]) == pytest.approx(likelihood, abs=len(tumours()))
    share = {row[0]: row[1] for row in found.tables[1].rows}
    assert share["median odds ratio"] == pytest.approx(math.exp(math.sqrt(2 * s * s) * 0.67449), rel=1e-5)
    assert share["share of the variance"] == pytest.approx(s * s / (s * s + math.pi**2 / 3), rel=1e-9)


def test_sites_that_do_not_differ_are_at_the_bound(tmp_path: Path) -> None:
    """Then estimates are those of glm:logistic, and it is stated."""
    folder = write(tmp_path, hospitals(0.0, seed=1), ("age", "bmi"))
    found = fitted(folder)
    assert found.tables[1].rows[0] == ("std. deviation", 0.0, None, None)
    assert "the deviation of sites is 0, its bound: estimates are those of glm:logistic" in found.remarks
    said = typed(["fit", "ill.toml", "--to", "fits/glm", "--set", "model.source=glm:logistic"], folder)
    assert said.code == 0, said
    other = msgspec.json.decode((folder / "fits/glm/fit.json").read_bytes())
    for row, one in zip(found.tables[0].rows, other["coefficients"], strict=True):
        assert abs(float(row[1] or 0) - one["estimate"]) < 1e-3 * one["error"]
        assert row[2] == pytest.approx(one["error"], rel=0.055)


# --- what its sums disclose -------------------------------------------------------------------------------------------


def design(columns: int) -> FamilyDesign:
    names = "abc"[:columns]
    return FamilyDesign(
        family="mixed-logistic", outcome="y", classes=("no", "yes"), columns=tuple(names), places=tuple(range(columns)),
        mean=(0.0,) * columns, deviation=(1.0,) * columns, suppress=5,
        encoding=TableEncoding(tuple(EncodedColumn(one) for one in names)),
    )  # fmt: skip


def drawn(seed: int, sites: int = 8, deviation: float = 0.7, columns: int = 2) -> list[SiteSample]:
    rng, found = np.random.default_rng(seed), []
    for _ in range(sites):
        m = int(rng.integers(30, 150))
        x = np.column_stack([np.ones(m), rng.normal(size=(m, columns))])
        eta = x[:, 1:] @ np.linspace(0.8, -0.4, columns) - 0.4 + deviation * rng.normal()
        found.append(SiteSample(x, (rng.random((m, 1)) < 1 / (1 + np.exp(-eta[:, None]))).astype(float)))
    return found


def test_a_quadrature_is_that_of_a_fine_grid() -> None:
    """With few and with many records, of one outcome too, at deviations from 0 to the largest."""
    z = np.linspace(-12, 12, 20001)
    for m, s, one in ((30, 0.0, False), (30, 4.0, True), (3000, 2.0, False), (12, 1.0, True), (300, 0.5, False)):
        rng = np.random.default_rng(m)
        x, at = np.column_stack([np.ones(m), rng.normal(size=m)]), np.array([-0.3, 0.8, s])
        y = np.zeros(m) if one else (rng.random(m) < 0.4).astype(float)
        eta = (x @ at[:2])[:, None] + s * z
        logs = y @ eta - np.logaddexp(0, eta).sum(axis=0) - z * z / 2
        whole = np.exp(logs - logs.max()).sum()
        wanted = math.log(whole * (z[1] - z[0])) + logs.max() - math.log(2 * math.pi) / 2
        found = marginal(x, y, at)
        near = 1e-7 if one and s > 2 else 1e-8  # half a normal distribution, which no polynomial is
        assert found.likelihood == pytest.approx(wanted, abs=near), (m, s)
        both = [marginal(x, y, at + side * 1e-5 * k) for side in (1, -1) for k in np.eye(3)]
        slopes = np.array([a.likelihood - b.likelihood for a, b in zip(both[:3], both[3:], strict=True)]) / 2e-5
        assert found.gradient == pytest.approx(slopes, abs=1e-3 if near > 1e-8 else 1e-5), (m, s)
        second = np.array([a.gradient - b.gradient for a, b in zip(both[:3], both[3:], strict=True)]) / 2e-5
        assert -found.information == pytest.approx(second, abs=3e-3 if near > 1e-8 else 1e-4, rel=1e-5), (m, s)


def left_of_events(sites: list[SiteSample], rounds: Sequence[tuple[np.ndarray, float, float]]) -> float:
    """Return the least share of a site's own standard deviation of its number of events that sums leave to a reader.

    Unknown at each site: its events, and the numbers of records in nine bins of x b, with their own deviations.  Sums
    at each point: g and A by the intercept and s, each with the error of rounding at all sites to these shares.
    """
    bins, unknown, z = np.linspace(-3, 3, 9), 10, np.linspace(-8, 8, 1201)
    chance, events = np.exp(-z * z / 2), [float(one.y.sum()) for one in sites]
    counts = [np.histogram(one.x[:, 1:] @ [0.8, -0.4], [-99, *(bins[1:] + bins[:-1]) / 2, 99])[0] for one in sites]

    def derivatives(b: float, s: float) -> np.ndarray:
        """Return the change of L by each unknown, [sites, unknown]."""
        u = b + s * z
        soft, found = np.logaddexp(0, bins[:, None] + u), []
        for y, many in zip(events, counts, strict=True):
            logs = y * u - many @ soft
            w = np.exp(logs - logs.max()) * chance
            found.append(np.concatenate([[w @ u], -(soft @ w)]) / w.sum())
        return np.array(found)

    rows, e, fourth = list[np.ndarray](), 1e-2, np.array([1, -8, 0, 8, -1]) / 12
    once, twice, same = fourth / e, np.array([-1, 16, -30, 16, -1]) / 12 / e**2, np.eye(5)[2]
    own = np.sqrt([max(1.0, y * (1 - y / many.sum())) for y, many in zip(events, counts, strict=True)])
    scale = np.concatenate([[deviation, *np.sqrt(many + 1.0)] for deviation, many in zip(own, counts, strict=True)])
    for point, gradient, information in rounds:
        b, s = point
        near = {(i, j): derivatives(b + i * e, s + j * e) for i in range(-2, 3) for j in range(-2, 3)}
        units = np.zeros(5)
        for one in sites:
            here = marginal(one.x, one.y[:, 0], np.array([b, 0.8, -0.4, s]))
            a, c = np.sqrt(np.maximum(np.abs(np.diag(here.information))[[0, -1]], 1 / 16))
            units += np.square([gradient * a, gradient * c, *(information * k for k in (a * a, a * c, c * c))]) / 12
        each = ((once, same), (same, once), (twice, same), (once, once), (same, twice))
        for unit, (p, q) in zip(np.sqrt(units), each, strict=True):
            change = sum(p[i + 2] * q[j + 2] * near[i, j] for i in range(-2, 3) for j in range(-2, 3))
            rows.append(np.asarray(change).ravel() * scale / unit)
    _, sizes, axes = np.linalg.svd(np.array(rows), full_matrices=True)
    known = np.zeros(len(scale))
    known[: len(sizes)] = sizes
    spread = (axes.T / (1 + known**2)) @ axes
    return float(np.sqrt(np.diag(spread))[::unknown].min())


def test_rounded_sums_leave_each_sites_events_open() -> None:
    """A fifth of a site's own deviation, or more; exact ones, at the same points, leave less than a tenth."""
    for seed in range(3):
        sites, d = drawn(seed), design(2)
        points = honest(sites, d)
        rounds = [(one.point[[0, -1]], one.share, SHARE) for one in points[:-1]]
        rounds += [(points[-1].point[[0, -1]], points[-2].share, LAST_SHARE)]
        exact = [(point, 1e-12, 1e-12) for point, _, _ in rounds]
        assert left_of_events(sites, exact) < 0.1, seed
        assert left_of_events(sites, rounds) > 0.2, seed
        far = zip(np.resize([-1.5, 0.5, -0.5, 1.5, -1.0], STEPS), np.geomspace(0.05, WIDEST, STEPS), strict=True)
        lies = [(np.array(point), WHOLE, SHARE) for point in far]
        assert left_of_events(sites, lies) > 0.2, seed


def left_to_a_liar(sites: list[SiteSample], rounds: Sequence[tuple[float, float, float, float, float]]) -> float:
    """Return the least share of a site's own deviation of its events that sums leave to a liar who knows its records.

    At points (b, s, gradient, information, moved) the columns' coefficients are 0, or move x b by `moved`: unknown
    then is also its mean at each site, by chance.  A number rounded at random has a sixth of a unit's square.
    """
    m, e = np.array([(len(one.y), one.y.sum()) for one in sites], np.float64).T
    own = np.sqrt(np.maximum(1.0, e * (1 - e / m)))
    every = len(sites)
    known = np.diag(np.concatenate([1 / own**2, m]))
    known[:every, :every] += 1e6  # all events together
    for b, s, gradient, information, moved in rounds:
        change, noise = np.zeros((5, 2 * every)), np.zeros(5)
        for k in range(every):
            low, high = max(0.0, e[k] - 2), min(m[k], e[k] + 2)
            change[:, k] = (five(m[k], high, b, s) - five(m[k], low, b, s)) / (high - low)
            change[:, every + k] = moved * (five(m[k], e[k], b + 1e-4, s) - five(m[k], e[k], b - 1e-4, s)) / 2e-4
            a, c = np.sqrt(np.maximum(np.abs(five(m[k], e[k], b, s)[[2, 4]]), 1 / 16))
            units = np.array([gradient * a, gradient * c, *(information * one for one in (a * a, a * c, c * c))])
            noise += np.exp2(np.floor(np.log2(units))) ** 2 / 6
        known += change.T @ (change / noise[:, None])
    return float((np.sqrt(np.diag(np.linalg.inv(known)))[:every] / own).min())


def five(records: float, events: float, b: float, s: float) -> np.ndarray:
    """Return g and A, by the intercept and s, of a site's records at a point without columns."""
    y = (np.arange(int(records)) < events).astype(float)
    of = marginal(np.ones((len(y), 1)), y, np.array([b, s]))
    return np.array([*of.gradient, *of.information[upper(2)]])


def test_a_liar_who_moves_no_column_learns_no_sites_events() -> None:
    """With coefficients of 0 a site's numbers follow from its records and events: rounded to the nearest, those of the
    first point alone had one solution for five sites."""
    far = [
        *zip(
            np.resize([-1.5, 0.5, -0.5, 1.5, -1.0], STEPS - STAGES),
            np.geomspace(0.05, WIDEST, STEPS - STAGES),
            strict=True,
        )
    ]
    for seed in range(3):
        sites = drawn(seed, sites=LEAST)
        assert left_to_a_liar(sites, [(-0.1, 0.7, WHOLE, SHARE, 0.0)]) > 0.4, seed
        lies = [(b, s, WHOLE, SHARE, 0.0) for b, s in far]
        fine = [(-0.1, 0.7, SHARE * 4.0**-k, SHARE, SPREAD) for k in range(STAGES)]
        assert left_to_a_liar(sites, [*lies, *fine, (-0.1, 0.7, SHARE * 4.0**-STAGES, LAST_SHARE, SPREAD)]) > 0.08, seed
        exact = [(b, s, 1e-9, 1e-9, 0.0) for b, s in far[:2]]
        assert left_to_a_liar(sites, exact) < 0.01, seed


def test_a_rounded_number_is_unknown_without_the_records_and_right_on_average() -> None:
    """It is the same whenever the point is asked again; of records that differ in a last digit another."""
    site, point = drawn(0, sites=1)[0], np.array([-0.1, 0.4, -0.2, 0.7])
    x, y = site.x, site.y[:, 0]
    told, again = marginal(x, y, point).rounded(WHOLE, SHARE), marginal(x, y, point).rounded(WHOLE, SHARE)
    assert all((a == b).all() for a, b in zip(told, again, strict=True))
    near = [marginal(x + 1e-12 * k, y, point) for k in range(400)]
    seen = np.array([one.rounded(WHOLE, SHARE)[0] for one in near])
    units = (seen.max(axis=0) - seen.min(axis=0))[None]
    assert all(len(set(column)) == 2 for column in seen.T)
    assert np.abs(seen.mean(axis=0) - near[0].gradient).max() < 0.1 * units.max()


def test_a_site_sends_no_fine_sums_where_columns_move_its_records_little(monkeypatch: pytest.MonkeyPatch) -> None:
    sites, d = drawn(0), design(2)
    layout = FamilyLayout(d, FAMILIES["mixed-logistic"])
    task = FamilyTask(layout, dict(enumerate(sites)), 5)
    vector = total([task.initial(0), *(task.sums(Job(node, 0, task.initial(0))) for node in range(8))], 256)
    for b, stage, refused in ((0.0, 0, False), (0.0, 1, True), (SPREAD / 2, 1, True), (0.8, 1, False)):
        state = MixedSearch(np.array([0.0, b, 0.0, 0.7]), stage)
        monkeypatch.setattr(MixedLogistic, "state", lambda *_, state=state: state)
        assert task.uneven(0, 1, vector).startswith("the columns move this site's records too little") == refused


def honest(sites: list[SiteSample], d: FamilyDesign) -> list[MixedSearch]:
    """Fit sites; return the state of each step."""
    layout = FamilyLayout(d, FAMILIES["mixed-logistic"])
    task, family, found = FamilyTask(layout, dict(enumerate(sites)), 5), MixedLogistic(), list[MixedSearch]()
    vector = task.initial(0)
    for number in range(layout.rounds):
        assert [task.uneven(node, number, vector) for node in range(len(sites))] == [""] * len(sites)
        vector = total([vector, *(task.sums(Job(node, number, vector)) for node in range(len(sites)))], 256)
        found.append(family.state(d, layout.pooled(vector)))
        if found[-1].is_over:
            return found
    raise AssertionError(found[-1])


@pytest.mark.parametrize("deviation", [0.0, 0.05, 0.2, 0.7, 1.5])
def test_steps_end_wherever_the_maximum_is(deviation: float) -> None:
    for seed in range(4):
        sites, d = drawn(seed, sites=5 + seed, deviation=deviation), design(2)
        last = honest(sites, d)[-1].point
        there = [marginal(one.x, one.y[:, 0], last) for one in sites]
        gradient, information = sum(one.gradient for one in there), sum(one.information for one in there)
        assert np.linalg.eigvalsh(information).min() > 0, "a maximum"
        assert gradient @ np.linalg.solve(information, gradient) < 1e-6, "to 1e-3 of an error"


def test_a_liar_gets_no_fine_sums_far_from_those_it_had() -> None:
    """Whatever sums it claims, a step after one with a gradient rounded to a share r of an error is at most 16 r."""
    rng, spread = np.random.default_rng(0), np.array([1.0, 3.0, 1.0])
    for _ in range(300):
        state = MixedSearch(np.array([0.0, 0.0, 0.7]))
        for _ in range(STEPS):
            a = rng.normal(size=(3, 3)) * 10.0 ** rng.uniform(-6, 6)
            lie = state.moved(
                rng.normal(size=3) * 10.0 ** rng.uniform(-6, 6), a @ a.T - rng.random() * np.eye(3), spread
            )
            step = np.abs(lie.point - state.point) * (spread if state.stage else 1.0)
            assert step.max() <= state.reach + 1e-12 and state.share >= SHARE * state.reach
            state = lie
            if state.is_over:
                break


def test_it_is_of_five_sites_and_two_classes(different: Path) -> None:
    site, d = drawn(0, sites=1)[0], design(2)
    layout = FamilyLayout(d, FAMILIES["mixed-logistic"])
    task = FamilyTask(layout, dict.fromkeys(range(LEAST - 1), site), 5)
    vector = total([task.initial(0), *(task.sums(Job(node, 0, task.initial(0))) for node in range(LEAST - 1))], 256)
    assert task.uneven(0, 1, vector) == "a random intercept of 4 sites: the sums would disclose each site's own"
    with pytest.raises(TrainingError, match="a random intercept of 4 sites"):
        layout.family.result(d, layout.pooled(vector), None)  # type: ignore[arg-type]
    few = SimpleNamespace(sites=4, schema=SimpleNamespace(labels=[SimpleNamespace(categories=("a", "b"))]))
    with pytest.raises(ConfigError, match="a random intercept of 4 sites"):
        FAMILIES["mixed-logistic"].design({}, few)  # type: ignore[arg-type]
    said = typed(
        ["fit", "ill.toml", "--to", "fits/no", "--set", "model.source=mixed-logistic?errors=robust"], different
    )
    assert said.code == 2 and "option 'errors' is not known" in said.err


def test_a_point_at_which_sites_differ_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sites, d = drawn(0), design(2)
    layout = FamilyLayout(d, FAMILIES["mixed-logistic"])
    task = FamilyTask(layout, dict(enumerate(sites)), 5)
    vector = total([task.initial(0), *(task.sums(Job(node, 0, task.initial(0))) for node in range(8))], 256)
    for s, why in ((4.0, ""), (4.1, "its sums lead to no point")):
        monkeypatch.setattr(MixedLogistic, "state", lambda *_, s=s: MixedSearch(np.array([0.0, 0.0, 0.0, s])))
        assert task.uneven(0, 1, vector) == why


def test_a_fit_without_an_end_states_it(tmp_path: Path) -> None:
    """Of a column that determines every outcome, until sites refuse a point at which few of their records count."""
    tables = [(x, (x[:, 0] > 60).astype(float)) for x, _ in hospitals(0.0)]
    folder = write(tmp_path, tables, ("age", "bmi"))
    said = typed(["fit", "ill.toml"], folder)
    assert said.code == 9 and not (folder / "fits/ill/model").exists(), said
    found = msgspec.json.decode((folder / "fits/ill/tables.json").read_bytes(), type=FamilyFit)
    assert found.problem.startswith("not at the end")
    assert all(isinstance(row[1], float) and isinstance(row[2], float) for row in found.tables[0].rows)
