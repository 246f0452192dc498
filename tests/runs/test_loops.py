"""A training loop of the user's own in a run: what `fedgossip.join` promises, in simulations and over sockets."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import in_process
from loops_kit import Machines, batches, loop, net, ring, train
from torch import nn

import fedgossip
from fedgossip.base.errors import ConfigError, NetworkError, TrainingError
from fedgossip.core.records import PeerRow
from fedgossip.drivers.loops.asked import AnsweringLoop, AskingTask
from fedgossip.drivers.loops.description import Described, LoopModel
from fedgossip.drivers.loops.task import Measured
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.runs.run_directory import Run


def bits(model: nn.Module) -> bytes:
    return b"".join(tensor.detach().numpy().tobytes() for tensor in model.state_dict().values())


def trained_bare() -> nn.Module:
    """A model after the bare loop, in one thread of torch, as launched and simulated loops have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(bare := net(), 0, None)
    finally:
        torch.set_num_threads(threads)
    return bare


def test_a_run_that_ends_when_its_loops_do_is_written_and_read_as_endless() -> None:
    content = {"rounds": "endless", "topology": {"graph": "ring", "n": 3}, "task": {"kind": "loop"}}
    experiment = load_experiment(content)
    assert experiment.rounds > 10**9 and experiment.to_dict()["rounds"] == "endless"
    assert load_experiment(experiment.to_dict()) == experiment
    assert load_experiment({**content, "rounds": experiment.rounds}) == experiment


@pytest.mark.parametrize("change", [{"task": {}}, {"topology": None, "parallel": {"workers": 3}, "task": {}}])
def test_only_loops_are_endless(change: dict[str, Any]) -> None:
    content = {"rounds": "endless", "topology": {"graph": "ring", "n": 3}, "task": {"kind": "loop"}, **change}
    with pytest.raises(ConfigError, match="endless") as caught:
        load_experiment({key: value for key, value in content.items() if value is not None})
    assert caught.value.advice


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_loop_that_is_joined_alone_keeps_every_bit_of_the_bare_loop(mode: str) -> None:
    bare = trained_bare()
    joined: list[nn.Module] = []

    def alone() -> None:
        joined.append(net())
        train(joined[0], 0, fedgossip.join)

    fedgossip.simulate_loop(alone, experiment=ring(1, algorithm={"mode": mode}))
    assert bits(joined[0]) == bits(bare)


@pytest.mark.sockets
def test_a_loop_that_is_joined_alone_over_sockets_keeps_every_bit_too(tmp_path: Path) -> None:
    bare, joined = net(), net()
    train(bare, 0, None)
    machines = Machines(tmp_path, ring(1))
    found = machines.run({0: lambda: train(joined, 0, machines.join(0))})
    assert not isinstance(found[0], BaseException), found
    assert bits(joined) == bits(bare)
    assert (tmp_path / "out0" / "ended.json").read_text().startswith('{"status":"finished"')


def test_a_simulation_of_loops_has_the_same_bits_again_and_leaves_the_global_random_states_alone() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    before = torch.rand(1).item(), random.random(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    one = fedgossip.simulate_loop(loop(), experiment=ring())
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == before  # noqa: NPY002
    assert one.digest == fedgossip.simulate_loop(loop(), experiment=ring()).digest
    assert one.summary["rounds"] == 7 and one.summary["status"] == "finished"
    assert "FEDGOSSIP_NODE" not in os.environ


def test_each_loop_of_a_simulation_has_random_states_of_its_own() -> None:
    drawn: dict[int, list[float]] = {}

    def drawing() -> None:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        peer = fedgossip.join(model, torch.optim.SGD(model.parameters(), 0.1))
        for _ in range(4):
            drawn.setdefault(peer.node, []).append(torch.rand(1).item())
            peer.step()
        peer.close()

    fedgossip.simulate_loop(drawing, experiment=ring(3, steps=1))
    assert drawn[0] == drawn[1] == drawn[2] and len(set(drawn[0])) == 4


def test_what_a_loop_logs_is_in_the_record_as_means_over_the_round() -> None:
    run = fedgossip.simulate_loop(loop(), experiment=ring())
    rows = [row for row in run.rows if isinstance(row, PeerRow) and row.peer == 1 and row.round]
    assert all(row.loss is not None and row.logged for row in rows)
    assert rows[1].logged == {"rate": pytest.approx(0.05), "batch": 1.5}


def scoring(measured: list[str] | None = None) -> Callable[[], None]:
    def score(model: nn.Module) -> dict[str, float]:
        model.eval()
        torch.rand(3)  # whatever it draws is not missing in the loop
        x, y = batches(99, 1)[0]
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(x), y).item()
        return {"loss": loss, "accuracy": 1 / (1 + loss)}

    def run() -> None:
        def joined(model: nn.Module, optimizer: Any) -> fedgossip.JoinedLoop:
            peer = fedgossip.join(model, optimizer)
            peer.evaluate(score)
            return peer

        train(net(), 0, joined)

    return run


