"""`sql:postgresql://`: a query's result as the CSV file beside it; what writes, waits or holds a secret is refused."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from commands import in_process
from postgres_server import ITS_PASSWORD, OWNER, PASSWORD, READER, make_database, owner, postgres
from test_office_tables import CSV, QUERY, ROWS, cells, plain, refusal, table

from fedgossip import ConfigError
from fedgossip.base import outside_files
from fedgossip.data import data, office_tables, postgresql
from fedgossip.data.record_groups import source_digest
from fedgossip.data.table_files import database_in
from fedgossip.plans.federated.ledger import data_of

pytestmark = pytest.mark.sockets


@pytest.fixture(scope="module")
def server() -> Iterator[Path]:
    with postgres() as host:
        rows = ", ".join(f"({k}, {a}, {'NULL' if b is None else b}, '{i}')" for k, (a, b, _, _, i) in enumerate(ROWS))
        stays = ", ".join(f"({k}, '{ward}', DATE '{seen}')" for k, (_, _, ward, seen, _) in enumerate(ROWS))
        make_database(
            host, "ward",
            "CREATE TABLE patients (id int PRIMARY KEY, age smallint, bmi numeric(8, 3), ill text)",
            f"INSERT INTO patients VALUES {rows}",
            "CREATE TABLE stays (id int, ward varchar(9), seen date)", f"INSERT INTO stays VALUES {stays}",
        )  # fmt: skip
        yield host


@pytest.fixture
def here(server: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The server, with what a site's machine has for it."""
    for name, value in (("PGHOST", str(server)), ("PGUSER", READER), ("PGPASSWORD", ITS_PASSWORD)):
        monkeypatch.setenv(name, value)
    return server


def asked(folder: Path, query: str, database: str = "ward") -> str:
    (folder / "q.sql").write_text(query)
    return f"sql:postgresql:///{database}?query={folder}/q.sql&label=ill"


def test_the_answer_of_a_server_is_read_as_the_csv_file_beside_it(here: Path, tmp_path: Path) -> None:
    source = asked(tmp_path, f"-- the cohort\n{QUERY};\n")
    found = cells(table(source))
    found["bmi"] = [one and f"{float(one):.10g}" for one in found["bmi"]]
    wanted = plain(tmp_path)
    wanted["bmi"] = [one and f"{float(one):.10g}" for one in wanted["bmi"]]
    assert found == wanted
    assert data.load(f"{source}&drop=bmi,seen,ward").x.tolist() == [[31], [44], [58], [60]]
    assert source_digest(source)


def test_values_are_those_of_other_tables(here: Path, tmp_path: Path) -> None:
    query = """SELECT 1.50::numeric AS a, 'NaN'::numeric AS b, 1e3::float8 AS c, 0.1::float4 AS d, true AS e, NULL AS f,
        TIMESTAMP '2024-01-31 00:00' AS g, TIMESTAMPTZ '2024-01-31 13:30+02' AS h, TIME '10:05' AS i, 'x%' AS j,
        12345678901234567890::numeric AS k, DATE '2024-02-29' AS l, 'NaN'::float8 AS m"""
    found = {name: one[0] for name, one in cells(table(asked(tmp_path, query))).items()}
    assert found == {
        "a": "1.50", "b": "", "c": "1000", "d": "0.1", "e": "1", "f": "", "g": "2024-01-31", "h": "2024-01-31 11:30:00",
        "i": "10:05:00", "j": "x%", "k": "12345678901234567890", "l": "2024-02-29", "m": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("DELETE FROM patients", "only a SELECT is allowed, and this does more"),
        ("DROP TABLE patients", "only a SELECT is allowed"),
        ("COPY patients TO PROGRAM 'cat'", "only a SELECT is allowed"),
        ("SET default_transaction_read_only = off", "only a SELECT is allowed"),
        ("/* SELECT */ DO $$ BEGIN DELETE FROM patients; END $$", "only a SELECT is allowed"),
        ("SELECT 1; DELETE FROM patients", "syntax error"),
        ("SELECT 1 AS a) AS b; COMMIT; DELETE FROM patients; SELECT 1 FROM (SELECT 1 AS c", "one statement at a time"),
        ("WITH gone AS (DELETE FROM patients RETURNING id) SELECT * FROM gone", "only a SELECT is allowed"),
        ("SELECT age INTO other FROM patients", "SELECT ... INTO is not allowed here"),
        ("SELECT nextval('counter')", "only a SELECT is allowed"),
        ("SELECT age FROM patients FOR UPDATE", "only a SELECT is allowed"),
        ("SELECT age FROM nowhere", 'relation "nowhere" does not exist'),
        ("SELEKT 1", "only a SELECT is allowed"),
        ("", "only a SELECT is allowed"),
        ("SELECT age FROM patients WHERE age > 1000", "no rows"),
        ("SELECT ARRAY[1, 2] AS several", "row 1, column 'several': list, which is no cell"),
        ("SELECT '\\x00'::bytea AS picture", "row 1, column 'picture': bytes"),
        ("SELECT '{}'::jsonb AS facts", "row 1, column 'facts': dict"),
        ("SELECT INTERVAL '3 days' AS stay", "row 1, column 'stay': timedelta"),
        ("SELECT repeat('x', 1048577) AS long", "too many cells, or too long ones"),
        ("SELECT n FROM generate_series(1, 1000000) AS n", "too many cells, or too long ones"),
        ("SELECT pg_sleep(60)", "it takes too long"),
    ],
)
def test_a_query_that_is_no_select_of_cells_is_refused_and_nothing_changes(
    query: str, said: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside_files, "INFLATED_LEAST", 1 << 20)
    monkeypatch.setattr(postgresql, "QUERY_SECONDS", 0.3 if "sleep" in query else 20.0)
    for name, value in (("PGUSER", OWNER), ("PGPASSWORD", PASSWORD)):  # who may write
        monkeypatch.setenv(name, value)
    with owner(here, "ward") as one:
        one.execute("CREATE SEQUENCE IF NOT EXISTS counter")
        begun = monotonic()
        assert said in (told := refusal(asked(tmp_path, query))) and "postgresql:///ward" in told
        assert monotonic() - begun < 10
        assert one.execute("SELECT count(*) FROM patients").fetchone() == (4,)
        tables = one.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        assert tables == (2,) and one.execute("SELECT is_called FROM counter").fetchone() == (False,)


