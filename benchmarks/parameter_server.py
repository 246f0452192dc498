"""Gigabytes a second of push and pull at parameter servers, beside bare links and gather + scatter of the same bytes.

    python benchmarks/parameter_server.py [--workers 4] [--servers 2] [--megabytes 25] [--rounds R] [--turns T]

In every round each worker pushes its gradient, a part to each server, and has the parts of the model back.  The
contestants take turns, because machines are noisy: only the ratios of one run mean something.  The floor moves the same
bytes through bare CURVE links and adds nothing; gloo's gather and scatter are not encrypted and add nothing either.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from allreduce import LOOPBACK, WARM, Gradients, identity_for
from crew import Measured, Seat, Watch, crew, machine, median, round_ms

from fedgossip.base.vectors import frozen
from fedgossip.core.messages import Expected, Hello
from fedgossip.core.wire import CHUNK_BYTES
from fedgossip.experiment import load_experiment
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.host import Host, Ports
from fedgossip.net.links.mesh import Links
from fedgossip.net.sockets import keep_message_memory
from fedgossip.plans import compose

Play = Callable[[Seat, int, int, int], Measured]
"""(seat, workers, elements, rounds): workers have the first seats, servers the others."""


def ours(seat: Seat, workers: int, d: int, rounds: int, *, bulk: str, staleness: object) -> Measured:
    """fedgossip: PushPullWorker and ParameterServer, Host and Links.  `bulk`: sealed, curve or plain."""
    server = {"servers": seat.n - workers, "staleness": staleness}
    section = {"workers": workers, "method": "parameter-server", "server": server}
    task_section = {"kind": "quadratic", "dim": d}
    plan = compose.plan(load_experiment({"rounds": WARM + rounds, "task": task_section, "parallel": section}))
    identity = identity_for(bulk)
    links = Links(seat.node, f"tcp://{LOOPBACK}:*", identity)
    words = seat.meet((links.address, identity.public if identity else ""))
    endpoints = {node: Endpoint(*word) for node, word in enumerate(words)}
    task, start = Gradients(seat.n, d), frozen(np.zeros(d, np.float32))
    vector = frozen(np.random.default_rng(seat.node).standard_normal(d, np.float32))
    task.initial = lambda node: vector  # type: ignore[method-assign]
    hello = Hello(task.schema, "benchmark", "0")
    links.connect(plan.partners(seat.node), endpoints, Expected(task.schema, "float32", d), hello)
    watch = Watch(WARM if seat.node < workers else 1)
    results: list[Measured] = []

    def mixed(_round: int, _vector: object) -> None:
        watch.lap()
        if len(watch.ends_ns) == WARM + rounds:
            results.append(watch.measured(2 * d * 4))

    ports = Ports(lambda row: None, lambda number, vector: None, mixed, lambda: False)
    seat.meet("ready")
    if seat.node >= workers:
        watch.lap()
    Host(seat.node, plan.machine(seat.node, start, task.schema), links, task, hello, ports).run()
    return results[0] if results else watch.measured(0)


def curve(seat: Seat, workers: int, d: int, rounds: int) -> Measured:
    """The same bytes through bare CURVE links, in chunks of our size; servers send when all workers' have come."""
    keep_message_memory()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    public, secret = zmq.curve_keypair()
    pull = context.socket(zmq.PULL)
    pull.curve_server, pull.curve_secretkey = True, secret
    pull.bind(f"tcp://{LOOPBACK}:*")
    words = seat.meet((public, pull.getsockopt_string(zmq.LAST_ENDPOINT)))
    others = range(workers, seat.n) if seat.node < workers else range(workers)
    pushes = []
    for other in others:
        push = context.socket(zmq.PUSH)
        push.curve_publickey, push.curve_secretkey = public, secret
        push.curve_serverkey, address = words[other]
        push.connect(address)
        pushes.append(push)
    part = memoryview(bytearray(4 * d // (seat.n - workers)))
    into = memoryview(bytearray(CHUNK_BYTES))

    def send() -> None:
        for start in range(0, len(part), CHUNK_BYTES):
            for push in pushes:
                push.send(part[start : start + CHUNK_BYTES])

    def take() -> None:
        for _ in range(len(pushes) * -(-len(part) // CHUNK_BYTES)):
            pull.recv_into(into)

    try:
        return _rounds(partial(_in_turn, seat, workers, send, take), seat, workers, d, rounds)
    finally:
        seat.meet("over")
        context.destroy(linger=0)


def _in_turn(seat: Seat, workers: int, send: Callable[[], None], take: Callable[[], None]) -> None:
    for act in (send, take) if seat.node < workers else (take, send):
        act()


def gloo(seat: Seat, workers: int, d: int, rounds: int) -> Measured:
    """torch.distributed's gather of all workers' parts at each server, and its scatter of the part back."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if Path("/proc").exists() else "lo0")
    words = seat.meet(tempfile.mkdtemp() if seat.node == 0 else "")
    store = dist.FileStore(str(Path(words[0]) / "store"), seat.n)
    dist.init_process_group("gloo", store=store, rank=seat.node, world_size=seat.n)
    servers = range(workers, seat.n)
    groups = {server: dist.new_group([*range(workers), server]) for server in servers}
    part = torch.zeros(d // len(servers))
    room = [torch.zeros_like(part) for _ in range(workers + 1)]

    def exchange() -> None:
        waits: list[Any] = []
        mine = servers if seat.node < workers else [seat.node]
        for act in (dist.gather, dist.scatter):
            for server in mine:
                many = room if seat.node == server else None
                waits.append(act(part, many, server, group=groups[server], async_op=True))
            while waits:
                waits.pop().wait()

    try:
        return _rounds(exchange, seat, workers, d, rounds)
    finally:
        seat.meet("over")
        dist.destroy_process_group()
        if seat.node == 0:
            (Path(words[0]) / "store").unlink(missing_ok=True)
            Path(words[0]).rmdir()


def _rounds(exchange: Callable[[], object], seat: Seat, workers: int, d: int, rounds: int) -> Measured:
    watch = Watch(WARM if seat.node < workers else 1)
    if seat.node >= workers:
        watch.lap()
    for _ in range(WARM + rounds):
        exchange()
        if seat.node < workers:
            watch.lap()
    return watch.measured(2 * d * 4)


CONTESTANTS: dict[str, Play] = {
    "CURVE floor": curve,
    "gloo gather + scatter": gloo,
    "servers": partial(ours, bulk="sealed", staleness=0),
    "servers, CURVE": partial(ours, bulk="curve", staleness=0),
    "servers, async": partial(ours, bulk="sealed", staleness="async"),
    "servers, plain": partial(ours, bulk="plain", staleness=0),
}


def _played(play: Play, workers: int, d: int, rounds: int, seat: Seat) -> Measured:
    return play(seat, workers, d, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--megabytes", type=float, default=25, help="of float32 in a gradient")
    parser.add_argument("--rounds", type=int, default=10, help="counted rounds of each turn")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    workers, d = options.workers, int(options.megabytes * 1e6 / 4 / options.servers) * options.servers
    took: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    cpu = dict.fromkeys(CONTESTANTS, 0.0)
    for _ in range(options.turns):
        for name, play in CONTESTANTS.items():
            members = crew(workers + options.servers, partial(_played, play, workers, d, options.rounds))
            took[name] += round_ms(members[:workers])
            counted = [options.rounds] * workers + [WARM + options.rounds] * options.servers
            cpu[name] += sum(one.cpu_seconds / rounds for one, rounds in zip(members, counted, strict=True))
    print(machine())
    print(f"\n{workers} workers, {options.servers} servers, {4e-6 * d:g} MB")
    print(f"{'':24}{'ms/round':>10}{'CPU ms':>10}{'GB/s':>8}{'x CURVE':>9}{'CPU':>7}{'x gloo':>8}")
    floors = "CURVE floor", "gloo gather + scatter"
    for name in CONTESTANTS:
        ms, each = median(took[name]), 1000 * cpu[name] / options.turns
        over = [f"{ms / median(took[floor]):.2f}" for floor in floors]
        speed, work = 2 * workers * 4 * d / ms / 1e6, cpu[name] / cpu[floors[0]]
        print(f"{name:24}{ms:>10.1f}{each:>10.1f}{speed:>8.2f}{over[0]:>9}{work:>7.2f}{over[1]:>8}", flush=True)


if __name__ == "__main__":
    main()
