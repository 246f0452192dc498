"""Sites agree on columns and statistics by secure sums, and train on one scale: `fedgossip data`."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import secure_kit as kit
from commands import finish, free_ports, in_process, start
from hypothesis import given, settings
from hypothesis import strategies as some
from sklearn.datasets import load_breast_cancer

import fedgossip
from fedgossip import ConfigError, load_experiment, load_model, simulate
from fedgossip.cli.sites.data import _agreed_line
from fedgossip.core.records import EventRow, Row
from fedgossip.data.agreed.agreed_table import AgreedColumn, AgreedTable
from fedgossip.data.agreed.agreed_table import read as read_agreed
from fedgossip.data.agreed.column_sums import (
    BINS,
    GRAIN,
    SumLayout,
    divided,
    first_sums,
    hidden,
    length_of,
    margins_of,
    moments_of,
    round_of,
    second_sums,
    shift_of,
)
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.data.agreed.suppression import suppressed
from fedgossip.data.columns.table_schema import SchemaColumn, SiteColumns, TableSchema
from fedgossip.drivers.proposals import shared
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.plans import compose
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.encoding import ExactSums, as_vector, words_of
from fedgossip.secure.fixed_point import add
from fedgossip.secure.session import Policy, proposal
from fedgossip.sites.plans.statistics import agreed_from, statistics_plan, statistics_task
from fedgossip.sites.plans.sums import from_seed

SITES = 5
TOML = """
name = "federated"
rounds = 30

[data]
source = "csv:site-{peer}.csv?label=outcome"
test = "csv:test.csv?label=outcome"
partition = { kind = "own" }
scale = "federated"
%s
[train]
device = "cpu"

[coordinator]
clients = 5
min_clients = 3
"""
MIXED = """missing = "mean"
categories = "agreed"

