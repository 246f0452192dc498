"""Training loops as users write them, for the tests of `fedgossip.join`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from commands import free_ports
from torch import nn

import fedgossip
from fedgossip.drivers.loops.loop_handle import JoinedLoop
from fedgossip.net.endpoints import Endpoint, block
from fedgossip.net.identity import Identity

STEPS = 13
"""Of a loop; with two local steps six exchanges and one more at the end."""


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


def batches(node: int, steps: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(node)
    xs = [torch.randn(16, 4, generator=draw) for _ in range(steps)]
    return [(x, x.sum(1, keepdim=True)) for x in xs]


Join = Callable[[nn.Module, Any], JoinedLoop]


def train(model: nn.Module, node: int, joined: Join | None, steps: int = STEPS, make: Any = torch.optim.Adam) -> Any:
    """A loop with Adam, or the optimizer that is given, and a scheduler; bare where `joined` is None."""
    optimizer = make(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    peer = joined(model, optimizer) if joined else None
    torch.manual_seed(7 + node)  # of the dropout
    for batch, (x, y) in enumerate(batches(peer.node if peer else node, steps)):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if peer:
            peer.step(examples=len(x))
            peer.log(loss=loss, rate=scheduler.get_last_lr()[0], batch=batch)
    if peer:
        peer.close()
    return peer


def loop(**how: Any) -> Callable[[], None]:
    """A whole loop, as `simulate_loop` takes it."""

    def run() -> None:
        train(net(), 0, fedgossip.join, **how)

    return run


def ring(n: int = 4, steps: int = 2, **more: Any) -> dict[str, Any]:
    """An experiment of loops."""
    return {
        "topology": {"graph": "ring" if n > 1 else "none", "n": n},
        "rounds": 1000,
        "task": {"kind": "loop"},
        "train": {"local_steps": steps},
        "eval": {"every": 3},
        "algorithm": {"deadline": 20.0, **more.pop("algorithm", {})},
        **more,
    }


class Machines:
    """Loops in threads of this process, joined over sockets by an experiment file, as on several machines."""

    def __init__(self, folder: Path, experiment: dict[str, Any]) -> None:
        import tomli_w

        self.folder, self.n = folder, experiment["topology"]["n"]
        (folder / "lan.toml").write_text(tomli_w.dumps(experiment))
        blocks = []
        for node, port in enumerate(free_ports(self.n)):
            identity = Identity.new()
            identity.save(folder / f"{node}.key")
            blocks.append(block(node, Endpoint(f"tcp://127.0.0.1:{port}", identity.public)))
        (folder / "endpoints.toml").write_text("\n".join(blocks))

    def join(self, node: int, **more: Any) -> Callable[[nn.Module, Any], JoinedLoop]:
        def joined(model: nn.Module, optimizer: Any) -> JoinedLoop:
            place = {"endpoints": self.folder / "endpoints.toml", "key": self.folder / f"{node}.key"}
            where = {"experiment": self.folder / "lan.toml", "out": self.folder / f"out{node}", **place}
            return fedgossip.join(model, optimizer, node=node, name=f"{self.folder}/{node}", **where, **more)

        return joined

    def run(self, bodies: dict[int, Callable[[], object]], seconds: float = 60) -> dict[int, object]:
        """Run each body in a thread, for so long at most; return what each returned or raised."""
        found: dict[int, object] = {}

        def body(node: int) -> None:
            try:
                found[node] = bodies[node]()
            except BaseException as error:
                found[node] = error

        threads = [threading.Thread(target=body, args=(node,), daemon=True) for node in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds)
        return found
