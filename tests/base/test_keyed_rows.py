"""Runs whose model is a table at parameter servers: rows that batches need, lists of keys, filters, and who dies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import machine_fuzz
import numpy as np
import pytest
import server_seeds
from fuzz_casts import SCENES, STRANGER, Cast, Scene, Sender
from over_sockets import run_over_sockets
from resuming import from_the_middle

from fedgossip import simulate
from fedgossip.algorithms.descent.methods import FTRL, make_descent
from fedgossip.algorithms.descent.row_filters import KEY_CACHE, Pushing, make_filter
from fedgossip.algorithms.descent.rows import RowDescent, RowSum
from fedgossip.algorithms.federated.sums import ExactSum
from fedgossip.base.errors import ConfigError, FedgossipError, ProtocolError, TrainingError
from fedgossip.base.keyed_rows import KeyedTable, Keys, Rows, digest_of, frozen_keys
from fedgossip.base.vectors import Vector, digest, frozen
from fedgossip.core.machine import Received, RowsChosen, Send, Started
from fedgossip.core.messages import (
    EmptyCopy,
    KeysWanted,
    NoRows,
    Pulled,
    RowKeys,
    RowPull,
    RowPush,
    RowsPulled,
    RowStep,
    ShardPush,
    ShardStep,
    SomeKeys,
)
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.core.task import Job, Update
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.plans.parallel.parameter_server import ServerPlan
from fedgossip.protocols.servers.row_parts import LISTS_MAX, NewestLists
from fedgossip.protocols.servers.shard_clocks import ShardChange
from fedgossip.protocols.servers.tenure_shards import change_messages
from fedgossip.report.page.numbers import data_size


def clicks(workers: int = 3, servers: int = 2, rounds: int = 8, **more: Any) -> dict[str, Any]:
    """Many features of which an example has a few; the server section, and others, in `more`."""
    server = {"servers": servers, **more.pop("server", {})}
    parallel = {"workers": workers, "method": "parameter-server", "server": server, **more.pop("parallel", {})}
    task = {"kind": "sparse-logistic", "dim": 5000, "examples": 60, "nonzeros": 8, **more.pop("task", {})}
    train = {"lr": 1.0, "batch_size": 20, **more.pop("train", {})}
    return {"rounds": rounds, "task": task, "train": train, "parallel": parallel, **more}


def keys_of(*numbers: int) -> Keys:
    return frozen_keys(np.array(numbers))


# --- the table --------------------------------------------------------------------------------------------------------


def test_a_row_is_the_same_whoever_makes_it_and_with_whatever_others() -> None:
    table = KeyedTable(10**6, 16, seed=3, scale=0.25)
    alone, among = table.first(keys_of(777)), table.first(frozen_keys(np.arange(700, 800)))
    assert np.array_equal(alone, among.reshape(-1, 16)[77])
    many = table.first(frozen_keys(np.arange(20_000)))
    assert abs(many.mean()) < 4 * 0.25 / np.sqrt(many.size) and abs(many.std() / 0.25 - 1) < 0.01
    assert not np.array_equal(alone, KeyedTable(10**6, 16, seed=4, scale=0.25).first(keys_of(777)))


def gradients(rows: int, width: int, steps: int) -> list[Rows]:
    draw = np.random.default_rng(5)
    found = [frozen_keys(np.unique(draw.integers(0, rows, 20))) for _ in range(steps)]
    return [Rows(keys, frozen(draw.standard_normal(keys.size * width).astype(np.float32))) for keys in found]


@pytest.mark.parametrize("name", ["sgd", "adagrad", "ftrl"])
def test_steps_on_rows_have_the_bits_of_steps_on_all_with_zeros_elsewhere(name: str) -> None:
    table = KeyedTable(5000, 3, seed=1, scale=0.0 if name == "ftrl" else 0.5)
    everything, descent = frozen_keys(np.arange(5000)), make_descent(name, l1=0.5)
    rows, dense = RowDescent(descent, table), descent.start(table.first(everything))
    held = rows.start()
    for gradient in gradients(5000, 3, 30):
        whole = np.zeros((5000, 3), np.float32)
        whole[gradient.keys] = gradient.matrix
        held, dense = rows.step(held, gradient, 0.1), descent.step(dense, frozen(whole.reshape(-1)), 0.1)
    assert np.array_equal(held.rows(everything), dense.x)


@pytest.mark.parametrize(("name", "momentum"), [("adam", 0.0), ("sgd", 0.9)])
def test_what_is_remembered_of_a_row_waits_for_its_next_gradient(name: str, momentum: float) -> None:
    """Lazily: a row's own steps alone, of adam with the t of the table."""
    table, descent = KeyedTable(50, 2, seed=1, scale=0.5), make_descent(name, momentum=momentum)
    rows, key = RowDescent(descent, table), keys_of(7)
    held, alone = rows.start(), descent.start(table.first(key))
    for turn, gradient in enumerate(gradients(50, 2, 12)):
        held = rows.step(held, gradient, 0.1)
        if 7 in gradient.keys:
            alone = type(alone)(**{**vars_of(alone), **({"steps": turn} if name == "adam" else {})})
            alone = descent.step(alone, gradient.select(key).values, 0.1)
    assert np.array_equal(held.rows(key), alone.x)


def vars_of(state: Any) -> dict[str, Any]:
    return {name: getattr(state, name) for name in state.__dataclass_fields__}


