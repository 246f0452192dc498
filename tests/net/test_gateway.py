"""A gateway: `fedgossip client --id 0-2` is three clients in one process, with the digest of the simulator."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from commands import Output
from test_coordinator_commands import Site

from fedgossip import simulate
from fedgossip.base.vectors import digest
from fedgossip.core.records import EventRow, read_rows
from fedgossip.drivers.gateway import run_seats
from fedgossip.drivers.peer import run_peer
from fedgossip.experiment import load_experiment
from fedgossip.net.endpoints import load_endpoints
from fedgossip.net.identity import Identity
from fedgossip.plans import compose
from fedgossip.runs.peer_files import PeerEnded

pytestmark = pytest.mark.sockets


def gateway(site: Site, ids: str, *more: str) -> Output:
    """Type the command in the main thread of this process."""
    place = ["--endpoints", "endpoints.toml", "--key", ".", "--out", "seats"]
    return site.run("client", "pilot.toml", "--id", ids, *place, *more)


def started(site: Site, node: int, out: str, stop: threading.Event) -> tuple[threading.Thread, list[PeerEnded]]:
    """Start one participant in a thread; its end is put into the list."""
    plan, ended = compose.plan(load_experiment(site.folder / "pilot.toml")), list[PeerEnded]()
    known = load_endpoints(site.folder / "endpoints.toml", plan.n, plan.roles.listens)
    key, folder = Identity.load(site.folder / f"{node}.key"), site.folder / out
    folder.mkdir()
    given = {"identity": key, "bind": known[node].address, "endpoints": known, "asked_to_stop": stop}
    thread = threading.Thread(target=lambda: ended.append(run_peer(plan, node, folder, **given)))
    thread.start()
    return thread, ended


def vector_of(folder: Path) -> Any:
    from safetensors.numpy import load_file

    return load_file(folder / "vector.safetensors")["vector"]


def assert_gateway_equals_simulator(site: Site) -> None:
    thread, ended = started(site, site.clients, "hub", threading.Event())
    said = gateway(site, f"0-{site.clients - 1}")
    thread.join()
    assert said.code == 0 and f"0-{site.clients - 1}: finished after 5 rounds" in said.err, said
    assert ended[0].status == "finished" and not ended[0].counts, "nothing is refused, lost or late"
    assert digest([vector_of(site.folder / "hub")]) == simulate(site.folder / "pilot.toml").digest
    folders = [site.folder / "seats" / f"client{node}" for node in range(site.clients)]
    assert all(json.loads((one / "ended.json").read_text())["status"] == "finished" for one in folders)
    logs = {(one / "audit.jsonl").read_bytes().splitlines()[0] for one in folders}
    assert len(logs) == site.clients, "each client has a signed log of its own"


def test_clients_of_one_process_end_with_the_digest_of_the_simulator(tmp_path: Path) -> None:
    assert_gateway_equals_simulator(Site.made(tmp_path))


@pytest.mark.long
def test_a_hundred_clients_of_one_process_end_with_the_digest_of_the_simulator(tmp_path: Path) -> None:
    assert_gateway_equals_simulator(Site.made(tmp_path, clients=100))


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ("0-2,1", "names 1 twice"),
        ("2-0", "begins above its end: write 0-2"),
        ("all", "no id and no range"),
        ("0-99999999", "at most 100000 at once"),
        ("0-3", "there is no client 3"),
    ],
)
def test_ids_that_name_no_clients_are_refused(tmp_path: Path, ids: str, text: str) -> None:
    said = gateway(Site.made(tmp_path), ids)
    assert said.code == 2 and text in said.err


def test_a_gateway_refuses_before_any_client_has_a_folder(tmp_path: Path) -> None:
    site = Site.made(tmp_path)
    assert "--ledger with 3 clients" in gateway(site, "0-2", "--ledger", "spent").err
    assert "--links with 3 clients" in gateway(site, "0-2", "--links", f"folder:{tmp_path}").err
    (tmp_path / "0.key").rename(tmp_path / "spare.key")
    assert "0.key: no key there" in gateway(site, "0-2").err
    (tmp_path / "1.key").rename(tmp_path / "0.key")
    (tmp_path / "spare.key").rename(tmp_path / "1.key")
    assert "0.key is not the key that endpoints.toml gives client 0" in gateway(site, "0-2").err
    one = ["client", "pilot.toml", "--id", "0-2", "--endpoints", "endpoints.toml", "--key", "0.key"]
    assert "no folder with the keys of 3 clients" in site.run(*one).err
    assert not (tmp_path / "seats").exists()


def test_a_client_that_is_in_already_is_named_and_ctrl_c_stops_all(tmp_path: Path) -> None:
    """Client 1 runs twice, by itself and in the gateway: the second to greet waits for its turn until it is stopped."""
    site, stop = Site.made(tmp_path), threading.Event()
    (hub, ended), (alone, _) = (started(site, node, f"alone{node}", stop) for node in (site.clients, 1))

    def stop_all() -> None:
        hub.join()
        stop.set()
        os.kill(os.getpid(), signal.SIGINT)

    def interrupt(*_: object) -> None:
        if any(one.name.startswith("client-") for one in threading.enumerate()):  # or the gateway has ended before it
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    stopper = threading.Thread(target=stop_all)
    stopper.start()
    try:
        said = gateway(site, "0-2")
        stopper.join()
    finally:
        signal.signal(signal.SIGINT, before)
    alone.join()
    assert ended[0].status == "finished" and ended[0].counts == {"refused": 1}
    assert digest([vector_of(tmp_path / f"alone{site.clients}")]) == simulate(tmp_path / "pilot.toml").digest
    twins = [refused_as_twin(tmp_path / one) for one in ("alone1", "seats/client1")]
    assert sorted(twins) == [False, True], "one of the two"
    assert ("another process with our key is connected" in said.err) == twins[1] == bool(said.code)


def refused_as_twin(folder: Path) -> bool:
    rows = read_rows(folder / "metrics.jsonl")
    return any(isinstance(row, EventRow) and row.name == "refused" and "twin" in str(row.value) for row in rows)


def test_an_unforeseen_error_of_a_client_ends_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    """Such as of the folder of one; it ended the process of all, without their outcomes."""
    gone = threading.Event()

    def failing(*_: object) -> PeerEnded:
        gone.set()
        raise FileNotFoundError("seats/client1/metrics.jsonl")

    def other(*_: object) -> PeerEnded:
        gone.wait()
        return PeerEnded("finished", 5, {})

    ended = run_seats({0: other, 1: failing, 2: other})
    assert str(ended[1]) == "FileNotFoundError: seats/client1/metrics.jsonl"
    assert {one.status for one in ended.values() if isinstance(one, PeerEnded)} == {"finished"} and len(ended) == 3
    assert "Traceback" in capsys.readouterr().err


def test_keys_of_many_clients_are_made_in_a_folder(tmp_path: Path) -> None:
    site = Site.made(tmp_path)
    made = site.run("keys", "new", "--client", "--id", "0-2", "--out", "keys")
    assert made.code == 0 and made.out.count("[[peer]]") == 3
    for node in range(3):
        assert site.run("keys", "show", f"keys/{node}.key").out.strip() in made.out
    again = site.run("keys", "new", "--client", "--id", "2-5", "--out", "keys")
    assert again.code == 2 and "keys/2.key: a key exists already" in again.err
    assert not (tmp_path / "keys" / "3.key").exists(), "either all are made or none"
    assert "add --client" in site.run("keys", "new", "--id", "3-5", "--out", "keys").err
