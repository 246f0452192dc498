"""Who moves a vector around a ring: fedgossip, and the floors that it is measured against.

Each contestant is a function of (seat, d, warm, rounds): in every round a process sends its d float32 to both
neighbours and has both of theirs in memory of its own when the round ends.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import zmq
from crew import Measured, Seat, Watch, forget_peak, peak_bytes, resident_bytes

from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.core.messages import Expected, Hello
from fedgossip.core.wire import CHUNK_BYTES
from fedgossip.learning.analytic import Averaging
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.host import Host, Ports
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.net.sockets import keep_message_memory
from fedgossip.protocols.gossip.awaited_round import SyncSettings
from fedgossip.protocols.gossip.sync_gossip import SyncGossip
from fedgossip.topology import build, resolve

Contestant = Callable[[Seat, int, int, int], Measured]

LOOPBACK = "127.0.0.1"


# --- fedgossip ------------------------------------------------------------------------------------------------------


def encrypted(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """fedgossip as it runs for everybody: SyncGossip, Host and Links, encrypted."""
    return _gossip(seat, d, warm, rounds, Identity.new())


def by_curve(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """The same with models by CURVE, without streams beside it."""
    os.environ["FEDGOSSIP_LINKS"] = "curve"
    return encrypted(seat, d, warm, rounds)


def plain(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """The same with encryption left out, which only this measurement can do."""
    return _gossip(seat, d, warm, rounds, None)


def _gossip(seat: Seat, d: int, warm: int, rounds: int, identity: Identity | None) -> Measured:
    links = Links(seat.node, f"tcp://{LOOPBACK}:*", identity)
    words = seat.meet((links.address, identity.public if identity else ""))
    endpoints = {node: Endpoint(*word) for node, word in enumerate(words)}
    task = Averaging(seat.n, d)
    hello = Hello(task.schema, "benchmark", "0")
    links.connect(sorted(set(seat.neighbours)), endpoints, Expected(task.schema, "float32", d), hello)
    mixing = build(resolve("ring", seat.n), "metropolis")
    settings = SyncSettings(rounds=warm + rounds)
    machine = SyncGossip(seat.node, mixing, DSGD(), task.initial(seat.node), task.schema, settings)
    watch = Watch(warm)

    def mixed(_round: int, _vector: object) -> None:
        watch.lap()
        if len(watch.ends_ns) == warm + rounds:
            results.append(watch.measured(2 * 4 * d))

    results: list[Measured] = []
    ports = Ports(lambda row: None, lambda number, vector: None, mixed, lambda: False)
    host = Host(seat.node, machine, links, task, hello, ports)
    seat.meet("ready")
    forget_peak()
    idle = resident_bytes()
    host.run()
    peak = peak_bytes()
    if idle is not None and peak is not None:
        results[0].peak_above_idle = peak - idle
    return results[0]


# --- the floors -----------------------------------------------------------------------------------------------------


def tcp(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """The same bytes by sendall and recv_into over one TCP connection per edge; nothing is mixed."""
    mine, theirs = _vectors(d)
    edges = _tcp_edges(seat)

    def exchange(threads: Threads) -> None:
        threads.run([lambda e=e: e.sendall(mine) for e in edges])
        for edge, into in zip(edges, theirs, strict=True):
            _recv_all(edge, into)
        threads.wait()

    try:
        return _rounds(exchange, warm, rounds, 2 * len(mine))
    finally:
        for edge in edges:
            edge.close()


def _tcp_edges(seat: Seat) -> tuple[socket.socket, socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as server:
        ports = seat.meet(server.getsockname()[1])
        right = socket.create_connection((LOOPBACK, ports[seat.neighbours[1]]))
        left, _ = server.accept()
    for edge in (left, right):
        edge.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return left, right


def _recv_all(edge: socket.socket, into: memoryview) -> None:
    got = 0
    while got < len(into):
        got += edge.recv_into(into[got:])


def curve(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """The same bytes through bare CURVE links in chunks of the same size, landed by recv_into; nothing is mixed."""
    mine, theirs = _vectors(d)
    keep_message_memory()  # a tenth faster with it, so the floor has it too
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    public, secret = zmq.curve_keypair()
    pulls = [_curve_server(context, secret) for _ in range(2)]
    words = seat.meet((public, [pull.getsockopt_string(zmq.LAST_ENDPOINT) for pull in pulls]))
    # I am the right neighbour (1) of my left one, and the left (0) of my right one
    pushes = [
        _curve_client(context, public, secret, words[other][0], words[other][1][side])
        for other, side in zip(seat.neighbours, (1, 0), strict=True)
    ]

    def exchange(threads: Threads) -> None:
        threads.run([lambda p=p: _push(p, mine) for p in pushes])
        for pull, into in zip(pulls, theirs, strict=True):
            for start in range(0, len(into), CHUNK_BYTES):
                pull.recv_into(into[start : start + CHUNK_BYTES])
        threads.wait()

    try:
        return _rounds(exchange, warm, rounds, 2 * len(mine))
    finally:
        seat.meet("over")
        context.destroy(linger=0)


def _push(push: zmq.Socket[bytes], mine: memoryview) -> None:
    for start in range(0, len(mine), CHUNK_BYTES):
        push.send(mine[start : start + CHUNK_BYTES])


def _curve_server(context: zmq.Context[zmq.Socket[bytes]], secret: bytes) -> zmq.Socket[bytes]:
    pull = context.socket(zmq.PULL)
    pull.rcvhwm = 8
    pull.curve_server, pull.curve_secretkey = True, secret
    pull.bind(f"tcp://{LOOPBACK}:*")
    return pull


def _curve_client(
    context: zmq.Context[zmq.Socket[bytes]], public: bytes, secret: bytes, server_key: bytes, address: str
) -> zmq.Socket[bytes]:
    push = context.socket(zmq.PUSH)
    push.sndhwm = 8
    push.curve_publickey, push.curve_secretkey, push.curve_serverkey = public, secret, server_key
    push.connect(address)
    return push


def gloo(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """torch.distributed's all_reduce of the vector: not gossip (all hear of all), but what many would take."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if Path("/proc").exists() else "lo0")
    words = seat.meet(tempfile.mkdtemp() if seat.node == 0 else "")
    store = dist.FileStore(str(Path(words[0]) / "store"), seat.n)
    dist.init_process_group("gloo", store=store, rank=seat.node, world_size=seat.n)
    vector = torch.from_numpy(np.full(d, 1.0 / seat.n, np.float32))
    try:
        return _rounds(lambda threads: dist.all_reduce(vector), warm, rounds, 2 * 4 * d)
    finally:
        seat.meet("over")
        dist.destroy_process_group()
        if seat.node == 0:
            (Path(words[0]) / "store").unlink(missing_ok=True)
            Path(words[0]).rmdir()


