"""A fit over sites whose records are in the OMOP common data model: one query, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import typed
from fit_sites import SITES
from pages import blocks, page
from postgres_server import ITS_PASSWORD, READER, make_database, postgres

HERE = Path(__file__).parents[1] / "omop"
TABLES, COHORT = (HERE / "tables.sql").read_text(), (HERE / "cohort.sql").read_text()
BMI, WEIGHT, DIABETES, ASTHMA = 3038553, 3025315, 201826, 317009
Rows = list[tuple[Any, ...]]


def hospital(seed: int) -> tuple[dict[str, Rows], list[str]]:
    """Draw a site's tables: also children, second observations, later and other measurements, earlier conditions.

    Return the cohort too, as lines of CSV, by the persons and not by the tables.
    """
    rng = np.random.default_rng(seed)
    found: dict[str, Rows] = {
        one: [] for one in ("person", "observation_period", "condition_occurrence", "measurement")
    }
    lines = []

    def add(table: str, *values: Any) -> None:
        found[table].append((len(found[table]) + 1, *values))

    for person in range(1, 91):
        start = date(2015, 1, 1) + timedelta(days=int(rng.integers(0, 2000)))
        end, age, male = start + timedelta(days=900), int(rng.integers(5, 90)), bool(rng.random() < 0.5)
        found["person"].append((person, 8507 if male else 8532, start.year - age))
        if rng.random() < 0.3:  # a later one, which does not count
            add("observation_period", person, str(end + timedelta(days=100)), str(end + timedelta(days=500)))
        add("observation_period", person, str(start), str(end))
        bmi = round(float(rng.normal(26, 4)), 1) if rng.random() < 0.9 else None
        if bmi is not None:
            add("measurement", person, BMI, str(start - timedelta(days=400)), bmi + 3)
            add("measurement", person, BMI, str(start - timedelta(days=3)), bmi)
        add("measurement", person, BMI, str(start + timedelta(days=9)), 50.5)
        add("measurement", person, WEIGHT, str(start), 81.5)
        ill = bool(rng.random() < 1 / (1 + np.exp(1.5 - 0.04 * (age - 50) - 0.1 * ((bmi or 26) - 26))))
        if ill:
            add("condition_occurrence", person, DIABETES, str(start + timedelta(days=int(rng.integers(0, 900)))))
        elif rng.random() < 0.2:
            add("condition_occurrence", person, DIABETES, str(end + timedelta(days=200)))
        if rng.random() < 0.2:
            add("condition_occurrence", person, ASTHMA, str(start + timedelta(days=5)))
        if age >= 18:
            lines.append(f"{age},{'male' if male else 'female'},{'' if bmi is None else bmi},{'yes' if ill else 'no'}")
    return found, lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment of the page, its query, the sites' databases, and beside them their cohorts as CSV."""
    found = tmp_path_factory.mktemp("omop")
    toml, query = of_page()
    (found / "diabetes.toml").write_text(toml)
    (found / "csv.toml").write_text(toml.replace("sql:site-{peer}.db?query=cohort.sql&", "csv:site-{peer}.csv?"))
    (found / "cohort.sql").write_text(query)
    for name, seed in [*((f"site-{site}", site) for site in range(SITES)), ("test", 99)]:
        tables, lines = hospital(seed)
        (found / f"{name}.csv").write_text("\n".join(["age,sex,bmi,diabetes", *lines]) + "\n")
        with closing(sqlite3.connect(found / f"{name}.db")) as base:
            base.executescript(TABLES)
            for table, rows in tables.items():
                base.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
            base.commit()
    return found


def of_page() -> tuple[str, str]:
    files = {one.note.removeprefix("file: "): one.text for one in blocks(page("tables"))}
    return files["diabetes.toml"], files["cohort.sql"]


def fitted(folder: Path, name: str, *more: str) -> list[dict[str, Any]]:
    """Agree and fit; return the coefficients."""
    agreed = f"data.agreed={name}.json"
    for words in (["data", "agree"], ["fit", "--to", f"fits/{name}"]):
        said = typed([*words, "diabetes.toml" if name != "csv" else "csv.toml", "--set", agreed, *more], folder)
        assert said.code == 0, said
    found: list[dict[str, Any]] = json.loads((folder / f"fits/{name}/fit.json").read_bytes())["coefficients"]
    return found


def test_the_page_shows_the_query_of_the_test() -> None:
    assert of_page()[1] == COHORT


def test_a_fit_of_a_cohort_is_that_of_its_rows_in_files(folder: Path) -> None:
    """To the last bit: one row for each adult, with the last measurement before the start."""
    assert fitted(folder, "sqlite") == fitted(folder, "csv")


@pytest.mark.sockets
def test_one_query_is_of_both_databases(folder: Path, server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PGHOST", str(server)), ("PGUSER", READER), ("PGPASSWORD", ITS_PASSWORD)):
        monkeypatch.setenv(name, value)
    for site in range(SITES):
        values = [
            f"INSERT INTO {table} VALUES " + ", ".join(map(sql_row, rows)) for table, rows in hospital(site)[0].items()
        ]
        make_database(server, f"site_{site}", *TABLES.partition("\n")[2].split(";")[:-1], *values)
    more = ["--set", "data.source=sql:postgresql:///site_{peer}?query=cohort.sql&label=diabetes"]
    found = fitted(folder, "postgresql", *more)
    assert found == fitted(folder, "sqlite-again")
    secret = ITS_PASSWORD.encode()
    assert not any(secret in one.read_bytes() for one in folder.rglob("*") if one.is_file())


@pytest.fixture(scope="module")
def server() -> Iterator[Path]:
    with postgres() as host:
        yield host


def sql_row(row: tuple[Any, ...]) -> str:
    return f"({', '.join(repr(one) for one in row)})"
