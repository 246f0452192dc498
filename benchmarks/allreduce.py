"""Milliseconds of one all-reduce among real processes, beside gloo's and beside bare links that carry the same bytes.

    python benchmarks/allreduce.py [--processes 4,8] [--megabytes 1,25,100] [--methods ring] [--rounds R] [--turns T]
                                   [--buckets 1,2,4]    MiB of a bucket per worker: `parallel.bucket` / workers

The contestants take turns, because machines are noisy: only the ratios of one run mean something.  The floors send what
a ring's table says, part after part, and add nothing; fedgossip's rounds hold the step on the mean gradient too.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import zmq
from contestants import Contestant
from crew import Measured, Seat, Watch, crew, machine, median, round_ms

from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.algorithms.descent.methods import SGD
from fedgossip.base.vectors import frozen
from fedgossip.core.messages import TAIL, Expected, Hello
from fedgossip.core.task import Job, Update
from fedgossip.core.wire import CHUNK_BYTES
from fedgossip.learning.analytic import Averaging
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.host import Host, Ports
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.net.sockets import keep_message_memory
from fedgossip.plans.parallel.parallel import ADAPTED
from fedgossip.protocols.allreduce.allreduce import AllReduce, AllReduceSettings
from fedgossip.protocols.allreduce.round_sums import DenseSums

LOOPBACK = "127.0.0.1"
WARM = 3
FLOORS = ("TCP floor", "CURVE floor", "gloo")


class Gradients(Averaging):
    """Gradients that cost nothing: the same ones in every round."""

    def gradients(self, jobs: list[Job]) -> list[Update]:
        return [Update(self.initial(job.node), 1, {"loss": 0.0, "steps": 1}) for job in jobs]


def ours(seat: Seat, d: int, warm: int, rounds: int, *, method: str, bulk: str, mebibytes: float) -> Measured:
    """fedgossip: AllReduce, Host and Links.  `bulk`: sealed, curve or plain; `mebibytes` of a bucket per worker."""
    identity = identity_for(bulk)
    links = Links(seat.node, f"tcp://{LOOPBACK}:*", identity)
    words = seat.meet((links.address, identity.public if identity else ""))
    endpoints = {node: Endpoint(*word) for node, word in enumerate(words)}
    task = Gradients(seat.n, d)
    vector = frozen(np.random.default_rng(seat.node).standard_normal(d, np.float32))
    task.initial = lambda node: vector  # type: ignore[method-assign]
    hello = Hello(task.schema, "benchmark", "0")
    others = [node for node in range(seat.n) if node != seat.node]
    links.connect(others, endpoints, Expected(task.schema, "float32", d), hello)
    settings = AllReduceSettings(rounds=warm + rounds, bucket=seat.n * int(mebibytes * (1 << 18)))
    table, start = COLLECTIVES[method].table, frozen(np.zeros(d, np.float32))
    sums = DenseSums(table, d, start.dtype, settings.bucket)
    machine = AllReduce(seat.node, range(seat.n), sums, SGD(), start, task.schema, settings, lambda _round: 0.1)
    watch = Watch(warm)
    sent = table(seat.n).sent(seat.node, d + TAIL) * 4
    results: list[Measured] = []

    def mixed(_round: int, _vector: object) -> None:
        watch.lap()
        if len(watch.ends_ns) == warm + rounds:
            results.append(watch.measured(sent))

    ports = Ports(lambda row: None, lambda number, vector: None, mixed, lambda: False)
    seat.meet("ready")
    Host(seat.node, machine, links, task, hello, ports).run()
    return results[0]


def identity_for(bulk: str) -> Identity | None:
    """Return keys, None for "plain"; and let vectors go by "sealed" streams, the default, or by "curve"."""
    if bulk == "plain":
        return None
    os.environ["FEDGOSSIP_LINKS"] = bulk
    return Identity.new()


def gloo(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """torch.distributed's all_reduce."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if Path("/proc").exists() else "lo0")
    words = seat.meet(tempfile.mkdtemp() if seat.node == 0 else "")
    store = dist.FileStore(str(Path(words[0]) / "store"), seat.n)
    dist.init_process_group("gloo", store=store, rank=seat.node, world_size=seat.n)
    vector = torch.zeros(d)
    try:
        return _rounds(lambda: dist.all_reduce(vector), seat, d, warm, rounds)
    finally:
        seat.meet("over")
        dist.destroy_process_group()
        if seat.node == 0:
            (Path(words[0]) / "store").unlink(missing_ok=True)
            Path(words[0]).rmdir()