CONTESTANTS: dict[str, Contestant] = {
    "TCP floor": tcp,
    "CURVE floor": curve,
    "gloo all_reduce": gloo,
    "fedgossip plain": plain,
    "fedgossip": encrypted,
    "fedgossip CURVE": by_curve,
}


# --- what the floors share ------------------------------------------------------------------------------------------


class Threads:
    """Two threads that send while the main one receives; made once, as thread starts would be measured too."""

    def __init__(self) -> None:
        self._jobs: list[Callable[[], object]] = []
        self._go, self._done = threading.Barrier(3), threading.Barrier(3)
        self._stop = False
        for side in range(2):
            threading.Thread(target=self._work, args=(side,), daemon=True).start()

    def run(self, jobs: list[Callable[[], object]]) -> None:
        self._jobs = jobs
        self._go.wait()

    def wait(self) -> None:
        self._done.wait()

    def close(self) -> None:
        self._stop = True
        self._go.wait()

    def _work(self, side: int) -> None:
        while True:
            self._go.wait()
            if self._stop:
                return
            self._jobs[side]()
            self._done.wait()


@contextmanager
def _threads() -> Iterator[Threads]:
    threads = Threads()
    try:
        yield threads
    finally:
        threads.close()


def _rounds(exchange: Callable[[Threads], object], warm: int, rounds: int, bytes_a_round: int) -> Measured:
    watch = Watch(warm)
    with _threads() as threads:
        for _ in range(warm + rounds):
            exchange(threads)
            watch.lap()
        return watch.measured(bytes_a_round)


def _vectors(d: int) -> tuple[memoryview, list[memoryview]]:
    """My vector, and warm memory for the neighbours'."""
    mine = np.random.default_rng(0).standard_normal(d, np.float32)
    theirs = [np.ones(d, np.float32) for _ in range(2)]
    return mine.view(np.uint8).data, [v.view(np.uint8).data for v in theirs]