def test_a_table_that_was_stepped_leaves_the_one_before_as_it_was() -> None:
    table, everything = KeyedTable(5000, 3, seed=1, scale=0.5), frozen_keys(np.arange(5000))
    rows = RowDescent(make_descent("sgd"), table)
    held, kept = rows.start(), []
    for gradient in gradients(5000, 3, 10):
        kept.append((held, held.rows(everything)))
        held = rows.step(held, gradient, 0.1)
    assert all(np.array_equal(one.rows(everything), then) for one, then in kept)


def test_ftrl_is_the_box_of_the_paper_and_weights_that_are_not_needed_are_0() -> None:
    """Algorithm 1 of McMahan et al., coordinate by coordinate in float64."""
    descent, draw, d = FTRL(l1=1.0, l2=0.5), np.random.default_rng(2), 40
    state, z, n = descent.start(frozen(np.zeros(d))), np.zeros(d), np.zeros(d)
    for _ in range(30):
        w = np.where(np.abs(z) <= 1.0, 0.0, -(z - np.sign(z) * 1.0) / ((1.0 + np.sqrt(n)) / 0.3 + 0.5))
        np.testing.assert_allclose(state.x, w, rtol=1e-12)
        gradient = draw.standard_normal(d) * np.linspace(0.01, 1, d)
        sigma = (np.sqrt(n + gradient**2) - np.sqrt(n)) / 0.3
        z, n = z + gradient - sigma * w, n + gradient**2
        state = descent.step(state, frozen(gradient), 0.3)
    assert 5 < (state.x == 0).sum() < d - 5


def test_a_mean_of_rows_is_that_of_vectors_with_zeros_and_has_no_order() -> None:
    terms = [(float(place + 1), rows) for place, rows in enumerate(gradients(100, 2, 4))]
    total, sums = ExactSum(), [RowSum(), RowSum()]
    for weight, rows in terms:
        whole = np.zeros((100, 2), np.float32)
        whole[rows.keys] = rows.matrix
        total.add(weight, frozen(whole.reshape(-1)))
        sums[0].add(weight, rows)
    for weight, rows in reversed(terms):
        sums[1].add(weight, rows)
    first, second = (one.mean(np.dtype(np.float32)) for one in sums)
    assert first is not None and second is not None
    assert np.array_equal(first.values, second.values)
    assert np.array_equal(first.matrix, total.mean(np.dtype(np.float32)).reshape(-1, 2)[first.keys])


# --- runs -------------------------------------------------------------------------------------------------------------


def twin(experiment: dict[str, Any]) -> tuple[Vector, Keys]:
    """All rows after a synchronous run, in plain loops on the whole model: one mean and one step per clock; and which
    are watched."""
    e = load_experiment(experiment)
    task: Any = compose.task_of(e, e.parallel.workers)[0]  # type: ignore[attr-defined]
    plan = compose.plan(e)
    assert isinstance(plan, ServerPlan)
    descent = plan.descent_of(())
    everything = frozen_keys(np.arange(task.table.rows))
    state = descent.start(task.table.first(everything))
    for clock in range(e.rounds):
        total = ExactSum()
        for node in range(plan.learners):
            keys = task.keys(node, clock, 1)
            job = Job(node, clock, frozen(state.x[keys]), gradient=True, accumulate=1, keys=keys)
            (update,) = task.gradients([job])
            whole = np.zeros(task.table.rows, np.float32)
            whole[keys] = update.difference
            total.add(update.metrics["rows"], frozen(whole))
        state = descent.step(state, total.mean(np.dtype(np.float32)), plan.rate(clock))
    return state.x, task.watched


@pytest.mark.parametrize("descent", ["sgd", "adagrad", "ftrl"])
@pytest.mark.parametrize("servers", [1, 3])
def test_every_number_of_servers_has_the_bits_of_plain_loops_on_the_whole_model(servers: int, descent: str) -> None:
    experiment = clicks(servers=servers, parallel={"descent": descent, "l1": 0.05 if descent == "ftrl" else 0.0})
    run, (whole, watched) = simulate(experiment), twin(experiment)
    expected = whole[watched]
    assert all(np.array_equal(vector, expected) for vector in run.vectors[:3] if vector is not None)
    assert expected.any()
    assert run.table is not None and np.array_equal(run.table.rows(np.arange(whole.size))[:, 0], whole)


def test_the_key_cache_changes_no_bit_and_saves_bytes() -> None:
    runs = [simulate(clicks(rounds=12, server={"filters": filters})) for filters in ([], [KEY_CACHE])]
    assert runs[0].digest == runs[1].digest
    sent = [sum(row.payload_sent for row in run.rows if isinstance(row, PeerRow) and row.peer < 3) for run in runs]
    saved = sum(value["saved"][KEY_CACHE] for value in events(runs[1], "push_filters"))
    assert saved > 0 and sent[0] - sent[1] == saved


@pytest.mark.sockets
@pytest.mark.parametrize("staleness", [0, "async"])
def test_over_sockets_all_workers_end_with_one_model(staleness: Any) -> None:
    experiment = clicks(rounds=4, server={"staleness": staleness, "filters": [KEY_CACHE]})
    plan = compose.plan(load_experiment(experiment))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    vectors, rows = run_over_sockets(plan, task)
    assert len({digest([vector]) for vector in vectors[:3]}) == 1
    if staleness == 0:
        simulated = simulate(experiment)
        assert digest(vectors[:3]) == simulated.digest
        assert payloads(rows) == payloads(simulated.rows)


