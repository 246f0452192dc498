"""Adapters of low rank in loops of one's own: what travels, and that its mean is the mean of the products."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loops_kit import ring
from torch import nn

import fedgossip
from fedgossip.algorithms.federated.adapter_distance import half_of, other_half, product_name
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import frozen
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.learning.own_loop.adapters import AdapterProducts, MergedProducts, prepare
from fedgossip.learning.own_loop.parameters import Exchanged
from fedgossip.runs.run_directory import Run

WIDTH, OUT = 12, 10


class LowRank(nn.Module):
    """A frozen layer and an adapter beside it, as loralib's."""

    def __init__(self, rank: int = 2, scaling: float = 1.0) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, OUT)
        self.base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, WIDTH) / WIDTH**0.5)
        self.lora_B = nn.Parameter(torch.zeros(OUT, rank))
        self.scaling = scaling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.scaling * (x @ self.lora_A.T @ self.lora_B.T)

    def product(self) -> np.ndarray:
        return (self.scaling * self.lora_B @ self.lora_A).detach().numpy().copy()

    def whole(self) -> np.ndarray:
        return self.base.weight.detach().numpy() + self.product()


def model(rank: int = 2, scaling: float = 1.0) -> LowRank:
    torch.manual_seed(3)
    base = nn.Linear(WIDTH, OUT).state_dict()
    torch.manual_seed(4)
    made = LowRank(rank, scaling)
    made.base.load_state_dict(base)
    return made


def node() -> int:
    return int(os.environ["FEDGOSSIP_NODE"])


def train(made: nn.Module, number: int, peer: Any, steps: int, optimizer: torch.optim.Optimizer) -> None:
    """Fit a map of rank 3 that differs by participant."""
    draw = torch.Generator().manual_seed(number)
    x, wished = torch.randn(32, WIDTH, generator=draw), torch.randn(WIDTH, 3, generator=draw)
    y = x @ wished @ torch.randn(3, OUT, generator=draw)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(made(x), y).backward()
        optimizer.step()
        if peer:
            peer.step(examples=32)


def adapting(
    held: dict[int, LowRank] | None = None, steps: int = 6, ranks: tuple[int, ...] = (2,), **how: Any
) -> Callable[[], None]:
    def run() -> None:
        made = model(ranks[node() % len(ranks)], 2.0)
        optimizer = torch.optim.AdamW([p for p in made.parameters() if p.requires_grad], 0.05)
        peer = fedgossip.join(made, optimizer, **how)
        train(made, peer.node, peer, steps, optimizer)
        peer.close()
        if held is not None:
            held[peer.node] = made

    return run


def federation(rounds: int = 1, steps: int = 6, *, secure: bool = False, **task: Any) -> dict[str, Any]:
    coordinator = {"clients": 4, "secure": {"on": secure}}
    kind = {"kind": "loop", **task}
    return {"coordinator": coordinator, "rounds": rounds, "task": kind, "train": {"local_steps": steps}}


def alone(rank: int = 2, ffa: bool = False) -> list[LowRank]:
    """The models of the four participants after their first round, by the bare loop."""
    made = [model(rank, 2.0) for _ in range(4)]
    for number, one in enumerate(made):
        one.lora_A.requires_grad_(not ffa)
        train(one, number, None, 6, torch.optim.AdamW([p for p in one.parameters() if p.requires_grad], 0.05))
    return made


def test_names_of_adapters_are_those_of_the_libraries() -> None:
    for a, b in (
        ("q.lora_A.default.weight", "q.lora_B.default.weight"),
        ("lora_A", "lora_B"),
        ("x.lora_a.weight", "x.lora_b.weight"),
        ("e.lora_embedding_A.default", "e.lora_embedding_B.default"),
    ):
        assert (half_of(a), half_of(b), other_half(a), other_half(b)) == ("a", "b", b, a)
    assert product_name("q.lora_B.default.weight") == "q.lora_BA.default.weight"
    assert not half_of("explora_A.weight") and not half_of("q.lora_Another.weight")


