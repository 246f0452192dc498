"""Who carries a federated round: fedgossip, and the floors that it is measured against.

Each contestant is a function of (seat, d, warm, rounds).  The last seat is the coordinator's: in every round it
sends d float32 to all others, each sends d float32 back at once, and the coordinator adds them up.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import zmq
from crew import Measured, Seat, Watch, forget_peak, peak_bytes, resident_bytes

from fedgossip.algorithms.federated.names import make
from fedgossip.algorithms.sampling import Uniform
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.messages import Contribution, Expected, Hello, Invite
from fedgossip.core.task import Job, Update
from fedgossip.core.wire import CHUNK_BYTES
from fedgossip.learning.analytic import Averaging
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.host import Host, Ports
from fedgossip.net.hub.client import ClientLinks
from fedgossip.net.hub.server import CoordinatorLinks
from fedgossip.net.identity import Identity
from fedgossip.net.sockets import keep_message_memory
from fedgossip.net.transport import Arrived, LinkDown, LinkUp, Transport
from fedgossip.protocols.federated.client import Client, ClientSettings
from fedgossip.protocols.federated.coordinator import Coordinator, CoordinatorSettings

Contestant = Callable[[Seat, int, int, int], Measured]

LOOPBACK = "127.0.0.1"
SCHEMA = "no-op"
HELLO = Hello(SCHEMA, "benchmark", "0")


def _coordinates(seat: Seat) -> bool:
    return seat.node == seat.n - 1


def _vector(d: int) -> Vector:
    return frozen(np.random.default_rng(0).standard_normal(d, np.float32))


# --- the floors -----------------------------------------------------------------------------------------------------


def tcp(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """The same bytes by sendall and recv_into, a thread per client; nothing is added."""
    return _tcp(seat, d, warm, rounds, lambda vectors: None)


def tcp_adding(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """The same, and the vectors are added in float32 when all are there."""
    total = np.zeros(d if _coordinates(seat) else 0, np.float32)

    def add(vectors: Sequence[Vector]) -> None:
        for vector in vectors:
            np.add(total, vector, out=total)

    return _tcp(seat, d, warm, rounds, add)


def _tcp(seat: Seat, d: int, warm: int, rounds: int, add: Callable[[Sequence[Vector]], None]) -> Measured:
    n, mine, watch = seat.n - 1, _vector(d).view(np.uint8).data, Watch(warm)
    if not _coordinates(seat):
        into = np.ones(d, np.float32).view(np.uint8).data
        port = seat.meet(0)[-1]
        with socket.create_connection((LOOPBACK, port)) as connection:
            for _ in range(warm + rounds):
                _recv_all(connection, into)
                connection.sendall(mine)
                watch.lap()
            measured = watch.measured(4 * d)
            seat.meet("over")
        return measured
    vectors = [np.ones(d, np.float32) for _ in range(n)]
    with socket.create_server((LOOPBACK, 0), backlog=n) as server:
        seat.meet(server.getsockname()[1])
        connections = [server.accept()[0] for _ in range(n)]

    def serve(k: int) -> None:
        connections[k].sendall(mine)
        _recv_all(connections[k], vectors[k].view(np.uint8).data)

    _in_threads(n, serve, warm + rounds, lambda: add(vectors), watch)
    seat.meet("over")
    for connection in connections:
        connection.close()
    return watch.measured(2 * n * 4 * d)


def _recv_all(connection: socket.socket, into: memoryview) -> None:
    got = 0
    while got < len(into):
        got += connection.recv_into(into[got:])


def curve(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """The same bytes through bare CURVE connections in chunks of the same size, a thread per client; none added."""
    n, mine, watch = seat.n - 1, _vector(d).view(np.uint8).data, Watch(warm)
    keep_message_memory()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    if not _coordinates(seat):
        into = np.ones(d, np.float32).view(np.uint8).data
        key, addresses = seat.meet(0)[-1]
        dealer = context.socket(zmq.DEALER)
        dealer.sndhwm = dealer.rcvhwm = 2
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        dealer.curve_serverkey = key
        dealer.connect(addresses[seat.node])
        dealer.send(b"here")
        for _ in range(warm + rounds):
            _take(dealer, into)
            _give(dealer, mine)
            watch.lap()
        measured = watch.measured(4 * d)
        seat.meet("over")
        context.destroy(linger=0)
        return measured
    public, secret = zmq.curve_keypair()
    dealers = [_curve_server(context, secret) for _ in range(n)]
    seat.meet((public, [dealer.getsockopt_string(zmq.LAST_ENDPOINT) for dealer in dealers]))
    for dealer in dealers:
        dealer.recv()
    vectors = [np.ones(d, np.float32) for _ in range(n)]

    def serve(k: int) -> None:
        _give(dealers[k], mine)
        _take(dealers[k], vectors[k].view(np.uint8).data)

    _in_threads(n, serve, warm + rounds, lambda: None, watch)
    seat.meet("over")
    context.destroy(linger=0)
    return watch.measured(2 * n * 4 * d)


def _curve_server(context: zmq.Context[zmq.Socket[bytes]], secret: bytes) -> zmq.Socket[bytes]:
    dealer = context.socket(zmq.DEALER)
    dealer.sndhwm = dealer.rcvhwm = 2
    dealer.curve_server, dealer.curve_secretkey = True, secret
    dealer.bind(f"tcp://{LOOPBACK}:*")
    return dealer


def _give(dealer: zmq.Socket[bytes], mine: memoryview) -> None:
    for start in range(0, len(mine), CHUNK_BYTES):
        dealer.send(mine[start : start + CHUNK_BYTES], copy=False)


def _take(dealer: zmq.Socket[bytes], into: memoryview) -> None:
    for start in range(0, len(into), CHUNK_BYTES):
        dealer.recv_into(into[start : start + CHUNK_BYTES])


def _in_threads(n: int, serve: Callable[[int], None], rounds: int, then: Callable[[], None], watch: Watch) -> None:
    """Call serve(k) in n threads at once, `then` when all are done, `rounds` times; the threads are made once."""
    begin, end = threading.Barrier(n + 1), threading.Barrier(n + 1)

    def work(k: int) -> None:
        for _ in range(rounds):
            begin.wait()
            serve(k)
            end.wait()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(n)]
    for thread in threads:
        thread.start()
    for _ in range(rounds):
        begin.wait()
        end.wait()
        then()
        watch.lap()
    for thread in threads:
        thread.join()


# --- fedgossip's links ----------------------------------------------------------------------------------------------


def links_plain(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """Hub and Spokes without encryption, nothing above them; added in float32 as they come."""
    return _links(seat, d, warm, rounds, None)


def links(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """The same with CURVE."""
    return _links(seat, d, warm, rounds, Identity.new())


def _links(seat: Seat, d: int, warm: int, rounds: int, identity: Identity | None) -> Measured:
    transport = _connected(seat, d, identity)
    n, mine, watch = seat.n - 1, _vector(d), Watch(warm)
    try:
        if not _coordinates(seat):
            _answer(transport, mine, watch)
            return watch.measured(4 * d)
        total, here = np.zeros(d, np.float32), 0
        while here < n:
            here += sum(isinstance(event, LinkUp) for event in transport.poll(1000))
        idle = _idle()
        for number in range(warm + rounds):
            invite = Invite(number, SCHEMA, (mine,))
            for node in range(n):
                transport.send(node, invite)
            missing = n
            while missing:
                for event in transport.poll(1000):
                    if isinstance(event, Arrived) and isinstance(event.message, Contribution):
                        np.add(total, event.message.vectors[0], out=total)
                        missing -= 1
                    del event  # a vector's memory is used for the next one
            watch.lap()
        return _with_peak(watch.measured(2 * n * 4 * d), idle)
    finally:
        transport.close(1.0)


def _answer(transport: Transport, mine: Vector, watch: Watch) -> None:
    while True:
        for event in transport.poll(1000):
            if isinstance(event, LinkDown):
                return
            if isinstance(event, Arrived) and isinstance(event.message, Invite):
                transport.send(event.sender, Contribution(event.message.round, SCHEMA, (mine,), 1, 1, 0.0))
                watch.lap()


def _connected(seat: Seat, d: int, identity: Identity | None, schema: str = SCHEMA) -> Transport:
    """Return this seat's links, which have begun to call."""
    n, key = seat.n - 1, identity.public if identity else ""
    transport: CoordinatorLinks | ClientLinks
    if _coordinates(seat):
        transport = CoordinatorLinks(n, f"tcp://{LOOPBACK}:*", identity)
        words = seat.meet((transport.address, key))
    else:
        transport = ClientLinks(seat.node, identity)
        words = seat.meet(("", key))
    endpoints = {node: Endpoint(*word) for node, word in enumerate(words)}
    partners = range(n) if _coordinates(seat) else (n,)
    transport.connect(tuple(partners), endpoints, Expected(schema, "float32", d), HELLO)
    return transport


