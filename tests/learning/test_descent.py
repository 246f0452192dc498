"""Steps on the mean gradient: the bits of local training, the papers' formulas, and layers with rates of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedgossip.algorithms.descent.base import norm
from fedgossip.algorithms.descent.methods import LAMB, LARS, SGD, Adagrad, Adam
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.task import Segment
from fedgossip.learning.one_model import optimizers
from fedgossip.learning.settings import TrainSettings
from fedgossip.protocols.servers.shard_clocks import StepPerPush

D, STEPS, RATE = 1003, 12, 0.03
LAYERS = (Segment("weight", 0, (20, 50)), Segment("bias", 1000, (3,)))


def gradients(steps: int = STEPS, kind: Any = np.float32) -> list[Vector]:
    rng = np.random.default_rng(5)
    return [frozen(rng.standard_normal(D).astype(kind)) for _ in range(steps)]


def first(kind: Any = np.float32) -> Vector:
    return frozen(np.random.default_rng(1).standard_normal(D).astype(kind))


def descended(method: Any, rate: float = RATE, kind: Any = np.float32) -> Vector:
    state = method.start(first(kind))
    for gradient in gradients(kind=kind):
        state = method.step(state, gradient, rate)
    return frozen(state.x)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (SGD(), {"optimizer": "sgd"}),
        (SGD(weight_decay=0.01), {"optimizer": "sgd", "weight_decay": 0.01}),
        (SGD(momentum=0.9), {"optimizer": "sgd", "momentum": 0.9}),
        (SGD(0.9, nesterov=True, weight_decay=0.01), {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        (Adam(), {"optimizer": "adam"}),
        (Adam(weight_decay=0.01), {"optimizer": "adam", "weight_decay": 0.01}),
        (Adam(weight_decay=0.01, decoupled=True), {"optimizer": "adamw", "weight_decay": 0.01}),
    ],
)
def test_a_step_here_has_the_bits_of_a_step_of_local_training(method: Any, settings: dict[str, Any]) -> None:
    train = TrainSettings(**{"optimizer": "sgd", **settings}, lr=RATE)
    weights = torch.from_numpy(first().copy())
    slots = [torch.zeros(D) for _ in train.slots]
    for taken, gradient in enumerate(gradients()):
        rates = optimizers.rates(train, [RATE], [taken], 1)
        given = {name: torch.tensor(float(getattr(rates, name)[0, 0])) for name in ("rate", "root", "kept")}
        optimizers.step(train, weights, torch.from_numpy(gradient.copy()), slots, **given)
    assert descended(method).tobytes() == weights.numpy().tobytes()


def reference(make: Any, **more: Any) -> Vector:
    weights = torch.nn.Parameter(torch.from_numpy(first(np.float64).copy()))
    optimizer = make([weights], lr=RATE, **more)
    for gradient in gradients(kind=np.float64):
        weights.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    return weights.detach().numpy()


def test_in_float64_they_are_the_steps_of_torch() -> None:
    close = {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(descended(Adagrad(), kind=np.float64), reference(torch.optim.Adagrad), **close)
    np.testing.assert_allclose(descended(Adam(), kind=np.float64), reference(torch.optim.Adam), **close)
    nesterov = reference(torch.optim.SGD, momentum=0.9, nesterov=True)
    np.testing.assert_allclose(descended(SGD(0.9, nesterov=True), kind=np.float64), nesterov, **close)


def test_lars_goes_a_share_of_each_layers_length_and_biases_by_the_rate_alone() -> None:
    method, x, gradient = LARS(LAYERS, momentum=0.0, trust=0.01), first(np.float64), gradients(1, np.float64)[0]
    went = method.step(method.start(x), gradient, 0.5).x - x
    assert norm(went[:1000]) == pytest.approx(0.5 * 0.01 * norm(x[:1000]))
    np.testing.assert_allclose(went[1000:], -0.5 * gradient[1000:], rtol=1e-12)


def test_lars_is_momentum_with_those_rates() -> None:
    """Algorithm 1 of the paper in plain loops."""
    method = LARS(LAYERS, momentum=0.9, weight_decay=0.1, trust=0.01)
    x, v = np.array(first(np.float64)), np.zeros(D)
    for gradient in gradients(kind=np.float64):
        for part, layer in ((slice(0, 1000), True), (slice(1000, D), False)):
            g = gradient[part] + 0.1 * x[part] if layer else gradient[part]
            bottom = np.linalg.norm(gradient[part]) + 0.1 * np.linalg.norm(x[part])
            q = 0.01 * np.linalg.norm(x[part]) / bottom if layer else 1.0
            v[part] = 0.9 * v[part] + q * RATE * g
        x -= v
    np.testing.assert_allclose(descended(method, kind=np.float64), x, rtol=1e-10, atol=1e-12)


def test_lamb_steps_each_layer_by_its_own_length() -> None:
    method, x, gradient = LAMB(LAYERS, weight_decay=0.0), first(np.float64), gradients(1, np.float64)[0]
    went = method.step(method.start(x), gradient, 0.1).x - x
    assert norm(went[:1000]) == pytest.approx(0.1 * norm(x[:1000]))
    np.testing.assert_allclose(went[1000:], -0.1 * np.sign(gradient[1000:]), rtol=1e-3)


def test_layers_without_weights_or_gradient_go_by_the_rate() -> None:
    nothing, gradient = frozen(np.zeros(D)), gradients(1, np.float64)[0]
    for method in (LARS(LAYERS), LAMB(LAYERS)):
        assert np.isfinite(method.step(method.start(nothing), gradient, 0.1).x).all()
        assert np.isfinite(method.step(method.start(gradient), nothing, 0.1).x).all()


@pytest.mark.parametrize("method", [SGD(0.9), Adam(), Adagrad(), LARS(LAYERS), LAMB(LAYERS)])
def test_what_was_given_is_not_changed_and_what_comes_is_frozen(method: Any) -> None:
    x, gradient = first(), gradients(1)[0]
    before = x.tobytes(), gradient.tobytes()
    state = method.step(method.start(x), gradient, RATE)
    assert (x.tobytes(), gradient.tobytes()) == before
    assert not state.x.flags.writeable and state.x.dtype == np.float32


@pytest.mark.parametrize("method", [SGD(0.9), SGD(), Adam(weight_decay=0.1, decoupled=True), Adagrad()])
def test_an_elementwise_method_may_be_stepped_stretch_by_stretch(method: Any) -> None:
    assert method.elementwise
    ends = []
    for part in (slice(0, 400), slice(400, D)):
        state = method.start(frozen(first()[part].copy()))
        for gradient in gradients():
            state = method.step(state, gradient[part], RATE)
        ends.append(state.x)
    assert np.concatenate(ends).tobytes() == descended(method).tobytes()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_gradient_that_is_given_up_lends_its_memory_and_changes_no_bit(momentum: float) -> None:
    x, gradient = (frozen(np.random.default_rng(k).standard_normal(100_003, np.float32)) for k in range(2))
    method = SGD(momentum)
    kept = method.step(method.start(x), gradient, 0.1)
    ours = np.array(gradient)
    stepped = method.step(method.start(x), ours, 0.1)
    assert stepped.x.tobytes() == kept.x.tobytes() and not stepped.x.flags.writeable
    assert np.shares_memory(stepped.x, ours) is not bool(momentum)
    assert not np.shares_memory(kept.x, gradient)


def test_what_a_server_tells_its_copies_is_not_stepped_in() -> None:
    """A push that came over a link is writeable, and goes on to the copies after the step."""
    pushed = np.arange(1.0, 5.0, dtype=np.float32)
    shard = StepPerPush(SGD(), frozen(np.zeros(4, np.float32)), [7], 3, None, damped=False)
    change = shard.push(7, 1.0, 0, pushed, lambda _clock: 0.5)
    shard.apply(change)
    assert shard.x.tolist() == [-0.5, -1.0, -1.5, -2.0]
    assert isinstance(change.gradient, np.ndarray) and change.gradient.tolist() == [1.0, 2.0, 3.0, 4.0]