[data.columns]
height = { unit = "cm", low = 100, high = 220 }
ward = { categories = ["A", "B", "C", "rare"] }
"""

Table = Sequence[Mapping[str, object]]


def write(path: Path, rows: Table, columns: Sequence[str] = ()) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(rows[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def patients(count: int, seed: int) -> list[dict[str, object]]:
    """Rows with a column that is bounded, one that is not, one with gaps and one of words."""
    rng = np.random.default_rng(seed)
    ill = rng.random(count) < 0.4
    height, marker = rng.uniform(140, 200, count), 1e6 + rng.normal(0, 1e-3, count) + 4e-3 * ill
    gaps = rng.random(count) < 0.1
    return [
        {
            "height [cm]": repr(float(height[row])),
            "marker": repr(float(marker[row])),
            "dose": "" if gaps[row] else repr(float(rng.exponential(3))),
            "ward": "ABC"[int(rng.integers(3))],
            "outcome": "ill" if ill[row] else "well",
        }
        for row in range(count)
    ]


def mixed(folder: Path) -> list[list[dict[str, object]]]:
    """Write five sites and a common test file; columns of some sites stand in another order."""
    (folder / "federated.toml").write_text(TOML % MIXED)
    tables = [patients(40 + 10 * site, site) for site in range(SITES)]
    tables[3][0]["ward"] = "rare"
    for site, rows in enumerate(tables):
        write(folder / f"site-{site}.csv", rows, list(rows[0])[:: -1 if site % 2 else 1])
    write(folder / "test.csv", patients(60, 99))
    return tables


def agreed_on(folder: Path, engine: str = "sim") -> tuple[AgreedTable, Sequence[Row], Any]:
    experiment = load_experiment(folder / "federated.toml")
    plan, schema = statistics_plan(experiment)
    plan, task, refused = statistics_task(plan, schema, range(SITES))
    run = simulate_plan(plan, task=task, engine=engine)
    table = agreed_from(task, run.vectors[plan.coordinator], schema, experiment.data.suppress)
    Path(experiment.data.agreed).write_bytes(encoded(table))
    return table, run.rows, refused


def column(table: AgreedTable, name: str) -> Any:
    return next(one for one in table.columns if one.name == name)


# --- the sums ---------------------------------------------------------------------------------------------------------


def test_what_is_agreed_on_is_what_all_records_in_one_place_say(tmp_path: Path) -> None:
    """Mean, deviation and histogram to 1e-9 and better, also where the deviation is 1e-9 of the mean."""
    tables = mixed(tmp_path)
    table, _, refused = agreed_on(tmp_path)
    rows = [row for one in tables for row in one]
    assert not refused and table.sites == SITES and table.records == len(rows) == 300
    for name, key in (("height", "height [cm]"), ("marker", "marker"), ("dose", "dose")):
        values = [float(str(row[key])) for row in rows if row[key] != ""]
        mean = math.fsum(values) / len(values)
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
        told = column(table, name)
        assert (told.count, told.missing) == (len(values), len(rows) - len(values))
        assert told.mean == pytest.approx(mean, rel=1e-15)
        assert told.deviation == pytest.approx(deviation, rel=1e-9), "of which the plain mean is rounded"
        inner, _ = np.histogram(values, told.edges)
        counts = [sum(value < told.edges[0] for value in values), *inner, sum(v > told.edges[-1] for v in values)]
        assert all(known in (one, None) for one, known in zip(counts, told.counts, strict=True))
        assert sum(known is not None for known in told.counts) > BINS / 4
        assert len(told.counts) == BINS + 2
        width = told.edges[1] - told.edges[0]
        assert abs(told.quantiles["0.5"] - np.median(values)) < width
        assert min(values) - width <= told.low <= min(values) + 4 * width
    assert (column(table, "height").edges[0], column(table, "height").edges[-1]) == (100, 220)
    ward = column(table, "ward")
    counted = [sum(row["ward"] == one for row in rows) for one in "ABC"]
    least = min(counted)
    assert ward.counts == (*(one if one > least else None for one in counted), None) and ward.uncounted == ("rare",)
    assert 0 < ward.shares[-1] < least / 300, "not what subtraction gives"
    outcomes = [row["outcome"] for row in rows]
    assert column(table, "outcome").counts == (outcomes.count("ill"), outcomes.count("well"))


def test_quantiles_of_a_column_with_few_values_are_among_them(tmp_path: Path) -> None:
    (tmp_path / "federated.toml").write_text(TOML % "[data.columns]\ngrade = { low = 0, high = 4 }\n")
    rng, tables = np.random.default_rng(0), []
    for site in range(SITES):
        flags, grades, tenths = rng.random(60) < 0.3, rng.integers(0, 5, 60), rng.integers(0, 4, 60)
        rows = [
            {"flag": int(flag), "grade": int(grade), "share": tenth / 10, "outcome": "ill" if flag else "well"}
            for flag, grade, tenth in zip(flags, grades, tenths, strict=True)
        ]
        tables.append(rows)
        write(tmp_path / f"site-{site}.csv", rows)
    write(tmp_path / "test.csv", tables[0])
    table, _, _ = agreed_on(tmp_path)
    for name in ("flag", "grade", "share"):
        values = [float(row[name]) for rows in tables for row in rows]
        found = {float(share): value for share, value in column(table, name).quantiles.items()}
        assert found == {share: np.quantile(values, share, method="inverted_cdf") for share in found}, name
        assert len(found) == 5


def test_simulator_and_stacked_arrays_agree_to_the_byte(tmp_path: Path) -> None:
    mixed(tmp_path)
    assert encoded(agreed_on(tmp_path)[0]) == encoded(agreed_on(tmp_path, "stacked")[0])


@settings(max_examples=60, deadline=None)
@given(some.lists(some.floats(-1e12, 1e12), min_size=1, max_size=30), some.integers(1, 5))
def test_moments_of_any_numbers_are_those_of_exact_fractions(values: list[float], parts: int) -> None:
    from fractions import Fraction

    one = SchemaColumn("x")
    layout = SumLayout(TableSchema((one,)))
    total = None
    for part in np.array_split(np.array(values), parts):
        site = object.__new__(SiteColumns)
        site.schema, site.records, site.cells = layout.schema, len(part), {"x": list(part)}
        numbers = layout.exact.encode(layout.vector(first_sums(site)), 1, {}, kit.entropy_of(0)).values
        if total is None:
            total = numbers.copy()
        else:
            add(total, numbers, layout.exact.width)
    assert total is not None
    found = moments_of(one, layout.numbers(layout.exact.decode(total, parts).mean))
    step = Fraction(2) ** shift_of(one)
    whole = [Fraction(round(Fraction(value) * step)) / step for value in values]
    mean = sum(whole) / len(whole)
    variance = sum((value - mean) ** 2 for value in whole) / len(whole)
    assert found.mean == float(mean) and found.deviation == math.sqrt(variance)


@given(some.lists(some.integers(0, 20), max_size=12), some.integers(1, 8))
def test_no_count_that_is_left_out_can_be_found_by_subtraction(counts: list[int], least: int) -> None:
    told = suppressed(counts, least)
    hidden = [count for count, known in zip(counts, told, strict=True) if known is None]
    assert all(known is None or known == count for count, known in zip(counts, told, strict=True))
    assert all(known == 0 or known is None or known >= least for known in told)
    assert len(hidden) != 1 or not any(told)


def test_a_session_with_numbers_of_another_width_is_refused() -> None:
    roster, fixed = kit.roster_of(4), ExactSums((10,) * 3)
    narrow = replace(fixed, ring_bits=128)
    descriptor = proposal(roster, narrow, range(4), task_id="statistics", round=0, model=kit.MODEL, n_min=3)
    assert descriptor.width == 4
    for mine, said in ((fixed, "256"), (kit.numbers(3), "32")):
        with pytest.raises(RoundAbandoned, match=f"in 128 bits; this is .* in {said}") as refused:
            Policy(kit.public(-1), "statistics", mine, n_min=3).check(descriptor, roster, 0, kit.MODEL)
        assert refused.value.reason == Reason.POLICY
    Policy(kit.public(-1), "statistics", narrow, n_min=3).check(descriptor, roster, 0, kit.MODEL)
    other = Policy(kit.public(-1), "statistics", replace(narrow, bounds=(10, 10, 11)), n_min=3)
    with pytest.raises(RoundAbandoned) as refused:
        other.check(descriptor, roster, 0, kit.MODEL)
    assert refused.value.reason == Reason.SCHEMA


# --- training on one scale --------------------------------------------------------------------------------------------


def breast_cancer(folder: Path, seed: int) -> None:
    """Write the raw records at five sites, and a sixth of them as the common test file."""
    data = load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    both = zip(data.data.tolist(), data.target.tolist(), strict=True)
    rows = [dict(zip([*names, "outcome"], [*map(repr, x), y], strict=True)) for x, y in both]
    parts = np.array_split(np.random.default_rng(seed).permutation(len(rows)), SITES + 1)
    for name, part in zip(["test", *(f"site-{site}" for site in range(SITES))], parts, strict=True):
        write(folder / f"{name}.csv", [rows[place] for place in part])
    (folder / "federated.toml").write_text(TOML % "")
    (folder / "raw.toml").write_text((TOML % "").replace('scale = "federated"', ""))


def accuracy(path: Path, seed: int) -> float:
    found = simulate(path, seed=seed, engine="stacked").accuracy["averaged"]
    assert found is not None
    return found


@pytest.mark.long
def test_six_ways_to_divide_the_records_are_learned_from_on_the_agreed_scale(tmp_path: Path) -> None:
    """As well as on the columns standardised in one place: what is lost is what the test records are like."""
    agreed, raw = [], []
    for split in range(6):
        folder = tmp_path / str(split)
        folder.mkdir()
        breast_cancer(folder, split)
        agreed_on(folder)
        agreed += [accuracy(folder / "federated.toml", seed) for seed in (1, 2, 3)]
        raw += [accuracy(folder / "raw.toml", seed) for seed in (1, 2, 3)]
    assert np.mean(agreed) > 0.97 and min(agreed) > 0.94 and np.mean(raw) < 0.75, (agreed, raw)


def test_raw_columns_of_five_sites_are_learned_from_by_two_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without them the same run has 42 to 68 %, with every update cut to the bound."""
    breast_cancer(tmp_path, 0)
    agreed = in_process(["data", "agree", "federated.toml"], tmp_path, monkeypatch, capsys)
    assert agreed.code == 0 and "5 of 5 sites, 474 records; counts below 5 are withheld" in agreed.out, agreed.err
    command = ["run", "federated.toml", "--on", "stacked", "--no-report", "--out", "run"]
    said = in_process(command, tmp_path, monkeypatch, capsys)
    assert said.code == 0, said.err
    scores = [json.loads((tmp_path / "run" / "summary.json").read_text())["score"]["averaged"]]
    scores += [accuracy(tmp_path / "federated.toml", seed) for seed in (2, 3)]
    assert min(scores) > 0.97, scores
    assert accuracy(tmp_path / "raw.toml", 2) < 0.8
    loaded = load_model(tmp_path / "run")
    told = in_process(["evaluate", "run", "test.csv", "--json"], tmp_path, monkeypatch, capsys)
    assert json.loads(told.out)["accuracy"] == pytest.approx(scores[0])
    assert loaded.facts.scale is not None and loaded.facts.score["on"] == "csv:test.csv?label=outcome: 95"


