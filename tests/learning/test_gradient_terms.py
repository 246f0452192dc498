"""What FedProx and SCAFFOLD add to a loop's gradients, however its steps are made; and what a vector can hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedgossip
from fedgossip.base.errors import ConfigError, FedgossipError, TrainingError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Terms
from fedgossip.learning.one_model.flat import Layout, averaged_buffers, trained_parameters
from fedgossip.learning.own_loop.parameters import Exchanged
from fedgossip.learning.own_loop.terms import GradientTerms
from fedgossip.plans import compose

PULL, RATE = 50.0, 0.01
X = torch.linspace(-1, 1, 32).reshape(8, 4)
Y = X.sum(1, keepdim=True)


def linear() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(4, 1)


def stepped(how: str, model: nn.Module, optimizer: Any) -> None:
    """Take one step of `optimizer` in one of the ways of torch."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), Y)
        loss.backward()
        return loss

    if how == "closure":
        optimizer.step(closure)
    elif how == "closure by name":
        optimizer.step(closure=closure)
    elif "scaler" in how:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # a power of two: unscaling keeps the bits
        optimizer.zero_grad()
        scaler.scale(nn.functional.mse_loss(model(X), Y)).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        closure()
        optimizer.step()


def trained(how: str, terms: Terms | None, steps: int = 5, make: Callable[..., Any] = torch.optim.SGD) -> Vector:
    """Return [5], a linear model after some steps with the terms."""
    model = linear()
    optimizer = make(model.parameters(), lr=RATE, **({"fused": True} if "fused" in how else {}))
    exchanged = Exchanged(model)
    hooks = GradientTerms(exchanged, [optimizer])
    hooks.use(terms, exchanged.read())
    for _ in range(steps):
        stepped(how, model, optimizer)
    hooks.remove()
    return exchanged.read()


def correction() -> Vector:
    return frozen(np.linspace(-1, 1, 5).astype(np.float32))