def test_evaluating_gives_the_three_accuracies_and_changes_no_bit_of_the_loop() -> None:
    run = fedgossip.simulate_loop(scoring(), experiment=ring())
    assert all(value is not None for value in run.accuracy.values()) and run.summary["test_loss"] is not None
    assert run.accuracy["worst_peer"] <= run.accuracy["mean_peer"]
    assert run.digest == fedgossip.simulate_loop(loop(), experiment=ring()).digest


def measuring(worth: dict[str, float]) -> Callable[[], None]:
    def run() -> None:
        def joined(model: nn.Module, optimizer: Any) -> fedgossip.JoinedLoop:
            peer = fedgossip.join(model, optimizer)
            peer.evaluate(lambda _: worth)
            return peer

        train(net(), 0, joined)

    return run


def test_a_score_without_a_loss_is_the_score_of_the_whole_run() -> None:
    run = fedgossip.simulate_loop(measuring({"accuracy": 0.75}), experiment=ring())
    assert run.summary["rounds"] % 3  # the last round is none that is measured
    assert run.accuracy == {"averaged": 0.75, "mean_peer": 0.75, "worst_peer": 0.75}


def measured_at(node: int) -> Callable[[], None]:
    def run() -> None:
        def joined(model: nn.Module, optimizer: Any) -> fedgossip.JoinedLoop:
            peer = fedgossip.join(model, optimizer)
            if peer.node == node:
                peer.evaluate(lambda _: {"accuracy": 0.75})
            return peer

        train(net(), 0, joined)

    return run


@pytest.mark.parametrize("of_run", [{"topology": {"graph": "ring", "n": 3}}, {"coordinator": {"clients": 3}}])
def test_a_measure_at_any_one_loop_scores_the_run(of_run: dict[str, Any]) -> None:
    content = {"rounds": 3, "task": {"kind": "loop"}, "train": {"local_steps": 2}, **of_run}
    assert fedgossip.simulate_loop(measured_at(2), experiment=content).accuracy["averaged"] == 0.75


def test_a_measure_at_any_one_loop_answers_requests_of_another_process(tmp_path: Path) -> None:
    class Answering:
        def __init__(self, metrics: dict[str, float]) -> None:
            self.ask = lambda _: Measured(metrics)

    one = np.zeros(3, np.float32)
    task = AskingTask(Described(LoopModel("", "float32", []), one), tmp_path, lambda: [0, 1])
    for node, metrics in enumerate(({}, {"accuracy": 0.75})):
        AnsweringLoop(tmp_path, node, Answering(metrics), lambda: True, lambda: None)  # type: ignore[arg-type]
    assert task.evaluate([one]) == [{"accuracy": 0.75}]
    task.over()


def test_a_measure_without_the_score_of_the_run_is_told_so_once(capfd: pytest.CaptureFixture[str]) -> None:
    fedgossip.simulate_loop(measuring({"rmse": 0.5, "loss": 0.25}), experiment=ring(2))
    text = "evaluate returned rmse and no accuracy: reports show no score until task.metrics names yours"
    assert (
        capfd.readouterr().err == f"fedgossip: node 0: {text}\n"
    )  # one loop measures for both, whose models are equal