@pytest.mark.parametrize("secure", [False, True])
def test_with_a_frozen_the_mean_of_b_is_the_mean_of_the_products(secure: bool) -> None:
    held: dict[int, LowRank] = {}
    run = fedgossip.simulate_loop(adapting(held, exchange="lora"), experiment=federation(secure=secure))
    expected = np.mean([one.product() for one in alone(ffa=True)], axis=0)
    assert run.summary["parameters"] == OUT * 2  # B alone
    b = run.vectors[-1].reshape(OUT, 2)
    found = 2.0 * b @ model().lora_A.detach().numpy()
    assert found == pytest.approx(expected, abs=1e-3 if secure else 1e-6)
    assert all(torch.equal(one.lora_A, model().lora_A) for one in held.values())


def test_both_halves_averaged_apart_are_not_the_mean_of_the_products() -> None:
    run = fedgossip.simulate_loop(adapting(exchange="lora:both"), experiment=federation())
    found = 2.0 * run.vectors[-1][2 * WIDTH :].reshape(OUT, 2) @ run.vectors[-1][: 2 * WIDTH].reshape(2, WIDTH)
    products = [one.product() for one in alone()]
    mean = np.mean(products, axis=0)
    distance = float(np.linalg.norm(found - mean) / np.linalg.norm(mean))
    measured = [row.logged["adapter_distance"] for row in rows(run) if row.logged]
    assert distance > 0.05 and measured == [pytest.approx(distance, rel=1e-4)]
    events = [row.value for row in run.rows if isinstance(row, EventRow) and row.name == "adapters_apart"]
    assert events == [{"percent": round(100 * distance, 1)}]
    for exact in (adapting(exchange="lora"), adapting(exchange="lora:product")):
        quiet = fedgossip.simulate_loop(exact, experiment=federation())
        assert not [row for row in rows(quiet) if row.logged]


@pytest.mark.parametrize("secure", [False, True])
def test_products_are_averaged_and_each_participant_cuts_the_mean_to_its_rank(secure: bool) -> None:
    loops = adapting(steps=12, exchange="lora:product")
    run = fedgossip.simulate_loop(loops, experiment=federation(2, secure=secure))
    products = [one.product() for one in alone()]
    mean = np.mean(products, axis=0)
    values = np.linalg.svd(mean, compute_uv=False)
    kept = {row.logged["kept_energy"] for row in rows(run) if row.logged and "kept_energy" in row.logged}
    assert len(kept) == 1  # in the second round all have cut one mean
    assert kept.pop() == pytest.approx((values[:2] ** 2).sum() / (values**2).sum(), abs=1e-3)
    assert run.summary["parameters"] == OUT * WIDTH


def rows(run: Run) -> list[PeerRow]:
    return [row for row in run.rows if isinstance(row, PeerRow)]


def test_participants_of_unlike_ranks_share_one_mean_of_products() -> None:
    loops = adapting(steps=12, ranks=(1, 3), exchange="lora:product")
    run = fedgossip.simulate_loop(loops, experiment=federation(2))
    kept = {row.peer: row.logged["kept_energy"] for row in rows(run) if row.logged and "kept_energy" in row.logged}
    assert kept[0] < kept[1] <= 1.0 and kept[0] == kept[2]
    with pytest.raises(ConfigError, match="have different models: 'lora_B'"):
        fedgossip.simulate_loop(adapting(ranks=(1, 3), exchange="lora"), experiment=federation())


@pytest.mark.parametrize("form", ["lora:ffa", "lora:product", "lora:stack"])
def test_adapters_travel_over_gossip_too(form: str) -> None:
    held: dict[int, LowRank] = {}
    run = fedgossip.simulate_loop(adapting(held, exchange=form), experiment=ring(4, steps=2))
    again = fedgossip.simulate_loop(adapting(exchange=form), experiment=ring(4, steps=2))
    assert run.summary["status"] == "finished" and run.digest == again.digest
    apart = [one.product() for one in alone(ffa=form == "lora:ffa")]
    spread = lambda models: float(np.std(models, axis=0).mean())  # noqa: E731
    assert spread([one.whole() - model().whole() for one in held.values()]) < 0.8 * spread(apart)