WAYS = ["closure", "closure by name", "fused", "scaler", "fused scaler"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("terms", [Terms(PULL), Terms(correction=correction(), momentum=0.0)], ids=["prox", "scaffold"])
def test_terms_move_a_loop_alike_however_its_gradients_are_made(how: str, terms: Terms) -> None:
    plain = trained("step", terms)
    np.testing.assert_allclose(trained(how, terms), plain, rtol=1e-6)
    assert np.abs(plain - trained("step", None)).max() > 0.01


def by_lightning(model: nn.Module, optimizer: Any, *, automatic: bool) -> None:
    """Five steps of Lightning's Trainer, whose automatic optimisation makes the gradients inside step()."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Training(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.automatic_optimization = model, automatic

        def training_step(self, batch: Any, _: int) -> Any:
            loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
            if not automatic:
                self.optimizers().zero_grad()
                self.manual_backward(loss)
                self.optimizers().step()
            return loss

        def configure_optimizers(self) -> Any:
            return optimizer

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_steps=5, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(Training(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), 8))


def by_hugging_face(model: nn.Module, optimizer: Any, folder: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": nn.functional.mse_loss(self.model(x), labels)}

    given = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "max_grad_norm": 0.0}
    how = transformers.TrainingArguments(str(folder), max_steps=5, per_device_train_batch_size=8, **given)
    rows = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    transformers.Trainer(model=Named(), args=how, train_dataset=rows, optimizers=(optimizer, steady)).train()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["lightning", "lightning by hand", "transformers"])
@pytest.mark.parametrize("terms", [Terms(PULL), Terms(correction=correction(), momentum=0.0)], ids=["prox", "scaffold"])
def test_terms_move_a_loop_of_a_trainer_as_one_written_out(how: str, terms: Terms, tmp_path: Path) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    exchanged = Exchanged(model)
    hooks = GradientTerms(exchanged, [optimizer])
    hooks.use(terms, exchanged.read())
    if how == "transformers":
        by_hugging_face(model, optimizer, tmp_path)
    else:
        by_lightning(model, optimizer, automatic=how == "lightning")
    hooks.remove()
    np.testing.assert_allclose(exchanged.read(), trained("step", terms), rtol=1e-5)


def test_lbfgs_ends_at_the_minimum_of_the_loss_with_its_proximal_term() -> None:
    """argmin mean (X w + b - y)^2 + mu / 2 |v - v_0|^2 solves (2 / m A'A + mu) v = 2 / m A'y + mu v_0, A = [X 1]."""

    def make(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, max_iter=30, line_search_fn="strong_wolfe", tolerance_grad=1e-10)

    a = np.hstack([X.numpy(), np.ones((8, 1))]).astype(np.float64)
    first = trained("step", None, steps=0).astype(np.float64)
    expected = np.linalg.solve(a.T @ a / 4 + 0.7 * np.eye(5), a.T @ Y.numpy().ravel() / 4 + 0.7 * first)
    np.testing.assert_allclose(trained("closure", Terms(0.7), 3, make), expected, atol=1e-4)


def test_the_pull_holds_back_an_optimizer_that_maximizes() -> None:
    def away(pull: float) -> float:
        moved = trained("step", Terms(pull), make=lambda p, lr: torch.optim.SGD(p, lr, maximize=True))
        return float(np.linalg.norm(moved - trained("step", None, steps=0)))

    assert away(PULL) < away(0.0)


def test_a_sparse_gradient_gets_its_terms_in_every_row() -> None:
    model = nn.Embedding(6, 2, sparse=True)
    exchanged, optimizer = Exchanged(model), torch.optim.SGD(model.parameters(), lr=0.5)
    hooks = GradientTerms(exchanged, [optimizer])
    first = exchanged.read()
    hooks.use(Terms(correction=frozen(np.ones(12, np.float32)), momentum=0.0), first)
    model(torch.tensor([1])).sum().backward()
    optimizer.step()
    moved = (exchanged.read() - first).reshape(6, 2)
    np.testing.assert_allclose(moved, [[-1.0] * 2 if row == 1 else [-0.5] * 2 for row in range(6)], atol=1e-6)
    adam = torch.optim.SparseAdam(model.parameters())
    GradientTerms(exchanged, [adam]).use(Terms(1.0), first)
    optimizer.zero_grad()
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match=r"'weight', and SparseAdam takes sparse gradients alone"):
        adam.step()


def test_steps_of_a_schedule_and_steps_that_were_skipped_count_by_their_rates() -> None:
    """(x - y) / (K eta) is the mean of the gradients where K eta is the sum of the rates of the steps taken."""
    model = linear()
    optimizer, exchanged = torch.optim.SGD(model.parameters(), lr=0.4), Exchanged(model)
    hooks = GradientTerms(exchanged, [optimizer])
    first = exchanged.read()
    hooks.use(Terms(correction=frozen(np.zeros(5, np.float32)), momentum=0.0), first)
    sums = np.zeros(5)
    for rate in (0.4, 0.2, 0.1):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        nn.functional.mse_loss(model(X), Y).backward()
        sums += rate * np.concatenate([p.grad.numpy().ravel() for p in model.parameters()])
        optimizer.step()
    steps, rate = hooks.measure_steps(5, lambda: True)  # two of five were skipped by a scaler
    assert steps == 3 and steps * rate == pytest.approx(0.7)
    np.testing.assert_allclose((first - exchanged.read()) / (steps * rate), sums / 0.7, atol=1e-6)


def test_weights_that_no_step_of_the_given_optimizers_changed_are_an_error() -> None:
    model = linear()
    given, other = (torch.optim.SGD(model.parameters(), lr=RATE) for _ in range(2))
    hooks = GradientTerms(exchanged := Exchanged(model), [given])
    hooks.use(Terms(PULL), exchanged.read())
    stepped("step", model, other)
    with pytest.raises(TrainingError, match="by no step of the optimizers given to join"):
        hooks.measure_steps(1, lambda: True)


def groups(model: nn.Linear) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.01}])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda m: torch.optim.Adam(m.parameters(), lr=0.1), "this loop has Adam"),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), "SGD of this loop has 0.9"),
        (lambda m: torch.optim.RMSprop(m.parameters(), lr=0.1), "this loop has RMSprop"),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, maximize=True), "maximizes"),
        (groups, r"the groups of this loop have \[0.01, 0.1\]"),
    ],
    ids=["adam", "momentum", "rmsprop", "maximize", "groups"],
)
def test_scaffold_beside_an_optimizer_that_is_no_plain_sgd_is_refused_at_the_join(make: Any, named: str) -> None:
    def loop() -> None:
        model = linear()
        fedgossip.join(model, make(model)).step()

    coordinator = {"clients": 2, "algorithm": "scaffold", "secure": {"on": False}}
    content = {"coordinator": coordinator, "rounds": 2, "task": {"kind": "loop"}, "train": {"local_steps": 1}}
    with pytest.raises(ConfigError, match=named) as caught:
        fedgossip.simulate_loop(loop, experiment=content)
    assert caught.value.advice


@pytest.mark.parametrize(
    ("algorithm", "train", "named"),
    [
        ({"algorithm": "scaffold"}, {"optimizer": "adam"}, "train.optimizer = 'adam'"),
        ({"algorithm": "scaffold"}, {"momentum": 0.9}, "train.momentum = 0.9"),
        ({"algorithm": "fednova"}, {"momentum": 0.9}, "coordinator.options.momentum = 0, and train.momentum = 0.9"),
        ({"algorithm": "fednova", "options": {"momentum": 0.9}}, {}, "and train.momentum = 0"),
    ],
)
def test_a_plan_whose_formula_is_not_of_its_local_steps_is_refused(
    algorithm: dict[str, Any], train: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        compose.plan(fedgossip.load_experiment({"coordinator": {"clients": 3, **algorithm}, "train": train}))


# --- what a vector can hold ------------------------------------------------------------------------------------------


def with_parameter(parameter: torch.Tensor) -> nn.Module:
    model = linear()
    model.register_parameter("extra", nn.Parameter(parameter))
    return model


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: with_parameter(torch.zeros(2, dtype=torch.complex64)), "'extra' is torch.complex64"),
        (lambda: nn.LazyLinear(3), "has no shape yet"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d()), "has no shape yet"),
        (lambda: nn.Linear(2, 2, device="meta"), "has no values"),
        (lambda: with_parameter(torch.ones(1).expand(3)), "'extra' is expanded"),
    ],
    ids=["complex", "lazy", "lazy buffers", "meta", "expanded"],
)
@pytest.mark.parametrize("read", [Exchanged, Layout.from_module], ids=["loop", "file"])
def test_tensors_that_no_vector_can_hold_are_refused_by_name(read: Any, make: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        read(make())
    assert caught.value.advice


def test_a_mask_with_infinities_stays_and_statistics_travel() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(3))
    model.register_buffer("table", torch.ones(2), persistent=False)
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert list(Layout.from_module(model).names) == list(Exchanged(model).layout.names) == names
    assert [name for name, _ in trained_parameters(model)] + [name for name, _ in averaged_buffers(model)] == names


class Named(nn.Module):
    """A model with an attribute of the name that wrappers of torch use."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.head = nn.Linear(2, 2), nn.Linear(2, 1)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda m: m,
        nn.DataParallel,
        torch.optim.swa_utils.AveragedModel,
        lambda m: torch.compile(m, backend="eager"),
        lambda m: torch.compile(nn.DataParallel(m), backend="eager"),
    ],
    ids=["bare", "parallel", "averaged", "compiled", "both"],
)
def test_names_agree_through_wrappers_and_an_attribute_called_module_keeps_its_name(wrap: Any) -> None:
    assert list(Exchanged(wrap(Named())).layout.names) == ["module.weight", "module.bias", "head.weight", "head.bias"]