def test_evaluating_in_other_rounds_than_the_run_is_refused() -> None:
    def often() -> None:
        model = net()
        fedgossip.join(model, torch.optim.SGD(model.parameters(), 0.1)).evaluate(lambda _: {}, every=2)

    with pytest.raises(ConfigError, match="every = 2, and the run measures every 3 rounds"):
        fedgossip.simulate_loop(often, experiment=ring())


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "scaffold", "fednova", "fedadam"])
def test_loops_are_clients_of_every_federated_algorithm(algorithm: str) -> None:
    options = {"fedprox": {"mu": 0.5}}.get(algorithm, {})
    coordinator = {"clients": 4, "algorithm": algorithm, "options": options, "secure": {"on": algorithm != "fednova"}}
    content = {"coordinator": coordinator, "rounds": 4, "task": {"kind": "loop"}, "train": {"local_steps": 2}}
    make = torch.optim.SGD if algorithm == "scaffold" else torch.optim.Adam
    run = fedgossip.simulate_loop(loop(steps=8, make=make), experiment=content)
    assert run.summary["status"] == "finished" and run.summary["rounds"] == 4


def test_fedprox_pulls_a_loop_back_to_what_it_was_given() -> None:
    def moved(mu: float) -> float:
        options = {"mu": mu}
        content = {
            "coordinator": {"clients": 3, "algorithm": "fedprox", "options": options, "secure": {"on": False}},
            "rounds": 1,
            "task": {"kind": "loop"},
            "train": {"local_steps": 8},
        }
        run = fedgossip.simulate_loop(loop(steps=8), experiment=content)
        start = np.concatenate([p.detach().numpy().ravel() for p in net().parameters()])
        return float(np.linalg.norm(run.vectors[-1][: start.size] - start))

    assert moved(20.0) < 0.8 * moved(0.0001)


def test_feddyn_is_refused_of_loops() -> None:
    content = {"task": {"kind": "loop"}, "coordinator": {"clients": 4, "algorithm": "feddyn"}}
    with pytest.raises(ConfigError, match="feddyn corrects each step"):
        compose.plan(load_experiment(content))


