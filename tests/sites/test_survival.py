"""Sites estimate survival by secure sums: `fedgossip fit`, beside the same by hand on all records in one place."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from commands import typed
from pages import blocks, page

from fedgossip import load_experiment
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.sites.plans.fits import planned_fit

SITES = 5
TIMES = (90, 180, 270, 360)


def patients(path: Path, seed: int, rows: int = 200) -> None:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arm", "days", "died"])
        for _ in range(rows):
            arm = rng.choice(["new", "old"])
            time, end = rng.exponential(300 if arm == "new" else 150), rng.uniform(50, 500)
            writer.writerow([arm, f"{min(time, end):.0f}", int(time <= end)])


def text() -> str:
    return next(one.text for one in blocks(page("survival")) if "kaplan-meier" in one.text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("survival")
    for site in range(SITES):
        patients(found / f"site-{site}.csv", site)
    patients(found / "test.csv", 99)
    (found / "survival.toml").write_text(text())
    assert typed(["data", "agree", "survival.toml"], found).code == 0
    return found


def by_hand(folder: Path, arm: str = "") -> list[tuple[int, int]]:
    """Return at risk and events at each time."""
    rows = [
        row for site in range(SITES) for row in csv.DictReader((folder / f"site-{site}.csv").read_text().splitlines())
    ]
    mine = [row for row in rows if arm in ("", row["arm"])]
    found, before = [], -1
    for time in TIMES:
        risk = [row for row in mine if float(row["days"]) > before]
        found.append((len(risk), sum(row["died"] == "1" and float(row["days"]) <= time for row in risk)))
        before = time
    return found


def test_the_guides_fit_is_that_of_all_records_in_one_place(folder: Path) -> None:
    asked = typed(["fit", "survival.toml", "--dry-run"], folder)
    assert asked.code == 0 and f"at {len(TIMES)} times of days those of events and censorings" in asked.out, asked
    assert not (folder / "fits").exists() and "in 2 rounds at most" in asked.out
    said = typed(["fit", "survival.toml"], folder)
    assert said.code == 0, said
    found = json.loads((folder / "fits/survival/survival.json").read_text())
    arms = [by_hand(folder, "new"), by_hand(folder, "old")]
    for curve, expected in zip([found["everybody"], *found["groups"]], [by_hand(folder), *arms], strict=True):
        survival, spread = 1.0, 0.0
        assert [point["time"] for point in curve["points"]] == list(TIMES)
        for point, (risk, events) in zip(curve["points"], expected, strict=True):
            survival *= 1 - events / risk
            spread += events / (risk * (risk - events))
            assert (point["risk"], point["events"]) == (risk, events)
            assert point["survival"] == pytest.approx(survival, rel=1e-12)
            assert point["error"] == pytest.approx(survival * math.sqrt(spread), rel=1e-12)
    apart = spread = 0.0
    for (n, d), (m, e) in zip(*arms, strict=True):
        both, events = n + m, d + e
        apart += d - events * n / both
        spread += events * (n / both) * (m / both) * (both - events) / (both - 1)
    assert found["statistic"] == pytest.approx(apart**2 / spread, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("times=90,30", "times go up"),
        ("every=0&until=360", "every 0"),
        ("every=90&until=360&by=days", "no column of words"),
        ("evry=90", "unknown option"),
    ],
)
def test_times_that_are_none_end_in_a_line_and_advice(folder: Path, change: str, words: str) -> None:
    said = typed(["fit", "survival.toml", "--set", f"model.source=kaplan-meier?{change}", "--to", "bad"], folder)
    assert said.code != 0
    assert words in str(said)
    assert not (folder / "bad").exists()


def other(folder: Path, where: Path, row: str = "", site: int = 1) -> Path:
    """Copy the tables, one of which has a row more."""
    for path in [*folder.glob("site-*.csv"), folder / "test.csv", *folder.glob("survival*")]:
        (where / path.name).write_bytes(path.read_bytes())
    if row:
        with (where / f"site-{site}.csv").open("a") as file:
            file.write(row + "\n")
    return where


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("new,-3,1", "times below 0, in 1 record"),
        ("new,30,2", "something else than 0 and 1"),
        ("new,30,0.5", "something else than 0 and 1"),
        ("new,,1", "nothing there"),
        ("new,30,", "nothing there"),
        ("new,soon,1", "'soon'"),
    ],
)
def test_a_site_with_times_or_events_that_are_none_takes_no_part(
    folder: Path, tmp_path: Path, row: str, message: str
) -> None:
    words = ["fit", "survival.toml", "--set", "coordinator.min_clients=3"]
    said = typed(words, other(folder, tmp_path, row))
    assert said.code == 4 and "of 4 of 5 sites" in said.out, said
    assert "site 1 took no part" in said.err and message in said.err


def test_a_site_whose_times_are_all_behind_the_grid_takes_no_part(folder: Path, tmp_path: Path) -> None:
    """In hours, where the others have days."""
    other(folder, tmp_path)
    with (folder / "site-1.csv").open() as read, (tmp_path / "site-1.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arm", "days", "died"])
        writer.writerows([row["arm"], 361 + 24 * int(row["days"]), row["died"]] for row in csv.DictReader(read))
    said = typed(["fit", "survival.toml", "--set", "coordinator.min_clients=3"], tmp_path)
    assert said.code == 4 and "all times are after the last of the grid, 360" in said.err, said


def test_no_event_at_any_site_is_said_and_nothing_is_written(folder: Path, tmp_path: Path) -> None:
    other(folder, tmp_path)
    for site in range(SITES):
        rows = (folder / f"site-{site}.csv").read_text().replace(",1\n", ",0\n")
        (tmp_path / f"site-{site}.csv").write_text(rows)
    said = typed(["fit", "survival.toml"], tmp_path)
    assert said.code == 5 and "no record has its event, died = 1, until 360" in said.err, said
    assert not (tmp_path / "fits").exists()


def test_stacked_arrays_and_json_say_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    said = typed(["fit", "survival.toml", "--json", "--to", str(tmp_path / "fit")], folder)
    written = (tmp_path / "fit" / "survival.json").read_bytes()
    assert said.code == 0 and said.out.encode() == written + b"\n"
    fit = planned_fit(load_experiment(folder / "survival.toml"))
    plan, task, refused = fit.of_sites(range(SITES))
    vector = simulate_plan(plan, task=task, engine="stacked").vectors[plan.coordinator]
    assert not refused and encoded(fit.result(vector)) == written


def test_a_curve_says_nothing_of_one_record(folder: Path, tmp_path: Path) -> None:
    assert typed(["fit", "survival.toml", "--to", str(tmp_path / "fit")], folder).code == 0
    for words in (["predict", str(tmp_path / "fit"), "test.csv"], ["evaluate", str(tmp_path / "fit"), "test.csv"]):
        said = typed(words, folder)
        assert said.code == 2 and "survival curves, which are of groups" in said.err and "cox" in said.err, said