def tcp(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """The bytes of a ring by sendall and recv_into: every part goes on when the one before it has come."""
    with socket.create_server((LOOPBACK, 0)) as server:
        ports = seat.meet(server.getsockname()[1])
        right = socket.create_connection((LOOPBACK, ports[seat.neighbours[1]]))
        left, _ = server.accept()
    for edge in (left, right):
        edge.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        edge.setblocking(False)
    part = memoryview(bytearray(4 * d // seat.n))
    into = memoryview(bytearray(len(part)))

    def exchange() -> None:
        for _ in range(2 * (seat.n - 1)):
            _both_ways(right, left, part, into)

    try:
        return _rounds(exchange, seat, d, warm, rounds)
    finally:
        seat.meet("over")
        right.close()
        left.close()


def _both_ways(out: socket.socket, back: socket.socket, part: memoryview, into: memoryview) -> None:
    """Send a part to the right while one comes from the left, in one thread: what gloo's pairs do too."""
    import select

    sent = got = 0
    while sent < len(part) or got < len(into):
        want_out = [out] if sent < len(part) else []
        readable, writable, _ = select.select([back] if got < len(into) else [], want_out, [])
        if writable:
            sent += out.send(part[sent:])
        if readable:
            got += back.recv_into(into[got:])


def curve(seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    """The same through bare CURVE links, in chunks of our size."""
    keep_message_memory()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    public, secret = zmq.curve_keypair()
    pull = context.socket(zmq.PULL)
    pull.curve_server, pull.curve_secretkey = True, secret
    pull.bind(f"tcp://{LOOPBACK}:*")
    words = seat.meet((public, pull.getsockopt_string(zmq.LAST_ENDPOINT)))
    push = context.socket(zmq.PUSH)
    push.curve_publickey, push.curve_secretkey = public, secret
    push.curve_serverkey, address = words[seat.neighbours[1]]
    push.connect(address)
    part = memoryview(bytearray(4 * d // seat.n))
    into = memoryview(bytearray(len(part)))

    def exchange() -> None:
        for _ in range(2 * (seat.n - 1)):
            for start in range(0, len(part), CHUNK_BYTES):
                push.send(part[start : start + CHUNK_BYTES])
            for start in range(0, len(into), CHUNK_BYTES):
                pull.recv_into(into[start : start + CHUNK_BYTES])

    try:
        return _rounds(exchange, seat, d, warm, rounds)
    finally:
        seat.meet("over")
        context.destroy(linger=0)


def _rounds(exchange: Callable[[], object], seat: Seat, d: int, warm: int, rounds: int) -> Measured:
    watch = Watch(warm)
    for _ in range(warm + rounds):
        exchange()
        watch.lap()
    return watch.measured(2 * (seat.n - 1) * 4 * d // seat.n)


def contestants(methods: list[str], buckets: list[float]) -> dict[str, Contestant]:
    found: dict[str, Contestant] = {"TCP floor": tcp, "CURVE floor": curve, "gloo": gloo}
    for method in methods:
        for size in buckets:
            name = f"{method} {size:g} MiB" if len(buckets) > 1 else method
            found[f"{name} plain"] = partial(ours, method=method, bulk="plain", mebibytes=size)
            found[name] = partial(ours, method=method, bulk="sealed", mebibytes=size)
            found[f"{name} CURVE"] = partial(ours, method=method, bulk="curve", mebibytes=size)
    return found


def _played(play: Contestant, d: int, rounds: int, seat: Seat) -> Measured:
    return play(seat, d, WARM, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="4,8")
    parser.add_argument("--megabytes", default="1,25", help="of float32 in a gradient, several by comma")
    parser.add_argument("--methods", default="ring", help="collectives by comma")
    parser.add_argument("--rounds", type=int, default=10, help="counted rounds of each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--buckets", default=f"{ADAPTED / (1 << 20):g}", help="MiB per worker, several by comma")
    parser.add_argument("--only", default="", help="contestants by comma (the floors are always there)")
    options = parser.parse_args()
    field = contestants(options.methods.split(","), [float(size) for size in options.buckets.split(",")])
    if options.only:
        field = {name: play for name, play in field.items() if name in FLOORS or name in options.only.split(",")}
    print(machine())
    for n in map(int, options.processes.split(",")):
        for megabytes in map(float, options.megabytes.split(",")):
            d = int(megabytes * 1e6 / 4)
            took: dict[str, list[float]] = {name: [] for name in field}
            cpu = dict.fromkeys(field, 0.0)
            for _ in range(options.turns):
                for name, play in field.items():
                    members = crew(n, partial(_played, play, d, options.rounds))
                    took[name] += round_ms(members)
                    cpu[name] += sum(member.cpu_seconds for member in members)
            print(f"\n{n} processes, {megabytes:g} MB ({options.rounds * options.turns} rounds each)")
            print(f"{'':24}{'ms/round':>10}{'CPU ms':>10}{'x TCP':>8}{'x CURVE':>9}{'x gloo':>8}")
            for name in field:
                ms = median(took[name])
                over = [f"{ms / median(took[floor]):.2f}" for floor in ("TCP floor", "CURVE floor", "gloo")]
                each = 1000 * cpu[name] / (options.rounds * options.turns)
                print(f"{name:24}{ms:>10.1f}{each:>10.1f}{over[0]:>8}{over[1]:>9}{over[2]:>8}", flush=True)


if __name__ == "__main__":
    main()
