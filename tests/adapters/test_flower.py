"""Secure sums in Flower, with the real package: models as in the clear, processes that end, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from fedgossip.base.errors import ConfigError
from fedgossip.secure import Encoding, SumClient, SumServer, sign_card

pytest.importorskip("flwr", reason="needs the extra flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid, strategy
from flwr.supercore.task_identity import TaskIdentity

from fedgossip.adapters import flower
from fedgossip.adapters.flower import SecureSumMod, SecureSumStrategy

N, BOSS = 5, bytes([99]) * 32
KEYS = [bytes([number + 1]) * 32 for number in range(N)]
CARDS = [sign_card(key) for key in KEYS]
ENCODING = Encoding(length=9, bound=4.0, weight_max=64, metrics={"loss": 10.0})
START = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.float32)}


@pytest.fixture(autouse=True)
def run_of_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Flower sets it where an app's process begins."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def copied(records: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(records))


def app_of(*mods: Any, far: float = 1.0) -> ClientApp:
    """An app whose model goes half the way to its node's own target."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = context.node_config["number"]
        own = np.random.default_rng(number)
        after = {
            name: Array(array.numpy() + (0.5 * far * (own.normal(size=array.shape) - array.numpy())).astype(np.float32))
            for name, array in message.content["arrays"].items()
        }
        metrics = MetricRecord({"num-examples": 10 + number, "loss": 1.0 / (1 + number)})
        return Message(RecordDict({"arrays": ArrayRecord(after), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "score": 0.5})}), reply_to=message)

    return app


def secured(weighted_by_key: str = "num-examples", far: float = 1.0, **how: Any) -> ClientApp:
    words: dict[str, Any] = {"task": "t", "n_min": 3, "entropy": os.urandom, **how}

    def client_of(context: Context, state: bytes) -> SumClient:
        return SumClient(KEYS[context.node_config["number"]], CARDS, sign_card(BOSS), ENCODING, state=state, **words)

    return app_of(SecureSumMod(client_of, weighted_by_key=weighted_by_key), far=far)


class ProcessGrid(Grid):
    """Nodes whose app is made anew for each message, and whose records travel as bytes; `gone`: after so many."""

    def __init__(self, app: Callable[[], ClientApp], gone: dict[int, int] | None = None) -> None:
        self.app, self.gone, self.sent = app, gone or {}, list[RecordDict]()
        self.states = {1000 + number: RecordDict() for number in range(N)}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [reply for message in messages if (reply := self._reply(message)) is not None]

    def _reply(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        number = node - 1000
        self.gone[number] = self.gone.get(number, 1 << 20) - 1
        if self.gone[number] < 0:
            return None
        context = Context(1, node, {"number": number}, copied(self.states[node]), {})
        message.content = copied(message.content)
        try:
            reply = self.app()(message, context)
        except Exception as error:
            return Message(Error(0, str(error)), reply_to=message)
        self.states[node] = copied(context.state)
        self.sent.append(copied(reply.content))
        return reply

    def get_node_ids(self) -> list[int]:
        return list(self.states)

    run = property(lambda self: None)
    set_run = create_message = push_messages = pull_messages = None


def strategy_of(inner: Any) -> SecureSumStrategy:
    return SecureSumStrategy(inner, SumServer(BOSS, CARDS, ENCODING, task="t", n_min=3), range(N))


def trained(outer: Any, grid: ProcessGrid, rounds: int = 3) -> Any:
    return outer.start(grid, ArrayRecord({name: Array(one) for name, one in START.items()}), rounds)


def flat(result: Any) -> Any:
    return np.concatenate([array.numpy().ravel() for array in result.arrays.values()])


def weight_of(clients: Iterable[int]) -> int:
    return sum(10 + number for number in clients)


BOUND = ENCODING.error(N) / weight_of(range(N)) + 2**-22
"""Of one mean: the encoding's, and two roundings to float32 of numbers below 2."""


def test_fedavg_by_secure_sums_is_fedavg_in_the_clear_within_the_encodings_bound() -> None:
    clear = trained(strategy.FedAvg(), ProcessGrid(app_of))
    grid = ProcessGrid(secured)
    hidden = trained(strategy_of(strategy.FedAvg()), grid)
    far = np.abs(flat(hidden) - flat(clear)).max()
    assert far <= 2 * BOUND  # each round halves the distance of the round before
    assert np.abs(flat(clear) - np.concatenate([START["w"].ravel(), START["b"]])).max() > 0.1
    assert {array.dtype for array in hidden.arrays.values()} == {"float32"}
    for round, metrics in clear.train_metrics_clientapp.items():
        assert hidden.train_metrics_clientapp[round]["loss"] == pytest.approx(metrics["loss"], abs=1e-4)
    assert hidden.evaluate_metrics_clientapp[3]["score"] == 0.5
    frames = [sent for sent in grid.sent if "fedgossip" in sent]
    assert len(frames) == 3 * N * 6 and not any(sent.array_records or sent.metric_records for sent in frames)


def test_fedadam_by_secure_sums_is_fedadam_in_the_clear() -> None:
    """A step is eta * m / (sqrt(v) + tau), so its slope is at most (eta / tau) * ((1 - b1) + |m| * sqrt(1 - b2) / tau):
    1.6 for eta = tau = 0.1 and |m| < 1.5.  Three such steps, of which each halves the distance, grow an error by 10.
    """
    found = [
        flat(trained(outer(strategy.FedAdam(eta=0.1, tau=0.1)), ProcessGrid(app)))
        for outer, app in ((lambda one: one, app_of), (strategy_of, secured))
    ]
    assert np.abs(found[0] - found[1]).max() <= 10 * BOUND


@pytest.mark.parametrize("replies", range(6))
def test_a_client_that_is_gone_after_some_replies_leaves_the_mean_of_those_that_sent(replies: int) -> None:
    there = [number for number in range(N) if number != 2 or replies > 2]
    hidden = trained(strategy_of(strategy.FedAvg()), ProcessGrid(secured, {2: replies}), 1)
    clear = trained(strategy.FedAvg(), ProcessGrid(app_of, {} if replies > 2 else {2: 0}), 1)
    assert np.abs(flat(hidden) - flat(clear)).max() <= ENCODING.error(len(there)) / weight_of(there) + 2**-22


def test_too_few_clients_leave_the_model_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    grid = ProcessGrid(secured, {1: 0, 2: 0, 3: 0})
    outer = strategy_of(strategy.FedAvg())
    messages = outer.configure_train(1, ArrayRecord({n: Array(a) for n, a in START.items()}), ConfigRecord(), grid)
    assert outer.aggregate_train(1, grid.send_and_receive(messages)) == (None, None)
    assert "round 1 leaves the model as it is" in caplog.text


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"task": "other"}, "POLICY"),
        ({"weighted_by_key": "n"}, "the metrics"),
        ({"n_min": 4}, "POLICY"),
        ({"far": 1e3}, "OVERFLOW"),
    ],
)
def test_what_a_client_refuses_reaches_the_server_as_an_error_without_values(how: dict[str, Any], text: str) -> None:
    grid = ProcessGrid(lambda: secured(**how))
    outer = strategy_of(strategy.FedAvg())
    messages = outer.configure_train(1, ArrayRecord({n: Array(a) for n, a in START.items()}), ConfigRecord(), grid)
    replies = grid.send_and_receive(messages)
    assert len(replies) == N and not grid.sent
    assert all(text in reply.error.reason and "magnitude" not in reply.error.reason for reply in replies)