# --- the words of join() and step() ----------------------------------------------------------------------------------


def simulated(loop: Callable[[], None], weighting: str = "examples", **secure: Any) -> Any:
    coordinator = {"clients": 3, "options": {"weighting": weighting}, "secure": {"on": bool(secure), **secure}}
    content = {"coordinator": coordinator, "rounds": 2, "task": {"kind": "loop"}, "train": {"local_steps": 2}}
    return fedgossip.simulate_loop(loop, experiment=content)


def test_a_parameter_that_thaws_after_the_join_ends_the_round_by_its_name() -> None:
    def loop() -> None:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), linear())
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with fedgossip.join(model, optimizer) as peer:
            for _ in range(4):
                model[0].requires_grad_(peer.round > 0)
                stepped("step", model, optimizer)
                peer.step()

    with pytest.raises(FedgossipError, match=r"'0.weight' trains now, was frozen at join"):
        simulated(loop)


def test_a_layer_that_is_added_after_the_join_ends_the_round_by_its_name() -> None:
    def loop() -> None:
        model = nn.Sequential(linear())
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with fedgossip.join(model, optimizer) as peer:
            model.append(nn.Linear(1, 1))
            optimizer.add_param_group({"params": model[1].parameters()})
            for _ in range(4):
                stepped("step", model, optimizer)
                peer.step()

    with pytest.raises(FedgossipError, match=r"'1.weight' trains now, was added after join"):
        simulated(loop)


