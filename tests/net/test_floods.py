"""A message without end, and connections without number: each costs its sender the connection, and us little memory."""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zmq
from commands import wait_until
from hub_kit import HELLO, contribution, invite, values, wheel
from test_hub_hosts import Run, run
from test_net_security import EXPECTED, arrived, greeting, reasons

from fedgossip.base.owner_files import patiently
from fedgossip.base.vectors import frozen
from fedgossip.core.messages import Contribution, Invite, Model
from fedgossip.core.wire import CHUNK_BYTES
from fedgossip.net import connections, sockets
from fedgossip.net.connections import UNREAD_BYTES
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.hub.client import ClientLinks
from fedgossip.net.hub.server import CoordinatorLinks
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.net.transport import LinkEvent, Rejected, Transport

pytestmark = pytest.mark.sockets

__all__ = ["run"]  # a fixture

GROWTH_MB_MAX = 32
FLOODS = 3
SECONDS = 120.0
"""What has not happened by then never will: a bound of a hang, and no claim of how long anything takes."""


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


@contextmanager
def attacker(*words: str) -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, str(Path(__file__).parents[1] / "attackers.py"), *words]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def key_file(folder: Path, identity: Identity) -> str:
    identity.save(folder / "attacker.key")
    return str(folder / "attacker.key")


def in_hex(frames: tuple[bytes, ...]) -> str:
    return ":".join(frame.hex() for frame in frames)


def attacked(links: Transport, folder: Path) -> tuple[list[LinkEvent], float]:
    """Poll until several floods were noticed; return what happened, and by how many MB memory grew at most."""
    before, peak = resident_mb(), 0.0
    events: list[LinkEvent] = []

    def enough() -> bool:
        nonlocal peak
        events.extend(links.poll(1))
        peak = max(peak, resident_mb() - before)
        return reasons(events).count("flood") >= FLOODS or peak > 5 * GROWTH_MB_MAX

    wait_until(enough, SECONDS, "floods")
    return events, peak


@pytest.mark.parametrize("who", ["guest", "partner", "partner that greets"])
def test_a_message_without_end_costs_a_caller_of_a_peer_its_connection(tmp_path: Path, who: str) -> None:
    ours, theirs = Identity.new(), Identity.new()
    links = Links(0, "tcp://127.0.0.1:*", ours)
    try:
        if who == "guest":
            links.connect((), {}, EXPECTED, HELLO)
            links.admit_guests(None)
        else:
            links.connect((1,), {1: Endpoint("tcp://127.0.0.1:9", theirs.public)}, EXPECTED, HELLO)
        first = [in_hex(greeting(HELLO))] if who == "partner that greets" else []
        with attacker("call", links.address, ours.public, key_file(tmp_path, theirs), *first):
            events, growth = attacked(links, tmp_path)
    finally:
        links.close()
    assert growth <= GROWTH_MB_MAX
    told = [event.sender for event in events if isinstance(event, Rejected) and event.reason == "flood"]
    assert told[0] == (1 if first else None)  # on the next connection it says nothing first


@pytest.mark.parametrize("greets", [False, True])
def test_a_message_without_end_costs_a_client_its_connection(tmp_path: Path, greets: bool) -> None:
    ours, theirs = Identity.new(), Identity.new()
    hub = CoordinatorLinks(1, "tcp://127.0.0.1:*", ours)
    try:
        hub.connect((0,), {0: Endpoint("", theirs.public)}, EXPECTED, HELLO)
        first = [in_hex(greeting(HELLO))] if greets else []
        with attacker("call", hub.address, ours.public, key_file(tmp_path, theirs), *first):
            events, growth = attacked(hub, tmp_path)
    finally:
        hub.close()
    assert growth <= GROWTH_MB_MAX and any(event.sender == 0 for event in arrived(events)) == greets


@pytest.mark.parametrize("role", ["client", "peer"])
def test_a_message_without_end_costs_one_that_is_called_its_connection(tmp_path: Path, role: str) -> None:
    """A lying coordinator; and a lying neighbour, at whose end of a link nobody has anything to say."""
    ours, theirs = Identity.new(), Identity.new()
    with attacker("answer", "tcp://127.0.0.1:*", key_file(tmp_path, theirs)) as process:
        assert process.stdout
        endpoint = Endpoint(process.stdout.readline().strip(), theirs.public)
        links = ClientLinks(0, ours) if role == "client" else Links(0, "tcp://127.0.0.1:*", ours)
        try:
            links.connect((1,), {1: endpoint}, EXPECTED, HELLO)
            events, growth = attacked(links, tmp_path)
        finally:
            links.close()
    assert growth <= GROWTH_MB_MAX
    assert {event.sender for event in events if isinstance(event, Rejected) and event.reason == "flood"} == {1}


