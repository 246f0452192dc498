"""A loop whose model several processes train: DDP, and FSDP's fully_shard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from commands import typed
from torch import nn

from fedgossip.base.errors import ConfigError
from fedgossip.learning.own_loop import terms

SCRIPT = """
import hashlib, json, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import fedgossip

dist.init_process_group("gloo")
torch.manual_seed(0)
base = nn.Linear(4, 5).requires_grad_(False)
model = nn.Sequential(base, nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
if sys.argv[1] == "ddp":
    model = DistributedDataParallel(model)
else:
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    for layer in (model[1], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)


def whole():
    values = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters() if p.requires_grad]
    return torch.cat([value.detach().reshape(-1) for value in values])


def measure(model):
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(torch.ones(3, 4)), torch.ones(3, 1)).item()
    return {"loss": loss, "accuracy": 1 / (1 + loss)}


peer = fedgossip.join(model, optimizer)
peer.evaluate(measure)
draw = torch.Generator().manual_seed(10 * peer.node + dist.get_rank())
seen = []
for _ in range(6):
    x = torch.randn(8, 4, generator=draw)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not peer.step(examples=len(x)):
        break
    seen.append([peer.round, hashlib.sha256(whole().numpy().tobytes()).hexdigest()])
    peer.log(loss=loss)
peer.close()
last = whole().tolist()
told = {"seen": seen, "last": last, "node": peer.node, "n": peer.n}
open(f"{peer.node}-{dist.get_rank()}.json", "w").write(json.dumps(told))
dist.barrier()  # who ends first breaks off what the other still reads
dist.destroy_process_group()
"""


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("ddp", ["--graph", "ring"]),
        pytest.param("fsdp", ["--graph", "ring", "--mode", "async"], marks=pytest.mark.long),
        pytest.param(
            "fsdp",
            ["--coordinator", "--algorithm", "scaffold", "--rounds", "3", "--set", "coordinator.secure.on=false"],
            marks=pytest.mark.long,
        ),
    ],
    ids=["ddp", "fsdp-async", "fsdp-scaffold"],
)
def test_the_ranks_of_a_loop_hold_the_same_weights_after_every_exchange(
    tmp_path: Path, how: str, kind: list[str], request: pytest.FixtureRequest
) -> None:
    from safetensors.numpy import load_file

    if how == "ddp":  # fully_shard needs the compiler's modules
        request.getfixturevalue("no_compiler")
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["launch", "-n", "2", "--ranks", "2", *kind, "--local-steps", "2", "--out", "out", "--no-report"]
    said = typed([*words, "--set", "eval.every=1", "train.py", how], tmp_path)
    assert said.code == 0, said.err + "".join(path.read_text()[-3000:] for path in tmp_path.rglob("log.txt"))
    for node in range(2):
        first, second = (json.loads((tmp_path / f"{node}-{rank}.json").read_text()) for rank in range(2))
        assert first == second and first["node"] == node and first["n"] == 2
        (vector,) = load_file(tmp_path / "out" / "peers" / f"{node:02d}" / "vector.safetensors").values()
        assert vector.shape == (5 * 7 + 7 + 7 + 1,)  # whole, whatever lies where
        assert first["last"] == vector.tolist()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["test_loss"] is not None


def test_a_wrapper_that_hides_the_shapes_of_its_parameters_is_refused_by_name() -> None:
    class FullyShardedDataParallel(nn.Module):
        """As torch's first form is called."""

    with pytest.raises(ConfigError, match="FullyShardedDataParallel hides") as caught:
        terms.check_supported(nn.Sequential(FullyShardedDataParallel()))
    assert "fully_shard" in caught.value.advice


def test_one_process_is_no_group_of_ranks() -> None:
    assert not terms.is_ranked()
    assert not torch.distributed.is_initialized()