def test_gaps_words_and_units_reach_the_model_as_agreed(tmp_path: Path) -> None:
    mixed(tmp_path)
    table, _, _ = agreed_on(tmp_path)
    run = simulate(tmp_path / "federated.toml", out=tmp_path / "run", engine="stacked")
    assert run.accuracy["averaged"] is not None and run.accuracy["averaged"] > 0.9
    model = load_model(tmp_path / "run")
    assert model.facts.columns == ("height", "marker", "dose", "ward=A", "ward=B", "ward=C", "ward=rare")
    from fedgossip.data.columns.table_schema import read_features
    from fedgossip.data.tables import CsvColumns

    (tmp_path / "new.csv").write_text("ward,dose,marker,height [cm]\nB,,1e6,150\n,2,1e6,150\n")
    assert model.facts.encoding is not None
    x = read_features(CsvColumns(tmp_path / "new.csv"), model.facts.encoding)
    dose, shares = column(table, "dose").mean, column(table, "ward").shares
    np.testing.assert_array_equal(x, [[150, 1e6, dose, 0, 1, 0, 0], [150, 1e6, 2, *shares]])
    (tmp_path / "new.csv").write_text("ward,dose,marker,height [m]\nB,,1e6,1.5\n")
    with pytest.raises(ConfigError, match="column 'height' is in m; expected cm"):
        read_features(CsvColumns(tmp_path / "new.csv"), model.facts.encoding)


