"""A checkpoint is whole or it is refused with a reason; what is written last is never the only one."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from fedgossip.base import owner_files
from fedgossip.base.errors import ResumeError
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.machine import Checkpoint
from fedgossip.core.run_format import CHECKPOINT, CHECKPOINT_BEFORE, INCARNATION
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.runs import checkpoints, incarnations
from fedgossip.runs.checkpoints import About, Checkpoints, RefusedError, Stored, differences

EXPERIMENT = load_experiment({"rounds": 9, "topology": {"graph": "ring", "n": 4}}).to_dict()
ABOUT = About(2, "layout", "1", EXPERIMENT, "data", 0, {"numpy": "2"})


def stored(round: int, **about: Any) -> Stored:
    vector = frozen(np.full(7, round, np.float32))
    memory = {"momentum": np.arange(7, dtype=np.float32) + round, "steps": np.asarray(5 * round)}
    machine = Checkpoint(round, {"state/0": vector}, {"seed": 2**90, "weight": 0.1, "list": [1, {"a": "b"}]})
    return Stored(dataclasses.replace(ABOUT, **about), machine, memory)


def found(folder: Path, **about: Any) -> tuple[int | None, list[str]]:
    """The round that is taken, and the reasons why others were not."""
    one, refused = checkpoints.load(folder, dataclasses.replace(ABOUT, **about))
    return (one.machine.round if one else None), [error.reason for error in refused]


# --- there and back -------------------------------------------------------------------------------------------------


def test_all_of_it_comes_back(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, stored(3))
    back = checkpoints.read(tmp_path / CHECKPOINT)
    assert back.about == ABOUT
    assert (back.machine.round, back.machine.facts) == (3, stored(3).machine.facts)
    assert digest(back.machine.vectors.values()) == digest(stored(3).machine.vectors.values())
    assert not back.machine.vectors["state/0"].flags.writeable
    assert {name: array.tolist() for name, array in back.task.items()} == {
        name: array.tolist() for name, array in stored(3).task.items()
    }
    assert back.task["steps"].shape == ()


def test_it_is_a_safetensors_file_that_others_can_read(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, stored(3))
    tensors = load_file(tmp_path / CHECKPOINT)
    assert set(tensors) == {"vector/state/0", "task/momentum", "task/steps"}
    assert tensors["task/momentum"].tolist() == [3, 4, 5, 6, 7, 8, 9]


# --- what is refused ------------------------------------------------------------------------------------------------


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert found(tmp_path) == (None, [])


@given(data=st.data())
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_changed_or_missing_byte_is_refused_and_the_one_before_is_taken(
    tmp_path: Path, data: st.DataObject
) -> None:
    for round in (1, 2):
        checkpoints.write(tmp_path, stored(round))
    content = bytearray((tmp_path / CHECKPOINT).read_bytes())
    if data.draw(st.booleans(), "cut short"):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    (tmp_path / CHECKPOINT).write_bytes(content)
    round, refused = found(tmp_path)
    if (round, refused) == (2, []):  # a blank of the header that says the same as another
        assert digest(checkpoints.read(tmp_path / CHECKPOINT).machine.vectors.values()) == digest(
            stored(2).machine.vectors.values()
        )
    else:
        assert round == 1 and refused[0] in ("corrupt", "format")


def test_a_header_that_claims_more_than_there_is_is_refused(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    with pytest.raises(RefusedError) as error:
        checkpoints.read(tmp_path / CHECKPOINT)
    assert error.value.reason == "corrupt"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"node": 1}, "peer"), ({"version": "2"}, "version"), ({"schema": "other"}, "model")],
)
def test_what_is_not_ours_is_refused_with_its_reason(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    checkpoints.write(tmp_path, stored(1))
    checkpoints.write(tmp_path, stored(2, **changed))
    assert found(tmp_path) == (1, [reason])


def test_an_older_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.write(tmp_path, stored(1))
    kept = checkpoints.FORMAT
    monkeypatch.setattr(checkpoints, "FORMAT", kept + 1)
    with pytest.raises(ResumeError, match=f"of format {kept}, this fedgossip writes {kept + 1}"):
        found(tmp_path)


def test_two_bad_ones_say_which_files_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).write_bytes(b"")
    (tmp_path / CHECKPOINT_BEFORE).write_bytes(b"\x80\x04")
    with pytest.raises(ResumeError) as error:
        found(tmp_path)
    assert error.value.exit_code == 8
    assert CHECKPOINT in str(error.value) and CHECKPOINT_BEFORE in str(error.value)
    assert "new folder" in error.value.advice


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_bad_newest_is_not_written_over_the_good_one_before(tmp_path: Path) -> None:
    """The peer goes on from the one before; its next checkpoint may not be whole either."""
    plan = compose.plan(load_experiment({"rounds": 9, "topology": {"graph": "ring", "n": 4}}))
    about = incarnations.about_of(plan, 2, "layout", "data")
    for round in (1, 2):
        checkpoints.write(tmp_path, dataclasses.replace(stored(round), about=about))
    spoil(tmp_path / CHECKPOINT)
    life = incarnations.next_after(plan, 2, tmp_path, "layout", "data")
    assert life.round == 1 and [error.reason for error in life.refused] == ["corrupt"]
    checkpoints.write(tmp_path, dataclasses.replace(stored(3), about=about))
    spoil(tmp_path / CHECKPOINT)
    one, _ = checkpoints.load(tmp_path, about)
    assert one is not None and one.machine.round == 1


# --- interrupted, or no room ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", range(4))
def test_a_write_that_is_interrupted_anywhere_leaves_one_that_can_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    for round in (1, 2):
        checkpoints.write(tmp_path, stored(round))
    calls = iter(range(10))

    class Killed(BaseException):
        pass

    def or_die(name: str, inner: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if next(calls) == stop:
                raise Killed
            return inner(*arguments)

        return call

    monkeypatch.setattr(checkpoints.os, "fsync", or_die("fsync", checkpoints.os.fsync))
    monkeypatch.setattr(Path, "replace", or_die("replace", Path.replace))
    with pytest.raises(Killed):
        checkpoints.write(tmp_path, stored(3))
    round, refused = found(tmp_path)
    assert round in (2, 3) and not refused


def full(*_: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_keeps_the_checkpoint_before_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, str | None]] = []
    kept = Checkpoints(tmp_path, ABOUT, lambda round, error: told.append((round, error.strerror)), seconds=0)
    kept.keep(stored(1).machine, {})
    assert kept.close() == 1
    monkeypatch.setattr(checkpoints.os, "fsync", full)
    kept = Checkpoints(tmp_path, ABOUT, lambda round, error: told.append((round, error.strerror)), seconds=1e9)
    kept.keep(stored(2).machine, {})
    assert kept.close() is None
    assert told == [(2, "No space left on device")]
    assert found(tmp_path) == (1, [])
    assert not list(tmp_path.glob("*.part"))


def test_the_file_system_itself_may_refuse(tmp_path: Path) -> None:
    told: list[str] = []
    kept = Checkpoints(tmp_path / "gone", ABOUT, lambda _, error: told.append(type(error).__name__), seconds=1e9)
    kept.keep(stored(1).machine, {})
    assert kept.close() is None and told == ["FileNotFoundError"]


# --- while a peer runs ----------------------------------------------------------------------------------------------


def test_keeping_never_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    real = checkpoints.write_tensors

    def slow(*arguments: Any) -> None:
        begun.set()
        assert go_on.wait(20)
        real(*arguments)

    monkeypatch.setattr("fedgossip.runs.checkpoints.write_tensors", slow)
    kept = Checkpoints(tmp_path, ABOUT, lambda *_: None, seconds=0)
    kept.keep(stored(1).machine, {})
    assert begun.wait(20)
    for round in (2, 3, 4):  # returns although the first is still being written
        kept.keep(stored(round).machine, {})
    go_on.set()
    assert kept.close() == 4
    assert found(tmp_path) == (4, [])


def test_the_newest_is_written_at_the_end_even_if_it_was_not_time(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, ABOUT, lambda *_: None, seconds=1e9)
    for round in (1, 2, 3):
        kept.keep(stored(round).machine, stored(round).task)
    assert not (tmp_path / CHECKPOINT).exists()
    assert kept.close() == 3
    assert checkpoints.read(tmp_path / CHECKPOINT).task["steps"] == 15


def durable(round: int) -> Checkpoint:
    return Checkpoint(round, stored(round).machine.vectors, {"view": "new"}, durable=True)


def kept_at(tmp_path: Path, seconds: float = 1e9) -> Checkpoints:
    return Checkpoints(tmp_path, ABOUT, lambda round, error: pytest.fail(f"{round}: {error!r}"), seconds)


def test_a_durable_checkpoint_has_what_the_task_remembered_after_its_round(tmp_path: Path) -> None:
    """A worker that is killed after a new view went on with an optimizer that had begun anew."""
    kept = kept_at(tmp_path)
    kept.keep(stored(3).machine, stored(3).task)
    kept.now(durable(3))
    assert checkpoints.read(tmp_path / CHECKPOINT).task["steps"] == 15
    kept.close()
    again = kept_at(tmp_path)  # the next life, in which a view comes before the first round
    again.begin(3, stored(3).task)
    again.now(durable(3))
    assert checkpoints.read(tmp_path / CHECKPOINT).task["steps"] == 15
    again.close()


def test_a_durable_checkpoint_waits_for_the_memory_of_its_round_and_is_not_written_over(tmp_path: Path) -> None:
    """The thread that trains may come a moment later, with the view before."""
    kept = kept_at(tmp_path)
    kept.keep(stored(3).machine, stored(3).task)
    later = threading.Timer(0.05, kept.keep, (stored(4).machine, stored(4).task))
    later.start()
    kept.now(durable(4))
    later.join()
    assert kept.close() == 4
    one = checkpoints.read(tmp_path / CHECKPOINT)
    assert (one.machine.facts, one.task["steps"]) == ({"view": "new"}, 20)


def test_two_threads_that_have_checkpoints_written_leave_whole_ones(tmp_path: Path) -> None:
    """Both wrote one .part file, and each took away what the other had written."""
    kept = kept_at(tmp_path, seconds=0)
    for round in range(0, 6, 2):
        training = threading.Thread(target=kept.keep, args=(stored(round).machine, stored(round).task))
        training.start()
        kept.now(durable(round + 1))
        assert checkpoints.read(tmp_path / CHECKPOINT).machine.round >= round + 1
        training.join()
    kept.close()


class Killed(BaseException):
    """In place of SIGKILL."""


@pytest.mark.parametrize("call", range(1, 6))
def test_a_kill_at_any_step_of_a_write_leaves_a_checkpoint_with_its_memory(
    tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps: the file opened, its bytes on disk, the one before renamed, the new one renamed, the folder on disk."""
    kept, calls = kept_at(tmp_path), 0
    kept.keep(stored(3).machine, stored(3).task)
    kept.now(durable(3))

    def dying(real: Any) -> Any:
        def step(*arguments: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                raise Killed
            return real(*arguments, **more)

        return step

    steps: list[tuple[Any, str]] = [(owner_files, "opened"), (os, "fsync"), (Path, "replace")]
    with monkeypatch.context() as patched:
        patched.setattr(threading, "excepthook", lambda _: None)
        for owner, name in [*steps, (owner_files, "sync_folder")]:
            patched.setattr(owner, name, dying(getattr(owner, name)))
        kept.keep(stored(4).machine, stored(4).task)
        with pytest.raises(Killed):
            kept.now(durable(4))
    one, _ = checkpoints.load(tmp_path, ABOUT)
    assert one is not None and one.machine.round in (3, 4)
    assert one.task["steps"] == 5 * one.machine.round and one.machine.facts == {"view": "new"}


# --- lives ------------------------------------------------------------------------------------------------------------


def test_lives_are_counted_on_disk(tmp_path: Path) -> None:
    assert checkpoints.incarnation_of(tmp_path) == -1
    checkpoints.begin_life(tmp_path, 4)
    assert checkpoints.incarnation_of(tmp_path) == 4
    (tmp_path / INCARNATION).write_text("four")
    with pytest.raises(ResumeError, match="not a number"):
        checkpoints.incarnation_of(tmp_path)


# --- the same experiment? ---------------------------------------------------------------------------------------------


def changed(*overrides: str) -> list[str]:
    return differences(
        EXPERIMENT, load_experiment({"rounds": 9, "topology": {"graph": "ring", "n": 4}}, overrides).to_dict()
    )


def test_differing_keys_are_named_with_both_values() -> None:
    assert changed("train.lr=0.05", "topology.weights=lazy") == [
        'topology.weights: was not there, is "lazy"',
        "train.lr: was 0.1, is 0.05",
    ]


def test_some_keys_may_differ_and_rounds_may_grow() -> None:
    assert changed("name=other", "train.device=cpu", "train.threads=2", "simulation.latency=1", "rounds=10") == []
    assert changed("train.batch_size=16") == []  # the default, said aloud
    assert changed("rounds=8") == ["rounds: was 9, is 8"]


def test_rounds_may_not_grow_where_the_rate_follows_them() -> None:
    was = load_experiment({"rounds": 9, "topology": {"graph": "ring", "n": 4}}, ["train.schedule=cosine"]).to_dict()
    now = {**was, "rounds": 10}
    assert "cosine" in differences(was, now)[0]


def test_where_files_lie_may_differ_and_what_they_are_called_may_not() -> None:
    def of(source: str) -> dict[str, Any]:
        return json.loads(json.dumps({**EXPERIMENT, "data": {**EXPERIMENT["data"], "source": source}}))

    assert differences(of("csv:/a/site.csv?label=y"), of("csv:/b/c/site.csv?label=y")) == []
    assert len(differences(of("csv:/a/site.csv?label=y"), of("csv:/a/other.csv?label=y"))) == 1


def test_more_arrays_than_a_header_holds_are_refused_and_the_last_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedgossip.runs import checkpoints

    checkpoints.write_tensors(tmp_path, {"round": 1}, {"a": np.zeros(2)})
    monkeypatch.setattr(checkpoints, "HEADER_BYTES_MAX", 2000)
    with pytest.raises(OSError, match="40 arrays are too many for one checkpoint"):
        checkpoints.write_tensors(tmp_path, {"round": 2}, {f"x.{at}": np.zeros(2) for at in range(40)})
    assert checkpoints.take(tmp_path / CHECKPOINT)[0]["round"] == 1
    assert not list(tmp_path.glob("*.part"))