def test_a_buffer_that_changes_its_size_is_named_as_one() -> None:
    model = linear()
    model.register_buffer("seen", torch.zeros(2))
    exchanged = Exchanged(model)
    model.seen = torch.zeros(3)
    with pytest.raises(ConfigError, match=r"the buffer 'seen' was \[2\] of float32 and is \[3\]") as caught:
        exchanged.read()
    assert "persistent=False" in caught.value.advice


def test_weights_that_were_replaced_in_the_model_and_not_in_the_optimizer_are_reported_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def loop() -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with fedgossip.join(model, optimizer) as peer:
            for step in range(8):
                if step == 2:
                    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
                stepped("step", model, optimizer)
                peer.step()

    simulated(loop)
    words = capfd.readouterr().err
    assert words.count("node 0: no parameter changed in 2 steps") == 1
    assert "Does the optimizer hold the model's parameters?" in words


@pytest.mark.parametrize("score", [torch.ones(2), [1, 2], "high", None])
def test_a_score_that_is_no_number_is_refused_by_its_name(score: Any) -> None:
    def loop() -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with fedgossip.join(model, optimizer) as peer:
            peer.evaluate(lambda _: {"accuracy": score})
            for _ in range(4):
                stepped("step", model, optimizer)
                peer.step()

    with pytest.raises(FedgossipError, match="evaluate: 'accuracy' is no number"):
        simulated(loop)


@pytest.mark.parametrize("examples", [-3, 2.5, float("nan"), "many", None, torch.ones(2)])
def test_examples_that_are_no_count_are_refused(examples: Any) -> None:
    def loop() -> None:
        model = linear()
        fedgossip.join(model, torch.optim.SGD(model.parameters(), lr=RATE)).step(examples=examples)

    with pytest.raises(ConfigError, match="is no number of examples"):
        simulated(loop)


def test_counts_of_other_libraries_are_counts() -> None:
    def loop() -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with fedgossip.join(model, optimizer) as peer:
            for count in (np.int64(8), torch.tensor(8), 8.0, 8):
                stepped("step", model, optimizer)
                peer.step(examples=count)

    assert simulated(loop).summary["status"] == "finished"


def counting(first: int, others: int) -> Callable[[], None]:
    """Return a loop of four steps with these numbers of examples, at participant 0 and at the others."""

    def loop() -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with fedgossip.join(model, optimizer) as peer:
            for _ in range(4):
                stepped("step", model, optimizer)
                peer.step(examples=others if peer.node else first)

    return loop


@pytest.mark.parametrize(("weighting", "refused"), [("examples", True), ("clients", False)])
def test_a_round_without_examples_is_refused_where_examples_are_weights(weighting: str, refused: bool) -> None:
    with pytest.raises(ConfigError, match="node 1, round 0: 0 examples") if refused else contextlib.nullcontext():
        simulated(counting(8, 0), weighting)


def test_more_examples_than_a_secure_sum_counts_are_refused_by_the_key() -> None:
    with pytest.raises(ConfigError, match="120 examples, and a secure sum counts at most 100") as caught:
        simulated(counting(60, 60), weight_max=100)
    assert "coordinator.secure.weight_max" in caught.value.advice


@pytest.mark.parametrize(
    ("model", "optimizer", "named"),
    [
        (linear(), None, "the optimizer is None"),
        (linear(), torch.optim.SGD, "the optimizer is the class SGD"),
        (linear(), {"a": 1}, "the optimizer is a dict"),
        ([linear(), linear()], None, "the model is several models"),
        ({}, None, "the model is a dict"),
    ],
)
def test_join_says_itself_what_it_was_given(model: Any, optimizer: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        fedgossip.join(model, optimizer)
    assert "Give join()" in caught.value.advice