def payloads(rows: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Of workers: what each sent in a round does not depend on time; what it heard may come a round later."""
    found = [row for row in rows if isinstance(row, PeerRow) and row.peer < 3 and row.round]
    return sorted((row.round, row.peer, row.payload_sent) for row in found)


LOSSES = [
    {"kind": "drop", "probability": 0.15},
    {"kind": "duplicate", "probability": 0.2},
    {"kind": "reorder", "seconds": 0.2, "probability": 0.2},
]


@pytest.mark.parametrize("filters", [[], [KEY_CACHE]])
def test_lost_late_and_doubled_messages_change_no_bit(filters: list[str]) -> None:
    quiet = simulate(clicks())
    for seed in range(3):
        faults = [{**one, "start": seed * 0.01} for one in LOSSES]
        patient = {"deadline": 300.0}  # nobody is left out, however often something of it is lost
        links, server = {"jitter": 0.02}, {"filters": filters}
        run = simulate(clicks(faults=faults, simulation=links, server=server, parallel=patient))
        assert run.digest == quiet.digest, seed
        assert not events(run, "refused")


@pytest.mark.parametrize("at", [0.07, 0.16, 0.25, 0.33])
def test_a_server_that_comes_back_has_all_rows_that_it_had(at: float) -> None:
    faults = [{"kind": "crash", "peers": [4], "start": at, "after": 0.4}]
    for descent in ("sgd", "adagrad"):
        experiment = clicks(parallel={"descent": descent}, server={"filters": [KEY_CACHE]})
        run = simulate({**experiment, "faults": faults})
        assert run.digest == simulate(experiment).digest and run.summary["status"] == "finished"


def test_a_worker_that_comes_back_goes_on_with_its_rows() -> None:
    faults = [{"kind": "crash", "peers": [1], "start": 0.2, "after": 0.3}]
    run = simulate(clicks(rounds=20, faults=faults, parallel={"deadline": 2.0, "least_deadline": 0.3}))
    assert run.summary["status"] == "finished"
    assert len({digest([vector]) for vector in run.vectors[:3] if vector is not None}) == 1


@pytest.mark.parametrize("staleness", [1, 3])
def test_no_worker_is_further_ahead_than_it_may_be(staleness: int) -> None:
    slow = {"classes": [{"nodes": "0", "slower": 10.0}]}
    run = simulate(clicks(rounds=12, server={"staleness": staleness}, simulation=slow))
    for seen in events(run, "read_lag"):
        assert max(seen["clocks"]) == staleness and sum(seen["clocks"].values()) == 3 * 12


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_stopped_simulation_goes_on_bit_for_bit(tmp_path: Any, staleness: Any) -> None:
    filters = [KEY_CACHE, "threshold:0.001"]
    server = {"staleness": staleness, "filters": filters}
    plan = compose.plan(load_experiment(clicks(server=server, simulation={"training_jitter": 1.0})))
    whole, again = from_the_middle(plan, tmp_path)
    assert again.digest == whole.digest and again.rows == whole.rows


def events(run: Any, name: str) -> list[Any]:
    return [row.value for row in run.rows if isinstance(row, EventRow) and row.name == name]


class Wide:
    """A RowTask whose batches need 40 rows each, drawn anew every round; the gradient of a row is the row."""

    dtype = np.dtype(np.float32)

    def __init__(self, rows: int, width: int, needed: int = 40) -> None:
        self.table, self.needed = KeyedTable(rows, width, seed=2, scale=0.1), needed
        self.watched = keys_of(0, rows // 2, rows - 1)
        self.length, self.schema = 3 * width, f"wide-{rows}-{width}"

    def initial(self, node: int) -> Vector:
        return self.table.first(self.watched)

    def keys(self, node: int, round: int, batches: int) -> Keys:
        draw = np.random.default_rng([node, round])
        return frozen_keys(np.sort(draw.choice(self.table.rows, self.needed, replace=False)))

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [Update(frozen(job.vector * np.float32(1)), 1, {"loss": 0.0}) for job in jobs]

    train = gradients

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{"loss": float(vector @ vector)} for vector in vectors]


def served(workers: int = 4, servers: int = 2, rounds: int = 5, **server: Any) -> dict[str, Any]:
    section = {"workers": workers, "method": "parameter-server", "server": {"servers": servers, **server}}
    return {"rounds": rounds, "train": {"lr": 0.1}, "eval": {"every": 1000}, "parallel": section}


def test_a_million_rows_cost_what_their_batches_touch() -> None:
    """10^6 x 16, 4 workers, 2 servers: less than 0.1 % of the dense model goes each way, and of it less than twice
    what was touched is held.  Exact in payload: 4 bytes a key with each pull and push, a row each way."""
    task = Wide(10**6, 16)
    machines: list[Any] = []
    plan = compose.plan(load_experiment(served())).with_table(task.table)
    compose.check_task(plan, task)
    assert isinstance(plan, ServerPlan)
    run = simulate_counted(plan, task, machines)
    dense, row = 10**6 * 16 * 4, 16 * 4
    of_workers = [one for one in run.rows if isinstance(one, PeerRow) and one.peer < 4 and 1 < one.round < 5]
    assert len(of_workers) == 4 * 3
    for one in of_workers:
        assert one.payload_sent == 40 * (row + 4 + 4) and one.payload_received == 40 * row
        assert one.bytes_sent < 0.001 * dense and one.bytes_received < 0.001 * dense
    tables = [clocks.state for server in machines[4:6] for clocks in server.shards.values()]
    touched = sum(table.touched_bytes for table in tables)
    keys = {int(key) for node in range(4) for clock in range(5) for key in task.keys(node, clock, 1)}
    assert touched == row * len(keys)
    assert sum(table.held_bytes for table in tables) < 2 * touched


def simulate_counted(plan: ServerPlan, task: Any, machines: list[Any]) -> Any:
    """Run in the simulator, and keep the machines."""
    made = type(plan).seated

    def keep(self: Any, seat: Any) -> Any:
        machines.append(made(self, seat))
        return machines[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(plan), "seated", keep)
        return simulate_plan(plan, task=task)


# --- words ------------------------------------------------------------------------------------------------------------


def bags(folder: Any, words: int = 300, classes: int = 3) -> str:
    """Bags of eight words; the class is that of most of them, a third of all words each."""
    draw = np.random.default_rng(7)
    x = draw.integers(0, words, (600, 8))
    y = np.array([np.bincount(bag % classes, minlength=classes).argmax() for bag in x])
    np.savez(folder / "bags.npz", x=x, y=y)
    return f"npz:{folder / 'bags.npz'}"


def words(folder: Any, model: str = "words:3000-8-3", **more: Any) -> dict[str, Any]:
    parallel = {"workers": 3, "method": "parameter-server", "descent": "adagrad", "server": {"servers": 2}}
    return {
        "rounds": 120,
        "data": {"source": bags(folder)},
        "model": {"source": model},
        "train": {"lr": 0.3, "batch_size": 20},
        "eval": {"every": 60},
        "parallel": {**parallel, **more},
    }


def test_a_batch_of_words_has_the_gradient_of_the_whole_model_on_its_rows(tmp_path: Any) -> None:
    """The same model as torch has it: an embedding bag over all words, and a linear layer."""
    import torch

    e = load_experiment(words(tmp_path))
    task: Any = compose.task_of(e, 3)[0]
    everything = frozen_keys(np.arange(task.table.rows))
    whole = torch.tensor(task.table.first(everything)).reshape(-1, 8)
    bag = torch.nn.EmbeddingBag.from_pretrained(whole[:3000].clone(), freeze=False, mode="mean")
    linear = torch.nn.Linear(8, 3)
    with torch.no_grad():
        linear.weight.copy_(whole[3000:3003])
        linear.bias.copy_(whole[3003, :3])
    places, keys = task._places(1, 4, 2), task.keys(1, 4, 2)
    outputs = linear(bag(torch.as_tensor(task.words[places])))
    torch.nn.functional.cross_entropy(outputs, task.labels[places]).backward()
    job = Job(1, 4, task.table.first(keys), gradient=True, accumulate=2, keys=keys)
    found = task.gradients([job])[0].difference.reshape(-1, 8)
    assert bag.weight.grad is not None and linear.weight.grad is not None and linear.bias.grad is not None
    np.testing.assert_allclose(found[:-4], bag.weight.grad[keys[:-4].astype(np.int64)], atol=1e-7)
    np.testing.assert_allclose(found[-4:-1], linear.weight.grad, atol=1e-7)
    np.testing.assert_allclose(found[-1], [*linear.bias.grad.tolist(), 0, 0, 0, 0, 0], atol=1e-7)


@pytest.mark.sockets
def test_words_are_learned_and_the_bits_are_the_same_over_sockets(tmp_path: Any) -> None:
    run = simulate(words(tmp_path))
    assert run.summary["score"]["averaged"] > 0.6, "and one of three is chance"
    short = {**words(tmp_path), "rounds": 5}
    plan = compose.plan(load_experiment(short))
    vectors, _ = run_over_sockets(plan, compose.task_of(plan.experiment, plan.learners)[0])
    assert digest(vectors[:3]) == simulate(short).digest


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("words:3000-8", "has no sizes"),
        ("words:3000-0-3", "has no sizes"),
        ("words:200-8-3", "features from"),
        ("words:3000-8-2", "3 classes, and the model has 2"),
    ],
)
def test_a_model_of_words_that_the_data_do_not_fit_is_refused(tmp_path: Any, model: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate(words(tmp_path, model))


def test_a_task_that_is_a_table_is_refused_elsewhere(tmp_path: Any) -> None:
    """What a file names is learned there as a whole vector; an object of rows is for servers alone."""
    rows = compose.task_of(load_experiment(words(tmp_path)), 4)[0]
    with pytest.raises(ConfigError, match="a model that is a table"):
        simulate({"rounds": 1, "topology": {"graph": "ring", "n": 4}}, task=rows)


# --- filters ----------------------------------------------------------------------------------------------------------


def pushing(gradient: Rows, rows: Rows | None = None, clock: int = 0) -> Pushing:
    return Pushing(gradient, rows or gradient, clock, 1, 3)


def test_a_threshold_keeps_small_rows_until_they_have_added_up() -> None:
    small = Rows(keys_of(2, 5), frozen(np.array([0.4, 0.0, 0.9, 0.1], np.float32)))
    one: Any = make_filter("threshold:1.0", 0.0, no_own)
    first, memory = one(pushing(small), None)
    assert first.keys.size == 0
    second, memory = one(pushing(small), memory)
    assert second.keys.tolist() == [5] and np.allclose(second.values, [1.8, 0.2])
    third, memory = one(pushing(small), memory)
    assert third.keys.tolist() == [2] and np.allclose(third.values, [1.2, 0.0])
    fourth, memory = one(pushing(Rows(keys_of(4), frozen(np.zeros(2, np.float32)))), memory)
    assert fourth.keys.size == 0, "what waits is of rows that this gradient has not"
    fifth, _ = one(pushing(small, clock=99), memory)
    assert fifth.keys.tolist() == [2, 5], "the threshold falls as 1 / sqrt(clock + 1)"


def test_skipped_rows_leave_a_mean_that_is_the_gradient() -> None:
    every = Rows(frozen_keys(np.arange(40_000)), frozen(np.ones(40_000, np.float32)))
    one: Any = make_filter("random-skip:0.75", 0.0, no_own)
    left = one(pushing(every), None)[0]
    assert abs(left.keys.size - 10_000) < 5 * np.sqrt(7500)
    assert np.array_equal(left.values, np.full(left.keys.size, 4.0))
    assert np.array_equal(one(pushing(every), None)[0].keys, left.keys), "from the seed, the node and the clock"


def test_rows_at_rest_under_l1_are_not_pushed() -> None:
    rows = Rows(keys_of(1, 2, 3), frozen(np.array([0.0, 0.0, 0.5])))
    gradient = Rows(rows.keys, frozen(np.array([0.1, -0.3, 0.1])))
    one: Any = make_filter("kkt", 0.2, no_own)
    assert one(pushing(gradient, rows), None)[0].keys.tolist() == [2, 3]


def no_own(text: str) -> Any:
    raise AssertionError(text)


def only_even(pushing: Pushing, memory: object) -> tuple[Rows, object]:
    """A filter of the user's own; its memory is how often it was called."""
    return pushing.gradient.only(pushing.gradient.keys % 2 == 0), (memory or 0) + 1  # type: ignore[operator]


def nonsense(pushing: Pushing, memory: object) -> Any:
    return "nothing"


def test_a_filter_of_ones_own_is_named_and_what_it_saves_is_told() -> None:
    run = simulate(clicks(server={"filters": [f"{__name__}:only_even"]}))
    for told in events(run, "push_filters"):
        assert told["saved"][f"{__name__}:only_even"] > 0
    with pytest.raises(TrainingError, match="nonsense gives str"):
        simulate(clicks(server={"filters": [f"{__name__}:nonsense"]}))


def test_more_filters_send_fewer_bytes_and_learn_as_well() -> None:
    """What each keeps back is told, and is what the links lack."""
    sent, loss = {}, {}
    chains = ((), (KEY_CACHE,), (KEY_CACHE, "threshold:0.02"), (KEY_CACHE, "threshold:0.02", "random-skip:0.5"))
    more = {"task": {"examples": 400}, "train": {"lr": 0.3}, "parallel": {"descent": "adagrad"}}
    for filters in chains:
        run = simulate(clicks(rounds=40, server={"filters": list(filters)}, **more))
        sent[filters] = sum(row.payload_sent for row in run.rows if isinstance(row, PeerRow) and row.peer < 3)
        loss[filters] = run.summary["test_loss"]
    assert [sent[one] for one in chains] == sorted(sent.values(), reverse=True) and sent[chains[-1]] < 0.5 * sent[()]
    assert max(loss.values()) < 0.65 and max(loss.values()) - min(loss.values()) < 0.05


@pytest.mark.parametrize("staleness", [0, "async"])
def test_clocks_of_which_nobody_pushes_a_row_end_all_the_same(staleness: Any) -> None:
    run = simulate(clicks(server={"filters": ["threshold:1e9"], "staleness": staleness}))
    assert run.summary["status"] == "finished"
    assert not any(np.any(vector) for vector in run.vectors if vector is not None)


# --- words that cannot be ---------------------------------------------------------------------------------------------


def server_of(rounds: int = 8, **server: Any) -> tuple[Any, Any]:
    """The only server of two workers, at work, and the task."""
    plan = compose.plan(load_experiment(clicks(2, 1, rounds, server=server)))
    task: Any = compose.task_of(plan.experiment, plan.learners)[0]
    machine: Any = plan.machine(2, task.initial(2), "s")
    machine.handle(Started(), 0)
    return machine, task


def told(keys: Keys, name: str = "", shard: int = 0) -> Received:
    return Received(0, RowKeys(0, shard, name or digest_of(keys), keys.size, "s", (keys,)))  # type: ignore[arg-type]


def raw(*numbers: int) -> Any:
    return np.array(numbers, np.uint32)


WRONG_LISTS = [
    (raw(5, 5), "do not ascend"),
    (raw(9, 5), "do not ascend"),
    (raw(1, 5000), "rows of other shards"),
    (raw(1, 2**32 - 1), "rows of other shards"),
    (np.array([1.0, 2.0], np.float32), "another layout"),
]


@pytest.mark.parametrize(("keys", "words"), WRONG_LISTS)
def test_keys_that_cannot_be_a_list_are_refused_and_change_nothing(keys: Any, words: str) -> None:
    server, _ = server_of()
    with pytest.raises(ProtocolError, match=words):
        server.handle(Received(0, RowKeys(0, 0, digest_of(raw(1)), keys.size, "s", (keys,))), 0)
    assert server.lists.find(0, 0, digest_of(raw(1))) is None
    with pytest.raises(ProtocolError, match="name of others"):
        server.handle(told(keys_of(1, 2), digest_of(raw(1))), 0)
    with pytest.raises(ProtocolError, match="which this server does not own"):
        server.handle(told(keys_of(1, 2), shard=1), 0)


def test_some_keys_of_a_list_are_a_list_and_bits_that_cannot_be_are_refused() -> None:
    server, _ = server_of()
    whole, part = keys_of(1, 4, 9), keys_of(1, 9)
    bits = np.packbits(np.array([True, False, True]))
    some = SomeKeys(0, 0, digest_of(part), digest_of(whole), 3, "s", (bits,))  # type: ignore[arg-type]
    assert server.handle(Received(0, some), 0) == [], "the list is not here: what is of the part will be asked for"
    server.handle(told(whole), 0)
    server.handle(Received(0, some), 0)
    assert server.lists.find(0, 0, digest_of(part)).tolist() == [1, 9]
    wrong = [(4, (bits,), "the list has 3"), (3, (bits[:0],), "another layout"), (3, (~bits,), "name of others")]
    for count, vectors, words in wrong:
        spoilt = SomeKeys(0, 0, digest_of(part), digest_of(whole), count, "s", vectors)  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match=words):
            server.handle(Received(0, spoilt), 0)