def test_a_long_cell_is_refused(here: Path, tmp_path: Path) -> None:
    told = refusal(asked(tmp_path, "SELECT repeat('x', 1048577) AS long"))
    assert "column 'long': a cell of 1,048,577 letters is too big" in told


def test_a_server_that_does_not_answer_is_left_in_time(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that forgets its own limit, and one that accepts the connection and is silent."""
    monkeypatch.setattr(postgresql, "_SETTINGS", ())
    monkeypatch.setattr(postgresql, "QUERY_SECONDS", 0.2)
    monkeypatch.setattr(postgresql, "GRACE_SECONDS", 0.2)
    begun = monotonic()
    assert "postgresql:///ward" in refusal(asked(tmp_path, "SELECT pg_sleep(60)"))
    monkeypatch.setattr(postgresql, "CONNECT_SECONDS", 2)
    with silent(b"") as port:
        monkeypatch.setenv("PGHOST", "127.0.0.1")
        monkeypatch.setenv("PGPORT", str(port))
        assert "timeout" in (told := refusal(asked(tmp_path, "SELECT 1"))) and "Is the server running" in told
    assert monotonic() - begun < 20


@contextlib.contextmanager
def silent(answer: bytes) -> Iterator[int]:
    """Yield the port of a server that answers each start with these bytes, and `heard` what follows."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as one:
                        while sent := one.recv(4096):
                            heard.append(sent)
                            one.sendall(b"N" if sent[4:8] == b"\x04\xd2\x16\x2f" else answer)  # no TLS here

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


heard: list[bytes] = []


def test_a_password_is_sent_in_clear_text_to_nobody(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of others names the server, and PGPASSWORD is for any; a server that asks for it in clear gets nothing."""
    import psycopg

    if psycopg.pq.version() < 160000:
        pytest.skip("of libpq 16 and later")
    heard.clear()
    with silent(b"R\0\0\0\x08\0\0\0\x03") as port:
        monkeypatch.setenv("PGHOST", "127.0.0.1")
        monkeypatch.setenv("PGPORT", str(port))
        told = refusal(asked(tmp_path, "SELECT 1"))
    assert "require_auth" in told or "password" in told
    assert heard and ITS_PASSWORD.encode() not in b"".join(heard) and ITS_PASSWORD not in told


def test_a_password_has_no_place_in_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.sql").write_text(QUERY)
    (tmp_path / "test.csv").write_text(CSV)
    for address in ("postgresql://me:Se-cret@host/db", "postgresql://:Se-cret@host", "postgres://me:Se-cr@et@host/db"):
        with pytest.raises(ConfigError, match="a password in the address of a database") as refused:
            data.load(f"sql:{address}?query=q.sql&label=ill")
        assert "Se-cr" not in f"{refused.value} {refused.value.advice}" and "PGPASSWORD" in refused.value.advice
        (tmp_path / "t.toml").write_text(TOML.replace("postgresql:///site_{peer}", address))
        for words in (["data", "describe", "t.toml", "--id", "1"], ["data", "agree", "t.toml"], ["run", "t.toml"]):
            said = in_process(words, tmp_path, monkeypatch, capsys)
            assert said.code == 2 and "Se-cr" not in said.out + said.err, said
    left = [one for one in tmp_path.rglob("*") if one.is_file() and one.name != "t.toml"]
    assert not any(b"Se-cr" in one.read_bytes() for one in left)
    assert database_in("postgresql://me@host/db", {"query": "q.sql"}) == ("q.sql", "postgresql://me@host/db")


def test_a_wrong_password_is_in_no_message(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "Wr0ng-one")
    told = refusal(asked(tmp_path, QUERY))
    assert "password authentication failed" in told and "Wr0ng" not in told and "~/.pgpass" in told


def test_the_name_of_the_data_is_the_database_without_its_user() -> None:
    """A budget is of the data: whoever reads it, from whatever folder, with whatever query."""
    names = {
        data_of(f"sql:{one}?query=a.sql", 1)
        for one in ("postgresql://me@Host/db{peer}", "postgresql://host/db{peer}", "postgres://other@host/db1")
    }
    assert names == {"sql:postgresql://host/db1"}


def test_the_extra_is_named_where_it_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    told = refusal(asked(tmp_path, QUERY))
    assert "a PostgreSQL database needs psycopg" in told and "pip install 'fedgossip[postgresql]'" in told
    assert office_tables.ONE_SELECT not in told


TOML = """
name = "asked"
[data]
source = "sql:postgresql:///site_{peer}?query=q.sql&label=ill&drop=seen"
test = "csv:test.csv?label=ill&drop=seen"
partition = { kind = "own" }
scale = "federated"
categories = "agreed"
missing = "mean"
[coordinator]
clients = 3
min_clients = 3
"""