def test_fednova_lets_the_momentum_of_a_loop_begin_each_round_at_rest() -> None:
    """Its formula divides by what steps from rest add up to; without it the buffer of the last round would be there."""
    seen: list[list[float]] = []

    def run() -> None:
        torch.manual_seed(0)
        model = nn.Linear(2, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        peer = fedgossip.join(model, optimizer)
        kept = []
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()  # the gradient is always one
            optimizer.step()
            kept.append(optimizer.state[model.weight]["momentum_buffer"][0, 0].item())
            peer.step()
        peer.close()
        seen.append(kept)

    options = {"momentum": 0.9}
    coordinator = {"clients": 2, "algorithm": "fednova", "options": options, "secure": {"on": False}}
    content = {"coordinator": coordinator, "rounds": 3, "task": {"kind": "loop"}, "train": {"local_steps": 2}}
    fedgossip.simulate_loop(run, experiment=content)
    assert seen == [pytest.approx([1.0, 1.9] * 3)] * 2
    goes_on = {**coordinator, "algorithm": "fedavg", "options": {}}
    fedgossip.simulate_loop(run, experiment={**content, "coordinator": goes_on})
    assert seen[2][2] == pytest.approx(2.71)  # 1 + 0.9 * 1.9: it goes on


@pytest.mark.parametrize(
    ("name", "mode"), [("dsgd", "async"), ("push-sum", "sync"), ("push-sum", "async"), ("gradient-tracking", "sync")]
)
def test_loops_take_part_by_every_method_of_gossip(name: str, mode: str) -> None:
    run = fedgossip.simulate_loop(loop(), experiment=ring(algorithm={"name": name, "mode": mode}))
    assert run.summary["status"] == "finished" and run.digest


class Adapted(nn.Module):
    """A frozen base and an adapter beside it, as LoRA has."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 64)
        self.lora_a, self.lora_b = nn.Linear(64, 2, bias=False), nn.Linear(2, 64, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.lora_b(self.lora_a(x))


def adapting(base_seed: Callable[[], int] = lambda: 0, **how: Any) -> Callable[[], None]:
    def run() -> None:
        torch.manual_seed(base_seed())
        base = nn.Linear(64, 64)
        torch.manual_seed(0)
        model = Adapted()
        model.base.load_state_dict(base.state_dict())
        trained = [p for p in model.parameters() if p.requires_grad]
        peer = fedgossip.join(model, torch.optim.SGD(trained, 0.1), **how)
        for _ in range(4):
            model(torch.ones(1, 64)).sum().backward()
            peer.step()
        peer.close()

    return run


def test_of_a_frozen_base_with_adapters_only_the_adapters_travel() -> None:
    run = fedgossip.simulate_loop(adapting(), experiment=ring(2, steps=1))
    assert run.summary["parameters"] == 2 * 64 * 2
    rows = [row for row in run.rows if isinstance(row, PeerRow) and 1 < row.round < 4]
    assert all(1024 <= row.bytes_sent < 1024 + 200 for row in rows)  # one message with the adapters alone
    assert fedgossip.simulate_loop(adapting(exchange="lora_a.*"), experiment=ring(2, steps=1)).vectors[0].size == 128


def test_loops_whose_frozen_bases_differ_do_not_mix() -> None:
    node = lambda: int(os.environ["FEDGOSSIP_NODE"])  # noqa: E731
    with pytest.raises(ConfigError, match="loops 0 and 1 begin with different frozen parameters"):
        fedgossip.simulate_loop(adapting(node), experiment=ring(2))


def test_loops_that_begin_with_other_weights_do_not_mix() -> None:
    def seeded() -> None:
        train(net(int(os.environ["FEDGOSSIP_NODE"])), 0, fedgossip.join)

    with pytest.raises(ConfigError, match="begin with different first weights") as caught:
        fedgossip.simulate_loop(seeded, experiment=ring(2))
    assert "torch.manual_seed" in caught.value.advice


def test_another_model_is_refused_naming_the_first_parameter_that_differs() -> None:
    def shaped() -> None:
        torch.manual_seed(0)
        width = 8 if os.environ["FEDGOSSIP_NODE"] == "0" else 9
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, width))
        fedgossip.join(model, torch.optim.SGD(model.parameters(), 0.1))

    with pytest.raises(ConfigError, match=r"'1.weight' \[8, 4\] here is '1.weight' \[9, 4\] there"):
        fedgossip.simulate_loop(shaped, experiment=ring(2))


@pytest.mark.parametrize(
    ("kinds", "refused"), [("float32 bfloat16", True), ("float64 float32", True), ("bfloat16 bfloat16", False)]
)
def test_loops_whose_weights_are_of_other_types_do_not_mix(kinds: str, refused: bool) -> None:
    """A mean that one of them rounds to 8 bits is the model of the others no more."""

    def typed() -> None:
        torch.manual_seed(0)
        model = nn.Linear(2, 1).to(getattr(torch, kinds.split()[int(os.environ["FEDGOSSIP_NODE"])]))
        fedgossip.join(model, torch.optim.SGD(model.parameters(), 0.1))

    if not refused:
        fedgossip.simulate_loop(typed, experiment=ring(2, steps=1))
        return
    with pytest.raises(ConfigError, match=r"loops 0 and 1 have different models: 'weight' of \w+ here is of \w+ there"):
        fedgossip.simulate_loop(typed, experiment=ring(2, steps=1))


# --- bad input -----------------------------------------------------------------------------------------------------


def with_a_peer(body: Callable[[fedgossip.JoinedLoop, nn.Module], object], n: int = 2) -> Run:
    """Run loops that do `body(peer, model)`, each over two weights."""

    def run() -> None:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        body(fedgossip.join(model, torch.optim.SGD(model.parameters(), 0.1)), model)

    return fedgossip.simulate_loop(run, experiment=ring(n, steps=1))


def raises(kind: type[Exception], match: str, body: Callable[[fedgossip.JoinedLoop, nn.Module], object]) -> None:
    seen: list[Exception] = []

    def guarded(peer: fedgossip.JoinedLoop, model: nn.Module) -> None:
        with pytest.raises(kind, match=match) as caught:
            body(peer, model)
        seen.append(caught.value)
        peer.close()

    with_a_peer(guarded)
    assert len(seen) == 2


def test_a_step_after_the_end_is_refused() -> None:
    def body(peer: fedgossip.JoinedLoop, _: nn.Module) -> None:
        peer.close()
        peer.close()
        peer.step()

    raises(ConfigError, r"step\(\) after close\(\)", body)


def test_a_step_in_another_thread_is_refused() -> None:
    def body(peer: fedgossip.JoinedLoop, _: nn.Module) -> None:
        found: list[Exception] = []

        def elsewhere() -> None:
            try:
                peer.step()
            except ConfigError as error:
                found.append(error)

        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        raise found[0]

    raises(ConfigError, r"step\(\) in another thread than join\(\)", body)


def test_a_tensor_that_is_no_number_is_not_logged() -> None:
    raises(ConfigError, r"log: 'loss' is a tensor \[3\]", lambda peer, _: peer.log(loss=torch.ones(3)))


def test_a_state_that_is_not_the_peers_own_is_refused() -> None:
    raises(ConfigError, "not what state_dict", lambda peer, _: peer.load_state_dict({"steps": 3}))


def test_the_steps_of_an_open_round_go_into_a_checkpoint_of_the_loops_own() -> None:
    rounds: list[int] = []

    def run() -> None:
        model = net()
        peer = fedgossip.join(model, torch.optim.SGD(model.parameters(), 0.1))
        peer.load_state_dict({**peer.state_dict(), "steps": 2})  # of a life before
        peer.step()
        rounds.append(peer.round)
        peer.close()

    fedgossip.simulate_loop(run, experiment=ring(2, steps=3))
    assert rounds == [1, 1]


def test_a_parameter_that_became_nan_is_named_and_nothing_of_it_is_sent() -> None:
    def body(peer: fedgossip.JoinedLoop, model: nn.Module) -> None:
        if peer.node:
            with torch.no_grad():
                model.bias.fill_(float("nan"))
        peer.step()
        peer.close()

    with pytest.raises(TrainingError, match="node 1, round 0: the parameter 'bias' holds 1 elements that are not"):
        with_a_peer(body)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda model: model.half(), r"'weight' was \[1, 2\] of float32 and is \[1, 2\] of float16 now"),
        (lambda model: setattr(model, "weight", nn.Parameter(torch.ones(1, 3))), r"is \[1, 3\] of float32 now"),
        (lambda model: delattr(model, "bias"), r"'bias' was \[1\] of float32 and is gone"),
    ],
)
def test_a_parameter_that_changes_shape_or_type_on_the_way_is_named(
    change: Callable[[nn.Module], object], match: str
) -> None:
    def body(peer: fedgossip.JoinedLoop, model: nn.Module) -> None:
        change(model)
        peer.step()

    with pytest.raises(ConfigError, match=match):
        with_a_peer(body)


def test_an_optimizer_that_does_not_hold_the_models_parameters_is_refused() -> None:
    def run() -> None:
        model, other = nn.Linear(2, 1), nn.Linear(2, 1)
        fedgossip.join(model, torch.optim.SGD(other.parameters(), 0.1))

    with pytest.raises(ConfigError, match="no optimizer holds the parameter 'weight'"):
        fedgossip.simulate_loop(run, experiment=ring(2))


def test_a_pattern_that_matches_nothing_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(ConfigError, match="no parameter that trains matches 'lora_c'") as caught:
        fedgossip.simulate_loop(adapting(exchange="lora_c"), experiment=ring(2))
    assert "lora_a.weight" in caught.value.advice


def test_a_second_join_in_one_loop_is_refused_with_the_way_that_is_meant() -> None:
    def run() -> None:
        for _ in range(2):
            train(net(), 0, fedgossip.join)

    with pytest.raises(TrainingError, match="joined already"):
        fedgossip.simulate_loop(run, experiment=ring(2))


def test_a_script_that_nobody_launched_is_told_how_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGOSSIP_LOOP", raising=False)
    with pytest.raises(ConfigError, match="no run to take part in") as caught:
        train(net(), 0, fedgossip.join)
    assert "fedgossip launch -n 1" in caught.value.advice


@pytest.mark.parametrize(
    ("key", "value"), [("model", {"source": "mlp:64-32-10"}), ("data", {"test": 0.5}), ("train", {"lr": 0.5})]
)
def test_what_a_loop_decides_itself_does_not_stand_in_its_experiment(key: str, value: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"with task.kind = loop"):
        fedgossip.simulate_loop(loop(), experiment={**ring(), key: value})


def test_no_other_command_runs_an_experiment_of_loops() -> None:
    with pytest.raises(ConfigError, match="which no other command can run") as caught:
        fedgossip.simulate(ring())
    assert "fedgossip launch" in caught.value.advice


def test_a_loop_that_never_joins_is_named() -> None:
    with pytest.raises(ConfigError, match="loop 0 ended before it joined"):
        fedgossip.simulate_loop(lambda: None, experiment=ring())


def test_a_loop_whose_parameters_never_change_is_told_so(capfd: pytest.CaptureFixture[str]) -> None:
    def body(peer: fedgossip.JoinedLoop, _: nn.Module) -> None:
        peer.step()
        peer.close()

    with_a_peer(body)
    assert "node 1: no parameter changed in 1 steps: is step() called after optimizer.step()?" in capfd.readouterr().err


# --- ends ----------------------------------------------------------------------------------------------------------


def test_a_run_of_so_many_rounds_leaves_the_rest_of_the_loop_alone() -> None:
    went_on: list[bool] = []

    def body(peer: fedgossip.JoinedLoop, _: nn.Module) -> None:
        went_on.extend(peer.step() for _ in range(5))

    def run() -> None:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        body(fedgossip.join(model, torch.optim.SGD(model.parameters(), 0.1)), model)

    done = fedgossip.simulate_loop(run, experiment={**ring(2, steps=1), "rounds": 3})
    assert done.summary["rounds"] == 3 and done.digest
    assert sorted(went_on) == [False] * 6 + [True] * 4


def test_loops_of_unlike_lengths_end_without_waiting_for_each_other() -> None:
    def run() -> None:
        model = nn.Linear(2, 1)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        peer = fedgossip.join(model, torch.optim.SGD(model.parameters(), 0.1))
        for _ in range(2 + 3 * peer.node):
            peer.step()
        peer.close()

    done = fedgossip.simulate_loop(run, experiment=ring(3, steps=1))
    assert done.summary["status"] == "finished" and done.summary["rounds"] == 8


def test_a_loop_that_crashes_in_a_fault_script_comes_back_by_starting_again() -> None:
    faults = [{"kind": "crash", "peers": [1], "start": 0.12, "after": 0.2}]
    begun: list[int] = []

    def run() -> None:
        begun.append(int(os.environ["FEDGOSSIP_NODE"]))
        train(net(), 0, fedgossip.join, steps=30)

    done = fedgossip.simulate_loop(run, experiment=ring(3, algorithm={"deadline": 1.0}, faults=faults))
    assert sorted(begun) == [0, 1, 1, 2] and done.summary["events"]["restarted"] == 1
    assert all(vector is not None for vector in done.vectors)


def test_an_exception_in_one_loop_ends_a_simulation_with_its_words() -> None:
    def body(peer: fedgossip.JoinedLoop, _: nn.Module) -> None:
        peer.step()
        if peer.node == 1:
            raise ZeroDivisionError("by my own doing")
        peer.close()

    with pytest.raises(TrainingError, match="node 1, round 1: the loop raised ZeroDivisionError: by my own doing"):
        with_a_peer(body)


@pytest.mark.sockets
def test_a_loop_that_raises_says_goodbye_and_the_others_go_on_over_sockets(tmp_path: Path) -> None:
    machines = Machines(tmp_path, ring(2, steps=1, algorithm={"deadline": 3.0, "least_deadline": 3.0}))

    def body(node: int) -> Callable[[], object]:
        model = net()  # here: threads share torch's random state

        def run() -> object:
            with machines.join(node)(model, torch.optim.SGD(model.parameters(), 0.1)) as peer:
                for step in range(6):
                    if node == 1 and step == 2:
                        raise ZeroDivisionError("by my own doing")
                    peer.step()
            return peer.round

        return run

    found = machines.run({0: body(0), 1: body(1)})
    assert isinstance(found[1], ZeroDivisionError)
    assert found[0] == 6  # all its rounds
    assert '"failed"' in (tmp_path / "out1" / "ended.json").read_text()


@pytest.mark.sockets
def test_scores_that_loops_on_several_machines_measured_are_the_collected_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """None of them measures the mean, and the run ends between two measurements."""
    machines = Machines(tmp_path, ring(2, steps=1))

    def body(node: int) -> Callable[[], object]:
        model = net()

        def run() -> None:
            with machines.join(node)(model, torch.optim.SGD(model.parameters(), 0.1)) as peer:
                peer.evaluate(lambda _: {"accuracy": (0.5, 0.75)[node]})
                for _ in range(4):
                    peer.step()

        return run

    machines.run({node: body(node) for node in range(2)})
    said = in_process(["collect", "lan.toml", "out0", "out1", "--out", "whole"], tmp_path, monkeypatch, capsys)
    assert "0.6250 mean peer, 0.5000 worst peer, in round 3" in said.out
    score = json.loads((tmp_path / "whole" / "summary.json").read_text())["score"]
    assert (score["averaged"], score["mean_peer"], score["worst_peer"], score["round"]) == (None, 0.625, 0.5, 3)


@pytest.mark.sockets
def test_a_loop_that_does_not_come_leaves_a_clear_error_over_sockets(tmp_path: Path) -> None:
    machines = Machines(tmp_path, ring(2, algorithm={"start_timeout": 0.3}))
    found = machines.run({0: lambda: train(net(), 0, machines.join(0))})
    assert "none of the neighbours [1] joined" in str(found[0])


@pytest.mark.sockets
def test_two_joins_in_one_process_have_names_and_peers_of_a_mesh_agree(tmp_path: Path) -> None:
    machines = Machines(tmp_path, ring(2))
    models = [net(), net()]
    found = machines.run({node: lambda node=node: train(models[node], node, machines.join(node)) for node in range(2)})
    assert not any(isinstance(one, BaseException) for one in found.values()), found
    assert bits(models[0]) != bits(net()) and found[0].round == found[1].round == 7  # type: ignore[attr-defined]


@pytest.mark.sockets
def test_a_loop_comes_back_in_its_folder_with_what_it_had(tmp_path: Path) -> None:
    machines = Machines(tmp_path, ring(2, steps=1))
    models = [net(), net(), net(), net()]
    first = machines.run({k: lambda k=k: train(models[k], k, machines.join(k), 3) for k in range(2)})
    again = machines.run({k: lambda k=k: train(models[2 + k], k, machines.join(k), 3) for k in range(2)})
    assert [peer.round for peer in first.values()] == [3, 3], first  # type: ignore[attr-defined]
    assert [peer.round for peer in again.values()] == [6, 6], again  # type: ignore[attr-defined]


@pytest.mark.sockets
def test_an_asynchronous_loop_never_waits_for_its_neighbour(tmp_path: Path) -> None:
    machines = Machines(tmp_path, ring(2, steps=1, algorithm={"mode": "async", "deadline": 1.0}))
    stuck, steps = threading.Event(), []
    models = [net(), net()]

    def quick() -> None:
        peer = machines.join(0)(models[0], torch.optim.SGD(models[0].parameters(), 0.1))
        for _ in range(50):
            peer.step()
            steps.append(peer.round)
        stuck.set()
        peer.close()

    def slow() -> None:
        peer = machines.join(1)(models[1], torch.optim.SGD(models[1].parameters(), 0.1))
        assert stuck.wait(30)  # the other has made all its steps meanwhile
        peer.close()

    found = machines.run({0: quick, 1: slow})
    assert not any(found.values()), found
    assert len(steps) == 50


def test_a_launcher_that_is_gone_ends_the_loop_with_an_error() -> None:
    from fedgossip.drivers.loops.joining import HostThread
    from fedgossip.runs.peer_files import PeerEnded

    ended = PeerEnded("interrupted", 3, {}, exit_code=130)
    assert isinstance(HostThread.stopped(ended, asked=False), NetworkError)
    assert HostThread.stopped(ended, asked=True) is None


@pytest.mark.sockets
def test_a_loop_that_stops_calling_step_is_missed_and_watch_says_who(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deadline = {"deadline": 2.0, "least_deadline": 2.0}
    machines = Machines(tmp_path, ring(3, steps=1, algorithm=deadline))
    gone_on, waiting = threading.Event(), threading.Barrier(3)
    models = [net() for _ in range(3)]  # here: threads share torch's random state

    def body(node: int) -> Callable[[], object]:
        def run() -> object:
            peer = machines.join(node)(models[node], torch.optim.SGD(models[node].parameters(), 0.1))
            waiting.wait(60)
            for step in range(4):
                if node == 1 and step == 2:
                    assert gone_on.wait(60)  # until another one has done all its rounds
                peer.step()
            gone_on.set()
            peer.close()
            return peer.round

        return run

    found = machines.run({node: body(node) for node in range(3)}, 120)
    assert found[0] == found[2] == 4, found
    said = in_process(["watch", str(tmp_path / "out0")], tmp_path, monkeypatch, capsys)
    assert "goes on without 1" in said.out, said.out