def push(keys: Keys, values: Sequence[float], clock: int = 0) -> Received:
    part = frozen(np.array(values, np.float32))
    return Received(0, RowPush(0, 0, clock, 0, 0, 1.0, digest_of(keys), 0, part.size, "s", (part,)))


def test_a_push_of_rows_of_another_width_or_not_finite_is_refused() -> None:
    server, _ = server_of()
    keys = keys_of(3, 4)
    server.handle(told(keys), 0)
    with pytest.raises(ProtocolError, match="another layout"):
        server.handle(push(keys, [1.0, 2.0, 3.0, 4.0]), 0)
    with pytest.raises(ProtocolError, match="cannot be added up"):
        server.handle(push(keys, [1.0, float("nan")]), 0)
    with pytest.raises(ProtocolError, match="sends no such message"):
        part = frozen(np.zeros(5000, np.float32))
        server.handle(Received(0, ShardPush(0, 0, 0, 0, 0, 1.0, 0, 5000, "s", (part,))), 0)
    assert server.handle(push(keys, [1.0, 2.0]), 0)


def test_of_keys_that_are_not_here_a_server_asks() -> None:
    server, _ = server_of()
    keys = keys_of(3, 4)
    for word in (push(keys, [1.0, 2.0]), Received(0, RowPull(0, 0, 0, 0, digest_of(keys)))):
        assert server.handle(word, 0) == [Send(0, KeysWanted(0, 0, digest_of(keys)))]
    server.handle(told(keys), 0)
    (answer,) = [one for one in server.handle(word, 0) if isinstance(one, Send)]
    assert isinstance(answer.message, RowsPulled) and answer.message.length == 2