def test_guests_together_bring_little(tmp_path: Path) -> None:
    ours = Identity.new()
    links = Links(0, "tcp://127.0.0.1:*", ours)
    try:
        links.connect((), {}, EXPECTED, HELLO)
        links.admit_guests(None)
        keys = [tmp_path / f"{number}.key" for number in range(4)]
        for key in keys:
            Identity.new().save(key)
        with (
            attacker("call", links.address, ours.public, str(keys[0])),
            attacker("call", links.address, ours.public, str(keys[1])),
            attacker("call", links.address, ours.public, str(keys[2])),
            attacker("call", links.address, ours.public, str(keys[3])),
        ):
            _, growth = attacked(links, tmp_path)
    finally:
        links.close()
    assert growth <= GROWTH_MB_MAX


def test_what_waits_of_a_connection_that_is_broken_off_is_never_read() -> None:
    """The system keeps megabytes of a connection, and gives them out after a mere shutdown."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sender:
        receiver, _ = listener.accept()
        with receiver:
            sender.sendall(bytes(1 << 16))
            wait_until(lambda: sockets.count_received(receiver.fileno()) == (0, 1 << 16), SECONDS, "all is there")
            sockets.break_off(receiver.fileno(), lambda _: True)
            for end in (receiver, sender):
                with pytest.raises(ConnectionResetError):
                    end.recv(1)


# --- who is honest ----------------------------------------------------------------------------------------------------


def test_one_that_is_not_heard_for_a_while_is_not_hung_up_on() -> None:
    """The owner of the sockets is at work: what comes waits, in ZeroMQ and in the network, and nobody is to blame."""
    keys = [Identity.new(), Identity.new()]
    busy, talker = (Links(node, "tcp://127.0.0.1:*", key) for node, key in enumerate(keys))
    addresses = (busy.address, talker.address)
    where = {node: Endpoint(addresses[node], keys[node].public) for node in (0, 1)}
    dim = 16 * CHUNK_BYTES // 4
    expected = replace(EXPECTED, length=dim)
    try:
        busy.connect((1,), where, expected, HELLO)
        talker.connect((0,), where, expected, HELLO)
        heard: list[LinkEvent] = []

        def both_greeted() -> bool:
            heard.extend(busy.poll(1))
            talker.poll(1)
            return bool(arrived(heard)) and talker._links[0].up

        def in_the_middle() -> bool:
            talker.poll(1)
            heard.extend(busy.poll(0))
            return busy.incoming.select_by_curve(1).arriving_round is not None

        wait_until(both_greeted, SECONDS, "a greeting")
        for number in range(8):
            talker.send(0, Model(number, "layout", (frozen(np.full(dim, number, np.float32)),)))
        wait_until(in_the_middle, SECONDS, "a part of a model")
        still: list[int] = []

        def stuck() -> bool:
            """Nothing more goes out, though much is left."""
            talker.poll(1)
            still.append(max(one.unread for one in busy.connections._connections.values()))
            return len(still) > 100 and len(set(still[-50:])) == 1 and still[-1] > 0

        wait_until(stuck, SECONDS, "the network is full")
        assert still[-1] < UNREAD_BYTES

        def all_heard() -> bool:
            talker.poll(0)
            heard.extend(busy.poll(1))
            return sum(isinstance(event.message, Model) for event in arrived(heard)) == 8

        wait_until(all_heard, SECONDS, "all models")
        assert reasons(heard) == []
    finally:
        talker.close()
        busy.close()


def test_many_clients_that_send_at_once_are_not_hung_up_on() -> None:
    n, dim = 8, 16 * CHUNK_BYTES // 4
    with wheel(n, dim=dim) as w:
        w.start()
        for round in range(2):
            for node in range(n):
                w.hub.send(node, invite(round, dim))
            w.until(lambda round=round: all(len(w.arrived(node, Invite)) == round + 1 for node in range(n)))  # type: ignore[misc]
            for node in range(n):
                w.spokes[node].send(n, contribution(node, dim))
            w.until(lambda round=round: len(w.arrived(n, Contribution)) == n * (round + 1))  # type: ignore[misc]
        assert all(w.reasons(node) == [] for node in range(n + 1))
        assert len(values(w.arrived(n, Contribution))) == 2 * n


# --- connections without number -------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [(2, 30)], indirect=True)
def test_a_storm_of_callers_without_keys_does_not_end_a_coordinator_with_few_files(run: Run) -> None:
    """It may open 1024 files, and writes some in every round."""
    run.start(run.n)
    resource.prlimit(run.running[run.n].pid, resource.RLIMIT_NOFILE, (1024, 1024))
    host, port = run.address.removeprefix("tcp://").split(":")
    with attacker("knock", host, port) as storm:
        assert storm.stdout and storm.stdout.readline()
        run.start(0, 1)
        run.end()
    assert run.counted() == [2] * run.rounds
    log = (run.folder / "log.txt").read_text()
    assert "Too many open files" not in log and "Traceback" not in log, log[-2000:]


AT_WORK = """
import os, resource, select, sys
from fedgossip.net.hub.server import CoordinatorLinks
from fedgossip.net.identity import Identity
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
hub = CoordinatorLinks(1, "tcp://127.0.0.1:*", Identity.new())
print(hub.address, flush=True)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    files = [open(os.devnull) for _ in range(64)]
    for file in files:
        file.close()