# --- fedgossip as it runs -------------------------------------------------------------------------------------------


class NoOp(Averaging):
    """A task whose training is over at once: always the same update, of one example."""

    def __init__(self, n: int, d: int, watch: Watch) -> None:
        super().__init__(n, d)
        self._update, self._watch = _vector(d), watch

    def initial(self, node: int) -> Vector:
        return self._update

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        self._watch.lap()
        return [Update(self._update, 1, {"steps": 1, "rate": 1.0, "loss": 0.0}) for _ in jobs]


def machines_plain(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """Coordinator, Client and Host over their links without encryption: checked, added exactly, in any order."""
    return _machines(seat, d, warm, rounds, None)


def machines(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """The same encrypted: fedgossip as it runs for everybody."""
    return _machines(seat, d, warm, rounds, Identity.new())


def machines_by_curve(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """The same with models by CURVE, without streams beside it."""
    os.environ["FEDGOSSIP_LINKS"] = "curve"
    return machines(seat, d, warm, rounds)


def _machines(seat: Seat, d: int, warm: int, rounds: int, identity: Identity | None) -> Measured:
    n, watch = seat.n - 1, Watch(warm)
    task = NoOp(seat.n, d, watch)
    transport = _connected(seat, d, identity, task.schema)
    found: list[Measured] = []

    def mixed(_round: int, _vector: object) -> None:
        watch.lap()
        if len(watch.ends_ns) == warm + rounds:
            found.append(_with_peak(watch.measured(2 * n * 4 * d), idle))

    ports = Ports(lambda row: None, lambda number, vector: None, mixed, lambda: False)
    machine: Any
    if _coordinates(seat):
        of, sampling = make("fedavg", clients=n), Uniform(0, tuple(range(n)), n)
        settings = CoordinatorSettings(warm + rounds)
        machine = Coordinator(n, tuple(range(n)), of, sampling, task.initial(n), task.schema, settings)
    else:
        rule = make("fedavg", clients=n).clients
        machine = Client(seat.node, n, rule, task.initial(seat.node), task.schema, ClientSettings(1_000_000))
    idle = _idle()
    Host(seat.node, machine, transport, task, HELLO, ports).run()
    return found[0] if found else watch.measured(4 * d)


def _idle() -> int | None:
    forget_peak()
    return resident_bytes()


def _with_peak(measured: Measured, idle: int | None) -> Measured:
    peak = peak_bytes()
    measured.peak_above_idle = None if idle is None or peak is None else peak - idle
    return measured


CONTESTANTS: dict[str, Contestant] = {
    "TCP floor": tcp,
    "TCP, adding": tcp_adding,
    "CURVE floor": curve,
    "links plain": links_plain,
    "links": links,
    "fedgossip plain": machines_plain,
    "fedgossip": machines,
    "fedgossip CURVE": machines_by_curve,
}