def test_training_without_an_invitation_is_refused_by_the_client() -> None:
    grid = ProcessGrid(secured)
    messages = strategy.FedAvg().configure_train(1, ArrayRecord({}), ConfigRecord(), grid)
    assert all("POLICY" in reply.error.reason for reply in grid.send_and_receive(messages))


@pytest.mark.parametrize("asked", ["evaluate", "query", "evaluate.best"])
def test_a_reply_by_another_name_sends_no_arrays(asked: str) -> None:
    """The server chooses the type of a message, and an app may hold its model ready for another strategy."""

    def ready(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(np.ones(2))})}), reply_to=message)

    def app() -> ClientApp:
        made, (kind, *name) = ClientApp(mods=[SecureSumMod(lambda context, state: None)]), asked.split(".")  # type: ignore[arg-type, return-value]
        getattr(made, kind)(*name)(ready)
        return made

    grid = ProcessGrid(app)
    (answer,) = grid.send_and_receive([Message(RecordDict(), 1002, asked)])
    assert "SCHEMA" in answer.error.reason and "arrays in the clear" in answer.error.reason and not grid.sent


def test_a_reply_in_the_clear_is_left_out() -> None:
    def mixed() -> ClientApp:
        return app_of(lambda message, context, inner: apps[context.node_config["number"] == 2](message, context))

    apps = {True: app_of(), False: secured()}
    hidden = trained(strategy_of(strategy.FedAvg()), ProcessGrid(mixed), 1)
    clear = trained(strategy.FedAvg(), ProcessGrid(app_of, {2: 0}), 1)
    assert np.abs(flat(hidden) - flat(clear)).max() <= ENCODING.error(4) / weight_of([0, 1, 3, 4]) + 2**-22


@pytest.mark.parametrize("kind", flower.BY_REPLY)
def test_strategies_that_compare_single_replies_are_refused(kind: type) -> None:
    with pytest.raises(ConfigError, match="discloses the mean"):
        strategy_of(kind.__new__(kind))


def test_a_model_of_another_length_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match="a model of 2 numbers; the encoding is of 9"):
        strategy_of(strategy.FedAvg()).configure_train(
            1, ArrayRecord({"w": Array(np.zeros(2))}), ConfigRecord(), ProcessGrid(secured)
        )


def test_an_untested_version_warns_with_the_tested_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgossip.adapters.exchange.version", lambda _: "1.99.0")
    with pytest.warns(UserWarning, match=r"Flower 1\.99\.0 is untested; tested: 1\.42$"):
        secured()