# --- what does not fit ------------------------------------------------------------------------------------------------

Rows = list[dict[str, object]]


def first(**cells: object) -> Callable[[Rows], Rows]:
    """Change cells of the first row."""
    return lambda rows: [{**rows[0], **cells}, *rows[1:]]


BAD: Mapping[str, Callable[[Rows], Rows]] = {
    "no column 'marker'": lambda rows: [{k: v for k, v in row.items() if k != "marker"} for row in rows],
    "'height' is in m; expected cm": lambda rows: [{k.replace("cm", "m"): v for k, v in r.items()} for r in rows],
    "line 2, column 'ward': 'unheard-of' is no category that was agreed on": first(ward="unheard-of"),
    "line 2, column 'marker': 'much' is not a number": first(marker="much"),
    "line 2, column 'height [cm]': 300 is not between 100 and 220": first(**{"height [cm]": 300}),
    "line 2, column 'outcome': nothing there": first(outcome=""),
    "fewer than 5 records": lambda rows: rows[:4],
}


@pytest.mark.parametrize("said", BAD)
def test_a_site_that_does_not_fit_is_named_and_the_others_agree(said: str, tmp_path: Path) -> None:
    """The site is told line and value; the coordinator that it abstains from this schema, and nothing else."""
    tables = mixed(tmp_path)
    write(tmp_path / "site-2.csv", BAD[said](tables[2]))
    table, rows, refused = agreed_on(tmp_path)
    assert table.sites == 4 and table.records == 300 - len(tables[2])
    assert list(refused) == [2] and said in str(refused[2])
    told = [row for row in rows if isinstance(row, EventRow) and row.name == "abstained"]
    assert {tuple(sorted(row.value.items())) for row in told} == {(("peer", 2), ("reason", "SCHEMA"))}  # type: ignore[union-attr]
    assert "unheard-of" not in encoded(table).decode()


def test_too_few_sites_agree_on_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = mixed(tmp_path)
    for site in range(3):
        write(tmp_path / f"site-{site}.csv", tables[site][:4])
    said = in_process(["data", "agree", "federated.toml"], tmp_path, monkeypatch, capsys)
    assert said.code == 7 and not (tmp_path / "agreed.json").exists(), said.err
    for site in range(3):
        assert f"site {site} took no part: {tmp_path}/site-{site}.csv: fewer than 5 records" in said.err
    assert "error: too few sites are left: 2 of 5, and 3 are needed" in said.err
    assert not (tmp_path / "agreed.json.spent").exists(), "nothing was released"


def first_cell(cell: str) -> Callable[[str], str]:
    return lambda text: re.sub(r"\n[^,]*", f"\n{cell}", text, count=1)