def test_a_worker_whose_clock_goes_back_counts_once_and_one_that_runs_ahead_is_refused() -> None:
    server, _ = server_of(staleness="async")
    keys = keys_of(3, 4)
    server.handle(told(keys), 0)
    for _ in range(2):
        server.handle(push(keys, [1.0, 2.0]), 0)
    assert server.shards[0].steps == 1
    with pytest.raises(ProtocolError, match="it is at clock 1"):
        server.handle(push(keys, [1.0, 2.0], clock=4), 0)
    server.handle(Received(0, NoRows(0, 0, 1, 0, 0, 1.0)), 0)
    assert server.shards[0].clocks[0] == 2


def test_a_pull_of_a_clock_twice_is_answered_twice_with_the_same() -> None:
    server, _ = server_of()
    keys = keys_of(3, 4)
    server.handle(told(keys), 0)
    pull = Received(0, RowPull(0, 0, 0, 0, digest_of(keys)))
    (first,) = [one.message for one in server.handle(pull, 0) if isinstance(one, Send)]
    assert not [one for one in server.handle(pull, 0) if isinstance(one, Send)], "the answer is under way"
    server.links[0].drop()
    (second,) = [one.message for one in server.handle(pull, 0) if isinstance(one, Send)]
    assert np.array_equal(first.vectors[0], second.vectors[0]) and first.clock == second.clock