@pytest.mark.parametrize("secure", [False, True])
def test_a_whole_mean_of_products_is_added_to_the_weight_and_the_adapters_start_again(secure: bool) -> None:
    """Means of rank 8 in two rounds, of ranks 1 and 3: the twin adds each to the weight, and nothing is cut."""
    held: dict[int, LowRank] = {}
    loops = adapting(held, steps=12, ranks=(1, 3), exchange="lora:stack")
    run = fedgossip.simulate_loop(loops, experiment=federation(2, secure=secure))
    twins = [model((1, 3)[number % 2], 2.0) for number in range(4)]
    steppers = [torch.optim.AdamW([p for p in one.parameters() if p.requires_grad], 0.05) for one in twins]
    total = np.zeros((OUT, WIDTH), np.float32)
    for _ in range(2):
        for number, (one, optimizer) in enumerate(zip(twins, steppers, strict=True)):
            train(one, number, None, 6, optimizer)
        total = total + np.mean([one.product() for one in twins], axis=0)
        for one in twins:
            with torch.no_grad():
                one.base.weight.copy_(model().base.weight + torch.from_numpy(total))
                one.lora_A.copy_(model(one.lora_A.shape[0]).lora_A)
                one.lora_B.zero_()
    close = {"abs": 1e-3 if secure else 2e-5}
    assert run.vectors[-1].reshape(OUT, WIDTH) == pytest.approx(total, **close)
    assert np.linalg.matrix_rank(total.astype(np.float64), tol=1e-3) > 3
    assert all(one.whole() == pytest.approx(twins[0].whole(), **close) for one in held.values())


def test_measuring_a_stacked_mean_leaves_model_and_adapters_to_the_bit() -> None:
    made = model()
    exchanged = MergedProducts(made)
    exchanged.write(frozen(np.full(OUT * WIDTH, 0.1, np.float32)))
    with torch.no_grad():
        made.lora_B.normal_(generator=torch.Generator().manual_seed(1))
    before, vector, kept = {k: v.clone() for k, v in made.state_dict().items()}, exchanged.read(), exchanged.snapshot()
    exchanged.write(frozen(np.ones(OUT * WIDTH, np.float32)))
    assert exchanged.read().tolist() == [1.0] * OUT * WIDTH
    exchanged.restore(kept)
    assert all(torch.equal(before[name], value) for name, value in made.state_dict().items())
    assert np.array_equal(exchanged.read(), vector)


def test_a_weight_that_no_product_can_be_added_to_is_refused() -> None:
    trains, shared, none = model(), model(), model()
    trains.base.weight.requires_grad_(True)
    shared.other = shared.base
    del none.base
    for made, text in (
        (trains, "trains itself"),
        (shared, "is shared: base.weight, other.weight"),
        (none, "no weight"),
    ):
        with pytest.raises(ConfigError, match=text) as caught:
            MergedProducts(made)
        assert "lora:product" in caught.value.advice


def test_the_run_names_the_form_where_the_script_does_not() -> None:
    script = fedgossip.simulate_loop(adapting(exchange="lora"), experiment=federation())
    named = fedgossip.simulate_loop(adapting(), experiment=federation(exchange="lora:ffa"))
    assert script.digest == named.digest


def test_measuring_a_mean_of_products_leaves_the_adapters_to_the_bit() -> None:
    made = model()
    with torch.no_grad():
        made.lora_B.normal_(generator=torch.Generator().manual_seed(1))
    exchanged = AdapterProducts(made)
    before = made.lora_A.clone(), made.lora_B.clone()
    kept = exchanged.snapshot()
    exchanged.write(frozen(np.ones(OUT * WIDTH, np.float32)))
    assert exchanged.kept == pytest.approx(1.0)  # ones are of rank one
    assert made.product() == pytest.approx(np.ones((OUT, WIDTH)), abs=1e-6)
    exchanged.restore(kept)
    assert torch.equal(made.lora_A, before[0]) and torch.equal(made.lora_B, before[1])


def test_a_product_of_zeros_keeps_a_so_that_b_can_train() -> None:
    made = model()
    exchanged = AdapterProducts(made)
    before = made.lora_A.clone()
    exchanged.write(frozen(np.zeros(OUT * WIDTH, np.float32)))
    assert torch.equal(made.lora_A, before) and not made.lora_B.any()