hub.close()
"""
"""One that has bound its address and has much to do before it listens: data to read, a model to make."""


def test_a_storm_of_callers_leaves_files_to_one_that_is_at_work() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    victim = subprocess.Popen([sys.executable, "-c", AT_WORK], text=True, **pipes)  # type: ignore[call-overload]
    try:
        with attacker("knock", "127.0.0.1", victim.stdout.readline().strip().rpartition(":")[2]) as storm:
            assert storm.stdout
            for _ in range(4):
                let_in = select.select([storm.stdout], [], [], SECONDS / 2)[0]
                assert victim.poll() is None, victim.communicate()
                assert let_in, "kept out, and not let in again"
                storm.stdout.readline()
            _, said = victim.communicate("\n", timeout=SECONDS / 4)
    finally:
        victim.kill()
        victim.wait()
        for pipe in (victim.stdin, victim.stdout, victim.stderr):
            if pipe:
                pipe.close()
    assert (victim.returncode, said) == (0, "")


def test_while_callers_are_kept_out_nobody_comes_in_and_then_they_do() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sockets.pause(listener.fileno(), paused=True)
        with socket.socket() as caller:
            caller.setblocking(False)
            assert caller.connect_ex(listener.getsockname()) == errno.EINPROGRESS
            assert not select.select([], [caller], [], 0.2)[1]
            sockets.pause(listener.fileno(), paused=False)
            assert select.select([], [caller], [], SECONDS)[1]
            assert caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def test_the_late_end_of_a_connection_does_not_silence_the_monitor_that_has_its_number() -> None:
    """Seen as a link that nobody noticed to be up, and as a fault when it was closed."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    watch = connections.Connections()
    gone, there = context.socket(zmq.DEALER), context.socket(zmq.ROUTER)
    try:
        watch.follow(gone)
        watch.follow(there)
        (number,) = (number for number, one in watch._sockets.items() if one is there)
        with watch._lock:
            for event in (zmq.EVENT_CONNECTED, zmq.EVENT_DISCONNECTED):
                watch._note(connections.Seen(gone, event, number))
        watch.take()
        port = there.bind_to_random_port("tcp://127.0.0.1")
        with socket.create_connection(("127.0.0.1", port)):
            assert select.select([watch.fileno()], [], [], SECONDS)[0]
            assert [seen.socket for seen in watch.take()] == [there]
        for one in (gone, there):
            watch.leave(one)
    finally:
        watch.close()
        context.destroy(0)


def test_a_crowd_is_kept_out_before_no_file_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "raise_open_files", lambda: connections.FILES + 40)
    said: list[bool] = []
    monkeypatch.setattr(connections, "pause", lambda _, *, paused: said.append(paused))
    links = Links(0, "tcp://127.0.0.1:*", Identity.new())
    try:
        place = ("127.0.0.1", int(links.address.rpartition(":")[2]))
        doors = [socket.create_connection(place) for _ in range(60)]
        wait_until(lambda: said, SECONDS, "nobody more is let in")
        wait_until(lambda: len(links.connections._strange) <= 20, SECONDS, "the oldest are hung up on")
        wait_until(lambda: said[-1] is False, SECONDS, "somebody is let in again")
        for door in doors:
            door.close()
    finally:
        links.close()


def test_a_file_is_opened_when_there_is_a_descriptor_again() -> None:
    tries = 0

    def open() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return "open"

    assert patiently(open) == "open" and tries == 3

    def refuse() -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space"):
        patiently(refuse)


def test_a_process_may_open_as_many_files_as_the_system_allows() -> None:
    program = "import resource as r\nfrom fedgossip.net.sockets import raise_open_files\n"
    program = program.replace("\\\n", "\n")
    limit = "r.setrlimit(r.RLIMIT_NOFILE, (200, 900)); print(raise_open_files(), r.getrlimit(r.RLIMIT_NOFILE))"
    said = subprocess.run([sys.executable, "-c", program + limit], capture_output=True, text=True, check=True)
    assert said.stdout == "900 (900, 900)\n"
