"""A model in fragments, one of which goes out in a round: against plain loops, its bytes, its bits, what is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from over_sockets import run_over_sockets
from resuming import from_the_middle
from test_outer import Dyadic, workers

from fedgossip import simulate
from fedgossip.algorithms.gossip.fragments import fragments_of, segments_within
from fedgossip.base.errors import ConfigError, ResumeError
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.records import NetworkRow, PeerRow
from fedgossip.core.task import Segment
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.protocols.allreduce.worker_state import UNSENT

TENSORS = (Segment("a", 0, (10, 6)), Segment("b", 60, (10,)), Segment("none", 70, (0, 3)), Segment("c", 70, (4, 2, 5)))


def cut(rounds: int, count: int, *, dim: int = 41, **more: Any) -> dict[str, Any]:
    """Four workers on a ring, 41 elements in so many fragments."""
    outer = {"beta": 0.5, "fragments": count, **more.pop("outer", {})}
    content = workers(rounds, outer=outer, **more)
    content["task"]["dim"] = dim
    return content


@pytest.mark.parametrize("count", range(1, 13))
def test_fragments_cover_the_vector_and_are_cut_between_rows_nearly_evenly(count: int) -> None:
    fragments = fragments_of(110, TENSORS, count)
    rows = [*range(0, 60, 6), *range(60, 70), *range(70, 111, 10)]
    assert fragments.cuts[0] == 0 and fragments.cuts[-1] == 110 and set(fragments.cuts) <= set(rows)
    assert all(abs(place - 110 * f / count) <= 6 for f, place in enumerate(fragments.cuts))  # half a row, and 1
    parts = [fragments.part(round) for round in range(count, 2 * count)]
    assert [part.start for part in parts] == list(fragments.cuts[:-1])
    for part in parts:
        tensors = segments_within(TENSORS, part)
        assert [one.start for one in tensors] == [0, *(one.stop for one in tensors)][:-1]
        assert tensors[-1].stop == part.stop - part.start


def test_it_is_what_plain_loops_make_of_the_paper_to_the_bit() -> None:
    """Streaming DiLoCo: each worker has a model; fragment f of all is synchronised in rounds r with r mod 2 = f."""
    task, lr, beta = Dyadic(), 0.5, 0.5
    shared, velocity, models = np.zeros(4), np.zeros(4), [np.zeros(4) for _ in range(4)]
    for round in range(6):
        models = [model + (b - model) / 2 for model, b in zip(models, task.b, strict=True)]
        part = slice(2 * (round % 2), 2 * (round % 2) + 2)
        moved = np.mean([model[part] for model in models], axis=0) - shared[part]
        velocity[part] = beta * velocity[part] + moved
        shared[part] += lr * (beta * velocity[part] + moved)
        for model in models:
            model[part] = shared[part]
    content = workers(6, outer={"lr": lr, "beta": beta, "fragments": 2}, bucket=0)
    for engine in ("sim", "stacked"):
        run = simulate(content, task=Dyadic(), engine=engine)
        assert {vector.tobytes() for vector in run.vectors} == {shared.tobytes()}


@pytest.mark.parametrize(
    ("codec", "delay"), [("", 0), ("", 1), ("top-k:0.3", 1), ("qsgd:7", 0), ("random-k:0.5", 1), ("powersgd:1", 0)]
)
def test_simulator_and_arrays_have_one_digest_and_the_same_rows(codec: str, delay: int) -> None:
    content = cut(11, 4, codec=codec, outer={"delay": delay})
    if codec.startswith("powersgd"):
        content = {**content, "rounds": 5, "data": {"source": "digits"}, "model": {"source": "mlp:64-8-10"}}
        content |= {"train": {"device": "cpu", "local_steps": 2}, "eval": {"every": 5}}
        del content["task"]
    runs = [simulate(content, engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    ours, theirs = (
        sorted((row.round, row.peer, row.payload_sent) for row in run.rows if isinstance(row, PeerRow)) for run in runs
    )
    assert ours == theirs


@pytest.mark.sockets
def test_workers_over_sockets_have_it_too() -> None:
    content = cut(9, 4, codec="top-k:0.3", outer={"delay": 1})
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    vectors, _ = run_over_sockets(plan, task)
    assert digest(vectors) == simulate(content, engine="stacked").digest


@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_fullest_round_has_a_fragments_bytes_and_all_rounds_the_same_as_ever(count: int) -> None:
    """On a ring all together send 2 (m - 1) times what is summed; 2 more elements bring the loss and the weights."""
    elements, each = 240, 2 * 3 * 4

    def sent(rounds: int, count: int) -> list[int]:
        rows = [row for row in simulate(cut(rounds, count, dim=elements, bucket=0)).rows if isinstance(row, PeerRow)]
        return [sum(row.payload_sent for row in rows if row.round == number) for number in range(1, rounds + 1)]

    whole, parts = sent(6, 1), sent(6 * count, count)
    assert set(whole) == {(elements + 2) * each} and set(parts) == {(elements // count + 2) * each}
    assert sum(parts) - 2 * each * len(parts) == sum(whole) - 2 * each * len(whole)


@pytest.mark.parametrize("count", [1, 2])
def test_with_delay_it_is_what_plain_loops_make_of_workers_that_train_on(count: int) -> None:
    """A mean that arrives a round later takes the place of what a worker has sent for it and of the momentum."""
    task, lr, beta = Dyadic(), 0.5, 0.5
    shared, velocity, models = np.zeros(4), np.zeros(4), [np.zeros(4) for _ in range(4)]
    for round in range(6):
        if round == 0:
            models = [model + (b - model) / 2 for model, b in zip(models, task.b, strict=True)]
        part = slice(4 * (round % count) // count, 4 * (round % count + 1) // count)
        moved = [model[part] - shared[part] for model in models]
        carried = lr * beta * beta * velocity[part]
        for model in models:
            model[part] += carried
        models = [model + (b - model) / 2 for model, b in zip(models, task.b, strict=True)]  # and meanwhile:
        mean = np.mean(moved, axis=0)
        velocity[part] = beta * velocity[part] + mean
        step = lr * (beta * velocity[part] + mean)
        shared[part] += step
        for model, own in zip(models, moved, strict=True):
            model[part] += step - carried - own
    content = workers(6, outer={"lr": lr, "beta": beta, "fragments": count, "delay": 1}, bucket=0)
    for engine in ("sim", "stacked"):
        run = simulate(content, task=Dyadic(), engine=engine)
        assert {vector.tobytes() for vector in run.vectors} == {shared.tobytes()}


def test_what_a_codec_left_out_of_a_fragment_survives_lost_packets_to_the_bit() -> None:
    content = cut(9, 3, codec="top-k:0.3", outer={"delay": 1}, deadline=1e5, least_deadline=1e5)
    run = simulate({**content, "faults": [{"kind": "drop", "probability": 0.15}]})
    assert run.digest == simulate(content, engine="stacked").digest
    assert run.summary["bytes_sent"] > simulate(content).summary["bytes_sent"]  # something was sent again


@pytest.mark.parametrize("delay", [0, 1])
def test_a_worker_that_is_killed_again_and_again_stalls_nobody(delay: int) -> None:
    content = cut(30, 3, codec="top-k:0.3", outer={"delay": delay}, start_timeout=20.0)
    crash = {"kind": "crash", "every": 4.0, "after": 1.0, "stop": 25.0}
    run = simulate({**content, "simulation": {"training": 1.0, "detection": 0.2}, "faults": [crash]})
    assert run.summary["status"] == "finished" and run.summary["seconds"] < 1.5 * 30
    assert max(row.round for row in run.rows if isinstance(row, NetworkRow)) == 30
    assert len({digest([vector]) for vector in run.vectors if vector is not None}) == 1


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_a_stopped_simulation_goes_on_bit_for_bit_with_what_was_not_sent(engine: str, tmp_path: Path) -> None:
    plan = compose.plan(load_experiment(cut(9, 4, codec="top-k:0.3")))
    whole, again = from_the_middle(plan, tmp_path, engine)
    assert again.digest == whole.digest and again.rows == whole.rows


def test_a_checkpoint_holds_what_was_not_sent_and_a_next_life_goes_on_with_it() -> None:
    plan = compose.plan(load_experiment(cut(9, 4, codec="top-k:0.3")))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    machine: Any = plan.machine(0, task.initial(0), task.schema)
    machine.at.unsent.rest = frozen(np.arange(41, dtype=np.float32))
    left = [frozen(np.full(part.size, number, np.float32)) for number, part in enumerate(np.array_split(range(41), 4))]
    for one, vector in zip(machine.at.coded._parts, left, strict=True):
        one.memory = (frozen(np.resize(vector, one.memory[0].size)),)
    held = machine.at.checkpoint(machine.group.saved())
    again: Any = plan.machine(0, task.initial(0), task.schema, resumed=held, incarnation=1)
    assert digest([again.at.unsent.rest]) == digest([machine.at.unsent.rest])
    assert again.at.start.tobytes() == machine.at.start.tobytes()
    assert [one.memory[0][0] for one in again.at.coded._parts] == [0, 1, 2, 3]
    assert UNSENT in held.vectors
    whole = compose.plan(load_experiment(cut(9, 1)))
    other: Any = whole.machine(0, task.initial(0), task.schema)
    with pytest.raises(ResumeError, match="trained and not sent"):
        other.at.unsent.resume(held.vectors)


def test_digits_are_learned_as_well_as_with_whole_models() -> None:
    """Each fragment travels every 20 steps, as the whole does: within 15 % of its loss after 600 steps."""

    def loss(rounds: int, steps: int, count: int) -> float:
        run = simulate(
            {
                "rounds": rounds,
                "data": {"source": "digits"},
                "model": {"source": "mlp:64-32-10"},
                "train": {"device": "cpu", "lr": 0.05, "local_steps": steps},
                "parallel": {"workers": 4, "outer": {"lr": 1.0, "beta": 0.5, "fragments": count}},
                "eval": {"every": rounds},
            },
            engine="stacked",
        )
        return float(run.summary["test_loss"])

    assert loss(120, 5, 4) < 1.15 * loss(30, 20, 1)


@pytest.mark.parametrize(
    ("rounds", "count", "said"),
    [(3, 4, "fragments = 4 in 3 rounds"), (100, 42, "too few rows for so many"), (9, 0, "fragments = 0")],
)
def test_fragments_that_cannot_be_are_refused(rounds: int, count: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        simulate(cut(rounds, count))