def test_of_lists_the_newest_are_kept() -> None:
    lists = NewestLists()
    for number in range(LISTS_MAX + 10):
        lists.store(str(number), keys_of(number))
        lists.get("0")
    assert lists.get("0") is not None and lists.get("1") is None and lists.get(str(LISTS_MAX + 9)) is not None


def test_what_is_said_of_rows_by_those_of_a_vector_is_refused_or_changes_nothing() -> None:
    plan = compose.plan(load_experiment({**clicks(2, 1), "task": {"kind": "quadratic", "dim": 40}}))
    worker: Any = plan.machine(0, np.zeros(40, np.float32), "s")
    server: Any = plan.machine(2, np.zeros(40, np.float32), "s")
    keys = keys_of(1)
    for word in (RowKeys(0, 0, digest_of(keys), 1, "s", (keys,)), NoRows(0, 0, 0, 0, 0, 1.0)):  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match="sends no such message"):
            server.handle(Received(0, word), 0)
    part = np.zeros(40, np.float32)
    worker.handle(Received(2, RowsPulled(0, 0, 0, 0, 0, 0, "x", 0, 40, "s", (part,))), 0)
    assert not worker.pulled.here
    with pytest.raises(ProtocolError, match="not own"):
        worker.handle(Received(2, Pulled(0, 7, 0, 0, 0, 0, 0, 40, "s", (part,))), 0)