FOREIGN: Mapping[str, tuple[Callable[[str], str | bytes], str, str]] = {
    "UTF-16 without its mark": (lambda text: text.encode("utf-16-le"), "a byte 0, which is of no text", "Was the file"),
    "Mac": (lambda text: text.replace("dose", "größe").encode("mac_roman"), "is of no text in UTF-8", "Save it as"),
    "gzip": (lambda text: gzip.compress(text.encode()), "is compressed by gzip", "Unpack it"),
    "no names": (
        lambda text: text.partition("\n")[2],
        "no column 'height', 'marker'",
        "The first line of the file names",
    ),
    "a comma": (first_cell('"0,5"'), "'0,5' is not a number", "Write numbers with a point: 0.5"),
    "digits": (first_cell(400 * "1"), f"'{57 * '1'}...' is not a number", "Correct the cell"),
}
"""What another program writes, the error of it, and the advice."""


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_table_of_another_program_is_told_with_what_to_save_it_as(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change, error, advice = FOREIGN[kind]
    tables = mixed(tmp_path)
    path = tmp_path / "site-1.csv"
    write(path, [{"dose": "", **row} for row in tables[1]])
    changed = change(path.read_text().replace("\r", ""))
    path.write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    said = in_process(["data", "describe", "federated.toml", "--id", "1"], tmp_path, monkeypatch, capsys)
    told = said.err.splitlines()
    assert said.code == 2 and len(told) == 2 and error in told[0] and advice in told[1], said.err


def test_a_site_hears_alone_that_no_sum_can_hold_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It heard that its table fits, and the agreement then left it out."""
    tables = mixed(tmp_path)
    write(tmp_path / "site-1.csv", first(marker=1e29)(tables[1]))
    said = in_process(["data", "describe", "federated.toml", "--id", "1"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "column 'marker' has numbers beyond 2^40" in said.err


def test_categories_do_not_widen_the_columns_of_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed(tmp_path)
    said = in_process(["data", "describe", "federated.toml", "--id", "1"], tmp_path, monkeypatch, capsys)
    head, *rows = said.out.splitlines()[1:]
    assert head.split()[-3:] == ["least", "most", "categories"]
    (ward,) = (row for row in rows if row.startswith("ward"))
    assert ward.index(": ") > head.index("categories")


def test_a_column_with_one_value_everywhere_is_said_and_divided_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = mixed(tmp_path)
    for site, rows in enumerate([*tables, patients(60, 99)]):
        name = f"site-{site}.csv" if site < SITES else "test.csv"
        write(tmp_path / name, [{**row, "marker": "0.1"} for row in rows])
    said = in_process(["data", "agree", "federated.toml"], tmp_path, monkeypatch, capsys)
    assert said.code == 0 and "column 'marker' has one value at every site: nothing is learned from it" in said.err
    assert "column 'ward': rare: at too few sites to be counted" in said.err
    run = simulate(tmp_path / "federated.toml", overrides=["rounds=2"], out=tmp_path / "run")
    assert np.isfinite(run.summary["test_loss"])
    again = in_process(["data", "agree", "federated.toml"], tmp_path, monkeypatch, capsys)
    assert again.code == 2 and "agreed on already" in again.err


def test_a_site_alone_looks_at_its_own_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = mixed(tmp_path)
    for name in (f"site-{site}.csv" for site in range(SITES) if site != 1):
        (tmp_path / name).unlink()
    said = in_process(["data", "describe", "federated.toml", "--id", "1"], tmp_path, monkeypatch, capsys)
    assert said.code == 0 and f"{len(tables[1])} records; it fits the columns of" in said.out, said.err
    (line,) = (line.split() for line in said.out.splitlines() if line.startswith("dose"))
    doses = [float(str(row["dose"])) for row in tables[1] if row["dose"] != ""]
    assert line[1:3] == [str(len(doses)), str(len(tables[1]) - len(doses))]
    expected = [np.mean(doses), np.std(doses), min(doses), max(doses)]
    assert [float(word) for word in line[3:]] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["data.scale=source", "data.columns={}"], "data.missing without statistics"),
        (["data.partition.kind=iid", "data.source=csv:test.csv?label=outcome"], "is for sites with files of their own"),
        (["data.source=npz:site-{peer}.npz"], "is for tables"),
        (["data.source=csv:site-{peer}.csv?label=outcome&scale=standard"], 'scale with data.scale = "federated"'),
        (["data.categories=refuse"], "column 'ward' holds words"),
        (["data.columns.height={ low = 1 }"], "low and high bound it from both sides"),
        (["data.columns.weight={ unit = 'kg' }"], "no column 'weight'"),
        (["data.columns.dose={ unita = 'mg' }"], "'dose': Object contains unknown field `unita`"),
        (["coordinator.secure.on=false"], "statistics are secure sums"),
        (["coordinator.privacy.unit=record"], "column 'marker' has no bounds, so no noise can hide a record"),
        (["coordinator.privacy.unit=client"], "whole tables are hidden, and statistics would disclose them"),
    ],
)
def test_what_cannot_be_agreed_on_is_refused_before_anything_is_sent(
    changed: list[str], said: str, tmp_path: Path
) -> None:
    mixed(tmp_path)
    with pytest.raises(ConfigError, match=said):
        statistics_plan(load_experiment(tmp_path / "federated.toml", changed))


def test_a_codec_is_of_the_updates_and_no_sum_is_cut_by_it(tmp_path: Path) -> None:
    """A file with a codec for the training was refused by `data agree`; a sum that has one says what it is of."""
    breast_cancer(tmp_path, 0)
    cut = "coordinator.codec=random-k:0.1"
    plan, _ = statistics_plan(load_experiment(tmp_path / "federated.toml", [cut]))
    assert plan.section.codec == ""
    with pytest.raises(ConfigError, match="and trees are grown from sums of whole numbers"):
        compose.plan(load_experiment(tmp_path / "federated.toml", [cut, "task.kind=trees"]))


def test_training_wants_the_statistics_of_its_own_columns(tmp_path: Path) -> None:
    mixed(tmp_path)
    with pytest.raises(ConfigError, match=r"agreed.json: no statistics agreed") as told:
        simulate(tmp_path / "federated.toml")
    assert "fedgossip data agree" in told.value.advice
    agreed_on(tmp_path)
    with pytest.raises(ConfigError, match="agreed on for other columns, categories, bounds or records"):
        simulate(tmp_path / "federated.toml", overrides=["data.columns.height.high=230"])
    (tmp_path / "agreed.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"agreed.json: cannot be read"):
        simulate(tmp_path / "federated.toml")
    assert fedgossip.load_experiment(tmp_path / "federated.toml").data.agreed == str(tmp_path / "agreed.json")


# --- under a budget ---------------------------------------------------------------------------------------------------

BUDGET = """
marker = { low = 999999, high = 1000001 }
dose = { low = 0, high = 60 }

[coordinator.privacy]
unit = "record"
noise = 2.0
max_epsilon = 8.0
"""


def budgeted(folder: Path) -> list[list[dict[str, object]]]:
    tables = mixed(folder)
    text = (folder / "federated.toml").read_text().replace('"rare"] }\n', f'"rare"] }}\n{BUDGET}')
    (folder / "federated.toml").write_text(text)
    return tables


@pytest.mark.parametrize("round", [0, 1])
def test_a_record_adds_no_more_than_the_noise_counts_on(tmp_path: Path, round: int) -> None:
    """Each number in units of its noise: at the bounds a record comes as far as is counted on, and no further."""
    budgeted(tmp_path)
    _, schema = statistics_plan(load_experiment(tmp_path / "federated.toml"))
    layout, site = SumLayout(schema, 2.0), SiteColumns(tmp_path / "site-0.csv", schema)
    pooled = first_sums(site)
    most = 0.0
    for cells in ((220.0, 1000001.0, 60.0, None), (100.0, None, None, "B"), (160.0, 1e6, 3.0, "A")):
        more = object.__new__(SiteColumns)
        added = dict(zip(("height", "marker", "dose", "ward", "outcome"), (*cells, "ill"), strict=True))
        more.schema, more.records = schema, site.records + 1
        more.cells = {name: [*site.cells[name], cell] for name, cell in added.items()}
        sums = first_sums if round == 0 else lambda one: second_sums(one, pooled, noisy=True)
        before, after = ({k: v for k, v in sums(one).items() if k[1:2] != ("at",)} for one in (site, more))
        length = math.sqrt(sum(((after[name] - before[name]) / layout.unit(name)) ** 2 for name in before))
        assert length <= length_of(schema, round) * (1 + 1e-12)
        most = max(most, length)
    assert most > 0.99 * length_of(schema, round)


def test_the_noise_has_the_deviation_that_is_paid_for() -> None:
    units = {("a",): 1, ("b",): 1 << 100}
    deviation = 3.0 * GRAIN
    numbers = {("a",): 50, ("b",): 7 << 99}
    drawn = [hidden(numbers, units.__getitem__, deviation, kit.entropy_of(n)) for n in range(2000)]
    for name, mean in ((("a",), 50), (("b",), 3.5)):
        values = np.array([one[name] / units[name] for one in drawn])
        assert np.std(values) == pytest.approx(3.0, rel=0.07) and np.mean(values) == pytest.approx(mean, abs=0.75)
    grains = {one["b",] % ((1 << 100) // GRAIN) for one in drawn}
    assert grains == {0}, "nothing finer than the noise is left of the numbers"


def test_rounding_moves_no_number_on_average() -> None:
    """Of 20,000 counts with noise 3, to 4 standard errors; rounded down they were a half too low."""
    counts = {(str(place),): place for place in range(20_000)}
    told = hidden(counts, lambda _: 1, 3.0 * GRAIN, kit.entropy_of(5))
    assert abs(np.mean([told[name] - count for name, count in counts.items()])) < 4 * 3.0 / len(counts) ** 0.5 < 0.1
    assert [divided(number, 4) for number in range(-6, 7)] == [round(number / 4) for number in range(-6, 7)]


def test_margins_cover_what_was_without_noise_in_95_of_100_agreements(tmp_path: Path) -> None:
    """400 agreements of three sites of 4,000 records each, with noise of their own: each interval holds what the sums
    have without noise in 95 % of them, to 3.3 standard errors; those of ratios are of the first order."""
    budgeted(tmp_path)
    _, schema = statistics_plan(load_experiment(tmp_path / "federated.toml"))
    layout, (dose,) = SumLayout(schema, 2.0), [one for one in schema.columns if one.name == "dose"]
    sites, n, values = 3, 12_000, np.random.default_rng(1).normal(25, 8, 12_000).clip(0, 60)
    shift = shift_of(dose)
    truth = {("sites",): sites, ("records",): n, ("dose", "missing"): 0, ("dose", "bin", "3"): 0}
    truth["dose", "sum"] = int(math.ldexp(values.sum(), shift))
    truth["dose", "squares"] = int(math.ldexp(float((values**2).sum()), 2 * shift))
    held: dict[str, list[bool]] = {name: [] for name in ("records", "missing", "bin", "mean", "deviation")}
    for trial in range(400):
        noisy = dict(truth)
        for site in range(sites):
            for round in range(2):
                zero = {name: 0 for name in truth if round_of(name) == round}
                entropy = kit.entropy_of(1000 * trial + 10 * site + round)
                told = layout.hidden(zero, round, entropy)
                noisy |= {name: noisy[name] + value for name, value in told.items() if name != ("sites",)}
        margins = margins_of(dose, noisy, layout)
        moments = moments_of(dose, noisy, noisy=True)
        held["records"].append(abs(noisy["records",] - n) <= layout.margin(("records",), sites))
        held["missing"].append(abs(noisy["dose", "missing"]) <= margins["missing"])
        held["bin"].append(abs(noisy["dose", "bin", "3"]) <= margins["bin"])
        held["mean"].append(abs(moments.mean - values.mean()) <= margins["mean"])
        held["deviation"].append(abs(moments.deviation - values.std()) <= margins["deviation"])
    assert {name: 0.914 <= np.mean(one) <= 0.986 for name, one in held.items()} == dict.fromkeys(held, True)


def test_statistics_are_paid_for_out_of_the_budget_of_each_record(tmp_path: Path) -> None:
    """Two releases with the noise of the budget; its own accountant says what they cost."""
    from fedgossip.privacy.accounting import account_of
    from fedgossip.privacy.budget import Spend

    tables = budgeted(tmp_path)
    experiment = load_experiment(tmp_path / "federated.toml")
    plan, schema = statistics_plan(experiment)
    plan, task, _ = statistics_task(plan, schema, range(SITES), from_seed(plan))
    run = simulate_plan(plan, task=task)
    table = agreed_from(task, run.vectors[plan.coordinator], schema, 5)
    spent = [Spend("record", 2.0, 1e-5, 1.0, 1.0, 1, round).mechanism for round in range(2)]
    assert run.summary["epsilon"] == pytest.approx(account_of(spent).epsilon(1e-5))
    rows = [row for one in tables for row in one]
    heights = [float(str(row["height [cm]"])) for row in rows]
    told = column(table, "height")
    assert table.noise == 2.0 and table.records != 300 and abs(table.records - 300) < 100
    assert told.mean != np.mean(heights) and abs(told.mean - np.mean(heights)) < 80
    assert all(one.deviation > 0 for one in table.columns if one.deviation is not None)
    assert encoded(agreed_from(task, run.vectors[plan.coordinator], schema, 5)) == encoded(table)
    assert abs(table.records - 300) < float(table.records_margin or 0) < 100
    assert told.margins["mean"] > 0 and told.margins.keys() == {"missing", "count", "bin", "mean", "deviation"}
    assert " ± " in _agreed_line(told)[4] and column(table, "marker").name in table.drowned


def test_a_budget_that_is_too_small_ends_before_anything_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    budgeted(tmp_path)
    words = ["data", "agree", "federated.toml", "--set", "coordinator.privacy.max_epsilon=1.0"]
    said = in_process(words, tmp_path, monkeypatch, capsys)
    assert said.code == 6 and not (tmp_path / "agreed.json").exists(), said.err


# --- on machines of their own -----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.timeout(300)  # it bounds a hang of several processes
@pytest.mark.parametrize("budget", [False, True])
def test_over_encrypted_links_all_write_one_file_and_nothing_shows_a_site(tmp_path: Path, budget: bool) -> None:
    """Site 2 has a word that was not agreed on; the others go on.  What left is verified without a secret."""
    tables = (budgeted if budget else mixed)(tmp_path)
    write(tmp_path / "site-2.csv", first(ward="unheard-of")(tables[2]))
    (port,) = free_ports(1)
    machines = [tmp_path / f"machine{node}" for node in range(SITES + 1)]
    keys = []
    for node, machine in enumerate(machines):
        machine.mkdir()
        for name in ("federated.toml", "test.csv", *([f"site-{node}.csv"] if node < SITES else [])):
            shutil.copy(tmp_path / name, machine)
        where = ["--client"] if node < SITES else ["--address", f"tcp://127.0.0.1:{port}"]
        keys.append(finish(start(["keys", "new", "--id", str(node), *where], machine)).out)
    command = ["data", "agree", "federated.toml", "--endpoints", "endpoints.toml", "--out", "log"]
    running = []
    for node, machine in enumerate(machines):
        (machine / "endpoints.toml").write_text("\n".join(keys))
        running.append(start([*command, *(["--id", str(node)] if node < SITES else [])], machine))
    said = [finish(one) for one in running]
    assert [one.code for one in said[:2]] == [0, 0], said
    assert said[2].code == 2 and "'unheard-of' is no category that was agreed on" in said[2].err
    assert "&drop=ward leaves the column out" in said[2].err
    files = {(machines[node] / "agreed.json").read_bytes() for node in (0, 1, 3, 4, 5)}
    assert len(files) == 1 and not (machines[2] / "agreed.json").exists()
    told = msgspec.json.decode(files.pop(), type=AgreedTable)
    assert told.sites == 4 and told.noise == (2.0 if budget else 0.0)
    assert budget or column(told, "height").count == 300 - len(tables[2])
    paid = [machine / "peer.key.spent" for machine in machines]
    lines = [len(paid[node].read_text().splitlines()) if paid[node].exists() else 0 for node in (0, 2)]
    assert lines == ([2, 0] if budget else [1, 0]), "what has no noise is a line too"
    words = ["audit", "verify", "machine5/log", "machine0/log", "--endpoints", "machine0/endpoints.toml"]
    verified = finish(start(words, tmp_path))
    assert verified.code == 0, verified
    left = b"".join(path.read_bytes() for path in machines[5].rglob("*") if path.is_file())
    assert b"unheard-of" not in left
    site = SiteColumns(tmp_path / "site-0.csv", told.schema)
    layout = SumLayout(told.schema)
    own = layout.vector(first_sums(site))
    numbers = [layout.numbers(own)["height", "sum"], layout.numbers(own)["dose", "squares"]]
    for words in map(words_of, ([number] for number in numbers)):
        assert words.tobytes() not in left and as_vector(words).tobytes() not in left
    rows = (machines[5] / "log" / "metrics.jsonl").read_text()
    assert '"abstained"' in rows and '"peer":2,"reason":"SCHEMA"' in rows
    assert not list(machines[5].glob("log/model"))


def test_statistics_do_not_travel_with_an_invite(tmp_path: Path) -> None:
    mixed(tmp_path)
    with pytest.raises(ConfigError, match="of a run by invite: the statistics that were agreed on do not travel"):
        shared(load_experiment(tmp_path / "federated.toml"), "")


@pytest.mark.parametrize(
    ("column", "changed"),
    [
        (0, {"counts": [3, 3, 3]}), (0, {"counts": [3, -1]}), (0, {"shares": []}), (0, {"name": "x"}),
        (0, {"count": 9}),
        (0, {"categories": ["a"]}), (1, {"edges": [0.0, 2.0, 1.0]}), (1, {"counts": []}), (1, {"deviation": -1.0}),
        (1, {"deviation": 1e-308}), (1, {"mean": 1e308}),
        (1, {"codes": [0.0, 1.0]}), (1, {"codes": [0.0, 1.0, 0.0]}), (1, {"missing": -1}), (None, {"columns": []}),
    ],
)  # fmt: skip
def test_statistics_that_contradict_each_other_are_refused(
    column: int | None, changed: dict[str, Any], tmp_path: Path
) -> None:
    """Each was an error without a cause, or a count below 0."""
    schema = TableSchema((SchemaColumn("ward", categories=("a", "b")), SchemaColumn("age")))
    columns = (
        AgreedColumn(name="ward", count=6, categories=("a", "b"), counts=(3, None), shares=(0.5, 0.5)),
        AgreedColumn(name="age", count=6, mean=1.0, deviation=1.0, edges=(0.0, 1.0, 2.0), counts=(0, 3, 3, 0)),
    )
    table = AgreedTable(schema=schema, suppress=3, sites=3, records=6, columns=columns)
    path = tmp_path / "agreed.json"
    path.write_bytes(encoded(table))
    assert read_agreed(path) == table
    whole = json.loads(path.read_text())
    (whole if column is None else whole["columns"][column]).update(changed)
    path.write_text(json.dumps(whole))
    with pytest.raises(ConfigError, match=r"contradict each other|of other columns than its schema"):
        read_agreed(path)
