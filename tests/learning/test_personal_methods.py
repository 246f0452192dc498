"""The personal methods against plain loops of their papers, a closed form, and what the seam promises of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from test_federated import Run, digits

from fedgossip.algorithms.federated.names import make
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.core.task import Job, LocalTask
from fedgossip.data.data import draw_examples, load, split
from fedgossip.data.dataset import Dataset
from fedgossip.data.partitions import partition
from fedgossip.learning.analytic import Quadratic
from fedgossip.learning.one_model.batches import Batches
from fedgossip.learning.personal.logits import FedDF
from fedgossip.learning.personal.methods import METHODS, method_of
from fedgossip.learning.personal.personal_task import PersonalTask
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.task import TorchTask
from fedgossip.learning.unlike import UnlikeTasks

Numbers = npt.NDArray[np.float64]
SIZES, N, ROUNDS, STEPS, LR = (64, 8, 10), 3, 3, 3, 0.1
HEAD = np.arange(64 * 8 + 8 + 8 * 10 + 10) >= 64 * 8 + 8
HOW = TrainSettings(device="cpu", local_steps=STEPS, lr=LR)


def personal(text: str, task: LocalTask | None = None, settings: TrainSettings = HOW) -> PersonalTask:
    method = method_of("personal", text)
    task = task or (unlike(method) if isinstance(method, FedDF) else made("mlp:64-8-10"))
    return PersonalTask(task, method, settings, rounds=50, seed=1)


def made(source: str) -> TorchTask:
    return digits(source, n=N, local_steps=STEPS, lr=LR)


UNLIKE = "softmax", "mlp:64-8-10"
SIZES_OF = (64, 10), SIZES


def common() -> Dataset:
    return draw_examples(split(load("digits"), 0.2, 0)[1], "random:45", 1)


def unlike(method: FedDF) -> UnlikeTasks:
    """Nodes 0 and 2 have a softmax, node 1 an mlp."""
    test = split(load("digits"), 0.2, 0)[1]
    return UnlikeTasks(made, UNLIKE, "softmax", common(), test, HOW, method, seed=1, rounds=50)


def gradient(x: Numbers, loss: Callable[[torch.Tensor], torch.Tensor]) -> Numbers:
    given = torch.tensor(x, requires_grad=True)
    loss(given).backward()
    assert given.grad is not None
    return given.grad.numpy()


class Twin:
    """Plain loops in float64 over the batches of the task's own line; `self.w` is what the server has."""

    def __init__(self) -> None:
        self.train, _ = split(load("digits"), 0.2, 0)
        self.shares = partition("iid", self.train.y, N, seed=0)
        self.line = Batches(self.shares, HOW, 1, HOW.batch_size)
        self.w: Numbers = digits("mlp:64-8-10").initial(0).astype(np.float64)

    def batches(self, i: int, r: int) -> list[Any]:
        return self.line.plan(i, r).batches

    def batch(self, i: int, step: int) -> Any:
        return self.line.plan(i, step, 1).batches[0]

    def g(self, x: Numbers, rows: Any) -> Numbers:
        return self.loss_and_gradient(x, rows)[1]

    def loss_and_gradient(self, x: Numbers, rows: Any) -> tuple[float, Numbers]:
        given = torch.from_numpy(x).requires_grad_()
        a, h, c = SIZES
        w1, b1, w2, b2 = given.split([a * h, h, h * c, c])
        hidden = torch.relu(torch.from_numpy(self.train.x[rows]).double().reshape(-1, a) @ w1.view(h, a).T + b1)
        loss = torch.nn.functional.cross_entropy(hidden @ w2.view(c, h).T + b2, torch.from_numpy(self.train.y[rows]))
        loss.backward()
        assert given.grad is not None
        return float(loss.detach()), given.grad.numpy()

    def mean(self, sent: list[Numbers]) -> Numbers:
        weights = [len(share) for share in self.shares]
        return sum(n * one for n, one in zip(weights, sent, strict=True)) / sum(weights)  # type: ignore[no-any-return]

    def descended(self, x: Numbers, i: int, r: int, pull: float = 0.0, to: Numbers | None = None) -> Numbers:
        for rows in self.batches(i, r):
            x = x - LR * (self.g(x, rows) + (pull * (x - to) if to is not None else 0))
        return x

    # --- models of unlike sizes, and their answers to common examples ---------------------------------------------

    def outputs(self, given: torch.Tensor, i: int, x: npt.NDArray[Any]) -> torch.Tensor:
        """Return the logits of model [d] of node i, float64."""
        at, h = 0, torch.from_numpy(x).double().reshape(len(x), -1)
        pairs = list(pairwise(SIZES_OF[i % 2]))
        for number, (a, b) in enumerate(pairs):
            h = h @ given[at : at + a * b].view(b, a).T + given[at + a * b : at + a * b + b]
            h, at = torch.relu(h) if number < len(pairs) - 1 else h, at + a * b + b
        return h

    def exchange(self, loss: Callable[..., torch.Tensor], *, trained_last: bool) -> list[Numbers]:
        """FedMD, algorithm 1; FedDF, algorithm 3, each client an architecture of its own: Adam of rate 0.003, two
        passes of batches of 15, so that no signs balance, over 45 common examples."""
        x, f = common().x, [made(UNLIKE[i % 2]).initial(i).astype(np.float64) for i in range(N)]
        line = Batches({i: np.arange(45) for i in range(N)}, TrainSettings(local_epochs=2, batch_size=15), 1, 15)

        def distilled(i: int, r: int) -> Numbers:
            v, first, second = f[i], 0.0, 0.0
            for k, rows in enumerate(line.plan(i, r).batches, 1):
                g = gradient(v, lambda v, rows=rows: loss(self.outputs(v, i, x[rows]), torch.from_numpy(z[rows])))
                first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
                v = v - 0.003 * first / (1 - 0.9**k) / (np.sqrt(second / (1 - 0.999**k)) + 1e-8)
            return v

        def of_labels(v: torch.Tensor, rows: Any, i: int) -> torch.Tensor:
            given = self.outputs(v, i, self.train.x[rows])
            return torch.nn.functional.cross_entropy(given, torch.from_numpy(self.train.y[rows]))

        for r in range(ROUNDS):
            if r:
                f = [distilled(i, r) for i in range(N)]
            for i in range(N):
                for rows in self.batches(i, r):
                    f[i] = f[i] - LR * gradient(f[i], lambda v, rows=rows, i=i: of_labels(v, rows, i))
            z = self.mean([self.outputs(torch.from_numpy(f[i]), i, x).numpy() for i in range(N)])
        self.w = z.reshape(-1) / 32
        return f if trained_last else [distilled(i, 49) for i in range(N)]

    def fedmd(self) -> list[Numbers]:
        return self.exchange(lambda ours, theirs: (ours - theirs).abs().mean(), trained_last=True)

    def feddf(self) -> list[Numbers]:
        def divergence(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
            p, q = (theirs / 2).softmax(-1), (ours / 2).log_softmax(-1)
            return 4 * (p * (p.log() - q)).sum(-1).mean()  # temperature 2, times its square

        return self.exchange(divergence, trained_last=False)

    # --- the methods: what each answers with after the rounds ---------------------------------------------------------

    def finetune(self) -> list[Numbers]:
        for r in range(ROUNDS):
            self.w = self.mean([self.descended(self.w, i, r) for i in range(N)])
        return [self.descended(self.descended(self.w, i, 0), i, 1) for i in range(N)]

    def ditto(self) -> list[Numbers]:
        v = [self.w] * N
        for r in range(ROUNDS):
            v = [self.descended(v[i], i, r, 0.5, self.w) for i in range(N)]
            self.w = self.mean([self.descended(self.w, i, r) for i in range(N)])
        return v

    def mr_mtl(self) -> list[Numbers]:
        v = [self.w] * N
        for r in range(ROUNDS):
            v = [self.descended(v[i], i, r, 0.5, self.w) for i in range(N)]
            self.w = self.mean(v)
        return v

    def apfl(self) -> list[Numbers]:
        v, alpha = [self.w] * N, [0.5] * N
        for r in range(ROUNDS):
            sent = []
            for i in range(N):
                w = self.w
                for k in range(STEPS):
                    rows = self.batch(i, r * STEPS + k)
                    g = self.g(alpha[i] * v[i] + (1 - alpha[i]) * w, rows)
                    if k == 0:
                        alpha[i] = min(1.0, max(0.0, alpha[i] - LR * float((v[i] - w) @ g)))
                    v[i], w = v[i] - LR * alpha[i] * g, w - LR * self.g(w, rows)
                sent.append(w)
            self.w = self.mean(sent)
        return [alpha[i] * v[i] + (1 - alpha[i]) * self.w for i in range(N)]

    def fedrep(self) -> list[Numbers]:
        heads = [self.w[HEAD]] * N
        first = self.w
        for r in range(ROUNDS):
            sent = []
            for i in range(N):
                x = self.w.copy()
                x[HEAD] = heads[i]
                for k in range(2 + STEPS):
                    x = x - LR * np.where(HEAD if k < 2 else ~HEAD, self.g(x, self.batch(i, r * (2 + STEPS) + k)), 0)
                heads[i] = x[HEAD]
                sent.append(x)
            self.w = np.where(HEAD, first, self.mean(sent))
        whole = [np.concatenate([self.w[~HEAD], head]) for head in heads]
        self.w = self.w[~HEAD]
        return whole

    def pfedme(self) -> list[Numbers]:
        theta = [self.w] * N
        for r in range(ROUNDS):
            sent = []
            for i in range(N):
                w = self.w
                for k in range(STEPS):
                    theta[i] = w
                    for _ in range(4):
                        rows = self.batch(i, r * STEPS + k)
                        theta[i] = theta[i] - LR * (self.g(theta[i], rows) + 2 * (theta[i] - w))
                    w = w - 0.2 * 2 * (w - theta[i])
                sent.append(w)
            self.w = self.mean(sent)
        return theta

    def ifca(self) -> list[Numbers]:
        self.w = personal("ifca?clusters=3").initial(0).astype(np.float64)
        for r in range(ROUNDS):
            sent = []
            for i in range(N):
                parts = np.split(self.w, 3)
                j = self.cluster(i, r)
                parts[j] = self.descended(parts[j], i, r)
                sent.append(np.concatenate(parts))
            self.w = self.mean(sent)
        return [np.split(self.w, 3)[self.cluster(i, 49)] for i in range(N)]

    def cluster(self, i: int, r: int) -> int:
        of = [np.mean([self.loss_and_gradient(x, rows)[0] for rows in self.batches(i, r)]) for x in np.split(self.w, 3)]
        return int(np.argmin(of))


TWINS: dict[str, Callable[[Twin], list[Numbers]]] = {
    "finetune?epochs=2": Twin.finetune,
    "ditto?lambda=0.5": Twin.ditto,
    "mr-mtl?lambda=0.5": Twin.mr_mtl,
    "apfl": Twin.apfl,
    "fedrep?steps=2": Twin.fedrep,
    "pfedme?lambda=2&steps=4&rate=0.2": Twin.pfedme,
    "ifca?clusters=3": Twin.ifca,
    "feddf?epochs=2&batch=15&rate=0.003&temperature=2": Twin.feddf,
    "fedmd?epochs=2&batch=15&rate=0.003": Twin.fedmd,
}


def test_every_method_has_a_twin() -> None:
    assert {text.partition("?")[0] for text in TWINS} == set(METHODS)


@pytest.mark.parametrize("text", TWINS)
def test_a_method_is_the_plain_loop_of_its_paper(text: str) -> None:
    twin, task = Twin(), personal(text)
    run = Run(make("fedavg", clients=N), task)
    for _ in range(ROUNDS):
        run.go([2, 0, 1])
    answers = TWINS[text](twin)
    near = 1e-5 if "batch=" in text else 1e-6  # Adam divides rounding by small gradients
    np.testing.assert_allclose(run.x, twin.w, atol=near)
    for i, answer in enumerate(answers):
        np.testing.assert_allclose(task.personal_model(i, run.x), answer, atol=near)


def test_ditto_on_quadratics_ends_at_its_fixed_point() -> None:
    """f_i = 1/2 ||v - b_i||^2: w is the mean of the b_i, and v_i = (b_i + lambda w) / (1 + lambda)."""
    problem = Quadratic(5, 4, placement="random", eta=0.3, seed=3)
    task = personal("ditto?lambda=0.7", problem)
    run = Run(make("fedavg", clients=5), task)
    for _ in range(120):
        run.go([0, 1, 2, 3, 4])
    w = problem.b.mean(axis=0)
    np.testing.assert_allclose(run.x, w, atol=1e-12)
    for i in range(5):
        np.testing.assert_allclose(task.personal_model(i, run.x), (problem.b[i] + 0.7 * w) / 1.7, atol=1e-12)


def test_mean_regularised_quadratics_end_at_theirs() -> None:
    """At the fixed point (1 + lambda) v_i = b_i + lambda mean(v), so the means agree and v_i is as Ditto's."""
    problem = Quadratic(5, 4, placement="random", eta=0.3, seed=4)
    task = personal("mr-mtl?lambda=2", problem)
    run = Run(make("fedavg", clients=5), task)
    for _ in range(150):
        run.go([0, 1, 2, 3, 4])
    w = problem.b.mean(axis=0)
    for i in range(5):
        np.testing.assert_allclose(task.personal_model(i, run.x), (problem.b[i] + 2 * w) / 3, atol=1e-12)


@pytest.mark.parametrize("text", TWINS)
def test_a_job_has_the_same_bits_alone_and_with_others_and_after_its_state_was_restored(text: str) -> None:
    together, alone = personal(text), personal(text)
    x = together.initial(0)
    for r in range(2):
        updates = together.train([Job(i, r, x) for i in range(N)])
        state, restored = dict(alone.state(1)), personal(text)
        restored.load_state(1, state)
        for task in (alone, restored):
            assert np.array_equal(task.train([Job(1, r, x)])[0].difference, updates[1].difference)  # type: ignore[arg-type]
        assert np.array_equal(restored.personal_model(1, x), together.personal_model(1, x))


class Failing(TorchTask):
    """Fails in one of its trainings, and keeps what it was asked to remember meanwhile."""

    fails, seen = 99, 0
    watch: Callable[[], None] = staticmethod(lambda: None)

    def train(self, jobs: Any) -> Any:
        self.seen += 1
        self.watch()
        if self.seen == self.fails:
            raise TrainingError("out of memory", "")
        return super().train(jobs)


def test_a_job_that_failed_midway_is_repeated_and_a_state_read_meanwhile_is_that_before_it() -> None:
    base = digits("mlp:64-8-10", n=N, local_steps=STEPS, lr=LR, momentum=0.9)
    base.__class__ = Failing
    assert isinstance(base, Failing)
    task, x = personal("ditto", base), base.initial(0)
    task.train([Job(0, 0, x)])
    before = dict(task.state(0))
    states: list[Any] = []
    base.watch = lambda: states.append(task.state(0))  # type: ignore[method-assign]
    base.fails = base.seen + 2  # the training of the own model
    with pytest.raises(TrainingError):
        task.train([Job(0, 1, x)])
    task.train([Job(0, 1, x)])
    whole = personal("ditto", digits("mlp:64-8-10", n=N, local_steps=STEPS, lr=LR, momentum=0.9))
    whole.train([Job(0, 0, x)]), whole.train([Job(0, 1, x)])
    for one, other in [*((state, before) for state in states), (task.state(0), whole.state(0))]:
        assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    assert len(states) == 4


def test_jobs_of_one_node_in_one_call_follow_each_other() -> None:
    one, two = personal("ditto"), personal("ditto")
    x = one.initial(0)
    one.train([Job(0, 0, x), Job(0, 1, x)])
    two.train([Job(0, 0, x)]), two.train([Job(0, 1, x)])
    assert np.array_equal(one.personal_model(0, x), two.personal_model(0, x))


def test_the_optimisers_memory_of_the_two_models_is_not_mixed() -> None:
    """With lambda = 0 and momentum Ditto's own model is that of a node alone, and the shared one that of fedavg."""
    how: Any = {"n": N, "local_steps": STEPS, "lr": LR, "momentum": 0.9}
    task, plain, alone = (
        personal("ditto?lambda=0", digits("mlp:64-8-10", **how)),
        *(digits("mlp:64-8-10", **how) for _ in range(2)),
    )
    x = task.initial(0)
    own = x
    for r in range(3):
        update = task.train([Job(0, r, x)])[0].difference
        assert np.array_equal(update, plain.train([Job(0, r, x)])[0].difference)  # type: ignore[arg-type]
        own = own + alone.train([Job(0, r, own)])[0].difference
    np.testing.assert_allclose(task.personal_model(0, x), own, atol=1e-7)


def test_under_ifca_nobody_sees_who_chose_which_but_in_the_elements() -> None:
    task = personal("ifca?clusters=3")
    (update,) = task.train([Job(0, 0, task.initial(0))])
    assert update.difference is not None and task.length == 3 * HEAD.size == update.difference.size
    moved = [bool(np.any(part)) for part in np.split(update.difference, 3)]
    assert sum(moved) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dito", "not known"),
        ("ditto?mu=1", "no option 'mu'"),
        ("ditto?lambda=-1", "lambda = -1 is out of range"),
        ("ditto?lambda=nan", "out of range"),
        ("ditto?lambda=much", "is not a number"),
        ("pfedme?steps=1.5", "whole number"),
        ("ifca?clusters=1", "out of range"),
    ],
)
def test_a_wrong_name_or_option_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        method_of("coordinator.personal", text)
    assert "\n" not in str(error.value.args[0]) and error.value.advice


@pytest.mark.parametrize(("text", "words"), [("fedrep?head=nothing*", "no parameter"), ("fedrep?head=*", "no body")])
def test_a_head_that_is_nothing_or_all_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        personal(text)


def test_the_state_of_another_model_is_refused() -> None:
    task, other = personal("ditto"), personal("ditto", digits("softmax", n=N))
    other.train([Job(0, 0, other.initial(0))])
    with pytest.raises(ConfigError, match="personal model has 650 elements; expected 610"):
        task.load_state(0, other.state(0))


def test_a_decreasing_rate_is_that_of_the_round() -> None:
    settings = replace(HOW, schedule="step:1,0.5")
    task = personal("fedrep", digits("mlp:64-8-10", n=N, local_steps=STEPS, lr=LR, schedule="step:1,0.5"), settings)
    x = task.initial(0)
    assert [task.train([Job(0, r, x)])[0].metrics["rate"] for r in range(3)] == [0.1, 0.05, 0.025]