@pytest.mark.parametrize("keys", [raw(3, 3), raw(4, 3), raw(1, 5000)])
def test_a_task_that_needs_rows_that_are_not_there_is_named(keys: Any) -> None:
    plan = compose.plan(load_experiment(clicks(2, 1)))
    task: Any = compose.task_of(plan.experiment, plan.learners)[0]
    worker: Any = plan.machine(0, task.initial(0), "s")
    worker.phase = "pulling"
    worker.parts.choose(0)
    with pytest.raises(TrainingError, match="strictly ascending, below 5000"):
        try:
            worker.handle(RowsChosen(0, keys), 0)
        except TrainingError as error:
            raise TrainingError(f"{error} {error.advice}") from None


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"server": {"placement": "tensors"}}, "no whole tensors"),
    ({"parallel": {"descent": "lars"}, "server": {"placement": "tensors"}}, "no whole tensors"),
    ({"server": {"filters": ["treshold:1"]}}, "treshold"),
    ({"server": {"filters": ["threshold"]}}, "threshold"),
    ({"server": {"filters": ["random-skip:1.0"]}}, "random-skip:1.0"),
    ({"server": {"filters": ["kkt:-1"]}}, "kkt:-1"),
    ({"server": {"filters": [KEY_CACHE, KEY_CACHE]}}, "key-cache"),
    ({"server": {"filters": ["nowhere:nothing"]}}, "no module 'nowhere'"),
    ({"parallel": {"l1": -1.0}}, "l1"),
    ({"task": {"nonzeros": 6000}}, "6000 features of 5000"),
    ({"train": {"batch_size": 61}}, "batches of 61 of 60"),
    ({"servers": 8, "task": {"dim": 7, "nonzeros": 2}}, "8 servers for a model of 7 elements"),
]


@pytest.mark.parametrize(("more", "words"), WRONG)
def test_what_a_table_cannot_have_is_refused_before_anything_trains(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        simulate(clicks(**more))
    assert caught.value.advice


def test_filters_of_a_vector_and_a_table_on_stacked_arrays_are_refused() -> None:
    with pytest.raises(ConfigError, match="the model is no table"):
        simulate({**clicks(server={"filters": [KEY_CACHE]}), "task": {"kind": "quadratic", "dim": 40}})
    with pytest.raises(ConfigError, match="stacked arrays hold whole models"):
        simulate(clicks(), engine="stacked")


def test_watched_rows_that_are_none_are_refused() -> None:
    task = Wide(1000, 4)
    task.watched = keys_of(5, 5, 7)
    with pytest.raises(ConfigError, match="watched rows of 1000 x 4"):
        simulate(served(), task=task)


# --- copies -----------------------------------------------------------------------------------------------------------

COPIED = {"parallel": {"deadline": 5.0, "least_deadline": 0.3}, "server": {"replication": 2, "filters": [KEY_CACHE]}}


@pytest.mark.parametrize("faults", [
    [{"kind": "crash", "peers": [3], "start": 0.08}],
    [{"kind": "crash", "peers": [4], "start": 0.31, "after": 0.05}],
    [{"kind": "crash", "peers": [3], "start": 0.1, "after": 0.1}, {"kind": "crash", "peers": [4], "start": 1.0}],
    [{"kind": "crash", "peers": [node], "start": 0.3, "after": 0.5} for node in (3, 4, 5, 6)],
])  # fmt: skip
@pytest.mark.parametrize("descent", ["adagrad", "adam"])
def test_whichever_servers_die_the_rows_are_those_of_an_undisturbed_run(descent: str, faults: list[Any]) -> None:
    """Also what the descent remembers of them.  At the end all servers and the manager begin anew."""
    parallel = {**COPIED["parallel"], "descent": descent}
    run = simulate(clicks(servers=3, rounds=10, faults=faults, **{**COPIED, "parallel": parallel}))
    whole = simulate(clicks(servers=3, rounds=10, parallel={"descent": descent}))
    assert (run.digest, run.summary["status"]) == (whole.digest, "finished") and events(run, "tenure")
    assert not events(run, "refused")


def test_copies_of_rows_cost_the_rows_of_each_step() -> None:
    """Between servers, of payload: a key and a row of the mean for each copy; nothing where no row has changed."""
    task = Wide(10**6, 16)
    plan = compose.plan(load_experiment(served(servers=3, replication=3))).with_table(task.table)
    alone = compose.plan(load_experiment(served(servers=3))).with_table(task.table)
    sent, before = (sum(row.payload_sent for row in simulate_plan(one, task=task).rows
                    if isinstance(row, PeerRow) and 4 <= row.peer < 7 and 1 < row.round < 5)
                    for one in (plan, alone))  # fmt: skip
    stepped = sum(len({int(key) for node in range(4) for key in task.keys(node, clock, 1)}) for clock in range(1, 4))
    assert sent - before == 2 * stepped * (4 + 16 * 4)


def test_copied_rows_count_every_push_once_whoever_dies() -> None:
    outcomes = [server_seeds.run(seed, rows=True) for seed in range(8)]
    assert not [(one.seed, one.verdict) for one in outcomes if one.verdict], "python tests/server_seeds.py rows SEED"
    assert sum(one.seen["tenure"] for one in outcomes) > 5


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(5))
def test_copied_rows_count_every_push_once_in_a_thousand_runs(block: int) -> None:
    for seed in range(200 * block, 200 * (block + 1)):
        outcome = server_seeds.run(seed, rows=True)
        assert not outcome.verdict, f"{outcome.verdict}; python tests/server_seeds.py rows {seed}"


