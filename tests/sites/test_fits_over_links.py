"""Each kind of fit by processes with folders of their own: the file of the simulation, whoever is killed."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import typed
from fit_sites import IMPUTED, SITES, by_hand, every_kind, files, fit_on, machines
from relays import relay_running
from web_proxies import Authority, proxy_running

from fedgossip.base.errors import NetworkError

pytestmark = pytest.mark.sockets

FILE = {"kaplan-meier": "survival.json", "cox": "fit.json", "glm": "fit.json", "trees": "trees-fit.json"}
FILE |= dict.fromkeys(("table1", "firth"), "tables.json")
FILE |= dict.fromkeys(("cox-robust", "fine-gray", IMPUTED), "fit.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return every_kind(tmp_path_factory.mktemp("fits"))


def test_a_coordinator_whose_fit_has_stopped_advises_what_fit_has(folder: Path, tmp_path: Path) -> None:
    """`--resume` is of runs that train; a fit is begun again."""
    hub = machines(folder, tmp_path, ["glm.toml", "glm.json", "test.csv"])[SITES]
    words = ["fit", "glm.toml", "--endpoints", "endpoints.toml", "--out", "log", "--to", "fit"]
    for _ in ("nobody comes", "the folder is not empty"):
        said = typed([*words, "--set", "coordinator.start_timeout=1"], hub)
        assert said.code in (2, 7) and "Start again, all together and in new folders (--out)" in said.err, said
        assert "--resume" not in said.err and not (hub / "fit").exists()


@pytest.mark.long  # 6 processes
@pytest.mark.parametrize("kind", ["kaplan-meier", "cox"])
def test_a_site_with_records_that_are_none_takes_no_part_and_says_so_with_its_code(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    where = machines(folder, tmp_path, files(kind))
    with (where[1] / "site-1.csv").open("a") as file:
        file.write("50,new,-3,1,no\n")
    said = fit_on(where, kind)
    assert [one.code for one in said] == [0, 4, 0, 0, 0, 9], said
    assert "site 1 took no part: " in said[1].err and "times below 0" in said[1].err and "error: " not in said[1].err
    assert not (where[1] / "fit").exists() and (where[0] / "fit").exists()


@pytest.mark.parametrize(("ended", "code"), [(0, 4), (7, 4), (9, 4), (130, 130)])
def test_the_code_of_a_site_that_takes_no_part_is_that_of_its_records_whatever_its_empty_rounds_gave(
    ended: int, code: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = machines(folder, tmp_path, files("kaplan-meier"))[1]
    with (site / "site-1.csv").open("a") as file:
        file.write("50,new,-3,1,no\n")
    monkeypatch.setattr("fedgossip.cli.run.participant.Participant.take_part", lambda *_: ended)
    said = typed(["fit", "kaplan-meier.toml", "--endpoints", "endpoints.toml", "--id", "1"], site)
    assert said.code == code and "site 1 took no part: " in said.err, said


def test_a_relay_without_tls_in_the_endpoints_has_a_notice(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **_more: object) -> None:
        raise NetworkError("stopped", "")

    monkeypatch.setattr("fedgossip.cli.run.participant.Participant.run", stopped)
    for address, notices in (("ws://relay.example.org", 1), ("wss://relay.example.org", 0), ("ws://127.0.0.1", 0)):
        where = tmp_path / address.replace("/", "")
        where.mkdir()
        site = machines(folder, where, files("glm"), address)[0]
        said = typed(["fit", "glm.toml", "--endpoints", "endpoints.toml", "--id", "0"], site)
        assert said.code == 3 and said.err.count(f"{address} is without TLS") == notices, said


# --- what all processes write -----------------------------------------------------------------------------------------


def written(where: list[Path], kind: str, dead: Mapping[int, int]) -> set[bytes]:
    return {(one / "fit" / FILE[kind]).read_bytes() for node, one in enumerate(where) if node not in dead}


CARRIERS = "sockets", "web", "folder"
OVER = [(kind, carrier) for kind in FILE for carrier in CARRIERS]
SHORT = ("kaplan-meier", "web")


@pytest.mark.parametrize(
    ("kind", "carrier"), [one if one == SHORT else pytest.param(*one, marks=pytest.mark.long) for one in OVER]
)
@pytest.mark.timeout(300)  # 6 processes
def test_processes_write_the_file_of_the_simulation_by_every_carrier(
    kind: str, carrier: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the web: a relay behind a proxy that opens TLS, and sees nothing of a table or a model."""
    authority, network = Authority(tmp_path), Authority(tmp_path, "Campus filter")
    with ExitStack() as stack:
        words, address = list[str](), ""
        if carrier == "web":
            relay = stack.enter_context(relay_running(scheme="wss", tls=authority.server("127.0.0.1")))
            proxy = stack.enter_context(proxy_running(opens=network, trusts=authority.path))
            words, address = ["--proxy", proxy.url, "--ca", str(network.path)], f"{relay.address}/fedgossip"
        elif carrier == "folder":
            (tmp_path / "shared").mkdir()
            words = ["--links", f"folder:{tmp_path / 'shared'}", "--poll", "0.05"]
        where = machines(folder, tmp_path, files(kind), address)
        said = fit_on(where, kind, *words)
        assert [one.code for one in said] == [0] * (SITES + 1), said
        if carrier == "web":
            assert b"Upgrade: websocket" in proxy.seen
            assert not any(plain in proxy.seen for plain in (b"layout", b"experiment", b"days", b"vectors"))
    simulated = typed(["fit", f"{kind}.toml", "--to", str(tmp_path / "simulated")], folder)
    assert simulated.code == 0, simulated
    monkeypatch.chdir(folder)
    assert written(where, kind, {}) == {(tmp_path / "simulated" / FILE[kind]).read_bytes(), by_hand(folder, kind, {})}
    models = {(one / "fit/model/trees.json").read_bytes() for one in where if kind == "trees"}
    assert models == {(tmp_path / "simulated/model/trees.json").read_bytes() for _ in range(len(models))}
    words = ["audit", "verify", "machine5/log", "machine0/log", "--endpoints", "machine0/endpoints.toml"]
    verified = typed(words, tmp_path)
    assert verified.code == 0, verified