def test_the_cut_is_the_nearest_of_its_rank_whatever_the_scaling() -> None:
    made = model(3, scaling=0.5)
    whole = np.random.default_rng(0).normal(size=(OUT, WIDTH)).astype(np.float32)
    exchanged = AdapterProducts(made)
    exchanged.write(frozen(whole.ravel()))
    left, values, right = np.linalg.svd(whole.astype(np.float64))
    nearest = left[:, :3] * values[:3] @ right[:3]
    assert exchanged.read().reshape(OUT, WIDTH) == pytest.approx(nearest, abs=1e-5)
    assert made.product() == pytest.approx(nearest, abs=1e-5)


@pytest.mark.parametrize("form", ["lora:ffa", "lora:product"])
def test_a_rank_above_the_layer_is_refused(form: str) -> None:
    with pytest.raises(ConfigError, match="'lora_A' has rank 11, above its layer of 10 x 12"):
        prepare(model(11), form)


def test_what_is_no_adapter_is_refused_by_its_names() -> None:
    with pytest.raises(ConfigError, match="no B of an adapter trains") as caught:
        prepare(nn.Linear(2, 2), "lora:ffa")
    assert "weight, bias" in caught.value.advice
    halved = model()
    del halved.lora_A
    with pytest.raises(ConfigError, match="'lora_B' has no 'lora_A'"):
        prepare(halved, "lora:ffa")
    still = model()
    nn.init.zeros_(still.lora_A)
    with pytest.raises(ConfigError, match="the A of 'lora_A' is zero"):
        prepare(still, "lora:ffa")
    unlike = model()
    unlike.lora_B = nn.Parameter(torch.zeros(OUT, 3))
    with pytest.raises(ConfigError, match=r"A is \[2, 12\] and B is \[10, 3\]"):
        prepare(unlike, "lora:both")
    unscaled = model(scaling=0.0)
    with pytest.raises(ConfigError, match=r"the scaling of 'lora_B' is 0\.0"):
        AdapterProducts(unscaled)
    frozen_a = model()
    frozen_a.lora_A.requires_grad_(False)
    with pytest.raises(ConfigError, match="'lora_B' travels and 'lora_A' does not"):
        AdapterProducts(frozen_a)


def test_a_stale_gradient_of_a_moves_nothing() -> None:
    made = model()
    made.lora_A.grad = torch.ones_like(made.lora_A)
    optimizer = torch.optim.SGD(list(made.parameters()), 0.1)
    prepare(made, "lora:ffa")
    before = made.lora_A.clone()
    optimizer.step()
    assert torch.equal(made.lora_A, before)
    assert Exchanged(made).layout.names == ("lora_B",)


def test_other_uses_are_refused() -> None:
    with pytest.raises(ConfigError, match="one form of adapters at a time"):
        fedgossip.simulate_loop(adapting(exchange=["lora:ffa", "lora:product"]), experiment=federation())
    with pytest.raises(ConfigError, match=r"task\.exchange = 'lora' is of a training loop's adapters"):
        fedgossip.load_experiment({"topology": {"graph": "ring", "n": 3}, "task": {"exchange": "lora"}})
    with pytest.raises(ConfigError, match="'lora:stacks' is no form") as caught:
        fedgossip.simulate_loop(adapting(exchange="lora:stacks"), experiment=federation())
    assert "lora:product averages adapters of unlike ranks" in caught.value.advice
    records = federation(exchange="lora:ffa")
    records["coordinator"] |= {"privacy": {"unit": "record"}}
    with pytest.raises(ConfigError, match="single records of a loop of your own cannot be hidden") as caught:
        fedgossip.load_experiment(records)
    assert "model.source" in caught.value.advice
    pulled = federation()
    pulled["coordinator"] |= {"algorithm": "fedprox", "options": {"mu": 0.1}}
    with pytest.raises(ConfigError, match="has none for the factors of a product"):
        fedgossip.simulate_loop(adapting(exchange="lora:product"), experiment=pulled)