def test_a_copy_of_rows_that_cannot_be_changes_nothing() -> None:
    """Server 3 keeps what 4 owns: of keys that descend, that are not the shard's, of numbers that are none, of a
    vector, of more arrays; then of the two pieces of a change in whatever order."""
    plan = compose.plan(load_experiment(clicks(servers=2, server={"replication": 2}, task={"dim": 600_000})))
    assert isinstance(plan, ServerPlan)
    keeper: Any = plan.machine(3, frozen(np.zeros(3, np.float32)), "s")
    keeper.handle(Started(), 0)
    (shard,) = plan.placement_of(3).owned(4, plan.servers)
    first = shard.ranges[0][0]
    other = next(row for row in range(600_000) if not any(start <= row < stop for start, stop in shard.ranges))
    head = 0, shard.number, 1, 0, 0.1, ()

    def step(keys: list[int], values: list[float]) -> RowStep:
        parts = raw(*keys), frozen(np.array(values, np.float32))
        return RowStep(*head, len(keys), 0, len(keys), len(values), "s", parts)

    wrong = [
        (step([first + 1, first], [1.0, 2.0]), "another layout"),
        (step(sorted([first, other]), [1.0, 2.0]), "rows of other shards"),
        (step([first], [float("inf")]), "not finite"),
        (step([first], [1.0, 2.0]), "another layout"),
        (ShardStep(*head, 0, 1, "s", (frozen(np.zeros(1, np.float32)),)), "of another kind"),
        (EmptyCopy(0, shard.number, 1, 1, 1, (1, 1, 1), (4, 4)), "another descent"),
    ]
    for message, words in wrong:
        with pytest.raises(ProtocolError, match=words):
            keeper.handle(Received(4, message), 0)
    table = keeper.tenure.copies.here[shard.number]
    assert table.steps == 0 and not keeper.tenure.copies._arriving
    many = frozen_keys(np.concatenate([np.arange(*one) for one in shard.ranges])[:140_000])
    rows = Rows(many, frozen(np.ones(many.size, np.float32)))
    messages = change_messages(0, shard.number, 1, ShardChange(0, 0.1, (), rows), "s")
    assert len(messages) == 2
    for message in reversed(messages):
        assert table.steps == 0
        keeper.handle(Received(4, message), 0)
    assert table.steps == 1 and np.array_equal(table.state.keys, many)
    np.testing.assert_array_equal(table.state.touched(), np.full(many.size, np.float32(-0.1)))


SENDERS = {"worker": Sender(0, 0), "server": Sender(3, 3), "stranger": Sender(None, STRANGER)}


def cast(**server: Any) -> Cast:
    """Workers and servers of a small table, as the fuzzer knows them."""
    experiment = clicks(3, 2, 6, server=server, task={"dim": 40, "nonzeros": 3, "examples": 20})
    experiment["parallel"] |= {"deadline": 3.0, "least_deadline": 0.2, "start_timeout": 5.0}
    plan = compose.plan(load_experiment(experiment))
    learned, _ = compose.task_of(plan.experiment, plan.learners)
    machines = {node: plan.machine(node, learned.initial(node), learned.schema) for node in range(plan.n)}
    return Cast(machines, {node: plan.partners(node) for node in range(plan.n)}, learned, rounds=6)


@pytest.mark.parametrize("who", SENDERS)
def test_one_that_lies_may_spoil_a_run_and_makes_nobody_raise(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_fuzz.quick(monkeypatch)
    kinds = {"rows": {}, "rows late": {"staleness": 1, "filters": [KEY_CACHE]}, "rows copied": {"replication": 2}}
    for name, server in kinds.items():
        scene = Scene(lambda server=server: cast(**server), SENDERS)  # type: ignore[misc]
        monkeypatch.setitem(SCENES, name, scene)
        for seed in range(2):
            machine_fuzz.checked(name, who, seed)


def test_a_server_that_does_not_come_back_ends_the_run_and_its_rows_are_named() -> None:
    faults = [{"kind": "crash", "peers": [4], "start": 0.2}]
    with pytest.raises(FedgossipError, match=r"server 4 is gone, and with it elements \d+ to \d+") as caught:
        simulate(clicks(faults=faults, parallel={"deadline": 2.0}))
    assert caught.value.exit_code == 3


def test_the_page_shows_how_old_models_were_and_what_each_filter_kept_back(tmp_path: Any) -> None:
    slow = {"classes": [{"nodes": "0", "slower": 10.0}]}
    server = {"staleness": 2, "filters": [KEY_CACHE, "threshold:0.02"]}
    run = simulate(clicks(rounds=12, server=server, simulation=slow), out=tmp_path / "run", report=True)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<h2>Parameter servers</h2>" in page
    assert "from an older model: 2 at most." in page
    table = page.split("Bytes that filters kept back")[1].split("</table>")[0]
    saved: dict[str, int] = {}
    for value in events(run, "push_filters"):
        for name, size in value["saved"].items():
            saved[name] = saved.get(name, 0) + size
    for name, size in saved.items():
        assert name in table and data_size(size) in table