DEADLINES = ("--set", "coordinator.deadline=20", "--set", "coordinator.least_deadline=1")


@pytest.mark.long  # 6 processes, and deadlines
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["kaplan-meier", "cox", "glm", "trees"])
def test_a_site_that_is_killed_before_the_first_sum_leaves_the_fit_of_the_others(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, dies = machines(folder, tmp_path, files(kind)), {2: 0}
    said = fit_on(where, kind, *DEADLINES, dies=dies)
    assert said[2].code == -signal.SIGKILL
    partial = 9  # at the coordinator, for nothing of the site was ever counted
    assert [one.code for node, one in enumerate(said) if node != 2] == [0] * (SITES - 1) + [partial], said
    monkeypatch.chdir(folder)
    expected = by_hand(folder, kind, dies)
    assert written(where, kind, dies) == {expected} and expected != by_hand(folder, kind, {})


@pytest.mark.long  # 6 processes, and deadlines
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "round"), [("kaplan-meier", 1), ("cox", 2), ("glm", 2), ("trees", 3)])
def test_a_site_that_is_killed_after_the_first_sum_ends_the_fit_and_all_may_begin_again(
    kind: str, round: int, folder: Path, tmp_path: Path
) -> None:
    """Sums without it would tell of it: the others' ledgers let none of them consent to one, in new folders neither."""
    where = machines(folder, tmp_path, files(kind))
    said = fit_on(where, kind, *DEADLINES, "--set", "coordinator.start_timeout=15", dies={2: round})
    assert [one.code for node, one in enumerate(said) if node != 2] == [7] * SITES, said
    assert "all sums of this run are of the same clients, and [2] of them left" in said[SITES].err, said[SITES]
    again = ["--set", "coordinator.start_timeout=8", "--out", "again", "--to", "refitted"]
    without = fit_on(where, kind, *DEADLINES, *again, without=2)
    assert not any((one / "refitted").exists() for one in where), without
    said = " ".join(one.err for one in without)
    assert "client's are of others, in a run before" in " ".join(said.split()) and "Bring the same sites back" in said
    whole = fit_on(where, kind, *DEADLINES, "--out", "third", "--to", "fitted")
    assert [one.code for one in whole] == [0] * (SITES + 1), whole
