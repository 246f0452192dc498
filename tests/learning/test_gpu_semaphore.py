"""Turns on a GPU that several processes share: real processes, real locks, a memory that is made up."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from commands import wait_until

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.learning.one_model.sharing import SHARE_OF_ROOM, Slots, make_own_folder, take_emptiest

FREE, PEAK = 1000, 400
AT_ONCE = int(SHARE_OF_ROOM * FREE) // PEAK


class MadeUp:
    """FREE bytes, of which every job takes PEAK."""

    def __init__(self, peak: int = PEAK) -> None:
        self._peak = peak

    def free(self) -> int:
        return FREE

    def began(self) -> None:
        pass

    def peak(self) -> int:
        return self._peak

    def give_back(self) -> None:
        pass


def slots(folder: Path, *, patience: float = 0.05, kind: str = "kind", peak: int = PEAK) -> Slots:
    return Slots(folder, kind, MadeUp(peak), patience)


CLIENT = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], str(Path(sys.argv[2]).parent)]
from test_gpu_semaphore import slots
with slots(Path(sys.argv[1]), patience=30).turn(alone=sys.argv[3] == "alone"):
    print("in", flush=True)
    sys.stdin.readline()
"""


class Client:
    """A process that asks for a turn, says when it has it, and holds it until it is told to leave."""

    def __init__(self, folder: Path, how: str = "") -> None:
        words = [sys.executable, "-c", CLIENT, str(folder), str(Path(__file__).parent), how]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def is_in(self) -> bool:
        assert self.process.stdout
        return self.process.stdout.readline() == "in\n"

    def leave(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


@contextmanager
def clients(folder: Path, number: int) -> Iterator[list[Client]]:
    """Processes that have their turn."""
    found = [Client(folder) for _ in range(number)]
    try:
        assert all(one.is_in() for one in found)
        yield found
    finally:
        for one in found:
            one.kill()


def measured(folder: Path) -> None:
    """Let a first job of its kind be measured."""
    with slots(folder).turn():
        pass


@pytest.mark.sockets
def test_as_many_train_at_once_as_the_memory_holds_and_no_more(tmp_path: Path) -> None:
    measured(tmp_path)
    with clients(tmp_path, AT_ONCE) as found:
        with pytest.raises(TrainingError, match=str(found[0].process.pid)) as error, slots(tmp_path).turn():
            pass
        assert "stopped" in error.value.advice
        assert found[0].leave() == 0
        with slots(tmp_path).turn():
            pass


def test_the_first_job_of_a_kind_is_alone_and_measured(tmp_path: Path) -> None:
    with slots(tmp_path).turn(), pytest.raises(TrainingError), slots(tmp_path).turn():
        pass
    with slots(tmp_path).turn(), slots(tmp_path).turn(), pytest.raises(TrainingError), slots(tmp_path).turn():
        pass


def test_jobs_of_different_kinds_add_up(tmp_path: Path) -> None:
    small, large = slots(tmp_path, kind="small", peak=100), slots(tmp_path, kind="large", peak=700)
    for one in (small, large):
        with one.turn():
            pass
    with large.turn(), small.turn(), small.turn(), pytest.raises(TrainingError), small.turn():
        pass


@pytest.mark.sockets
def test_who_wants_to_be_alone_waits_for_all_and_nobody_gets_in_before_it(tmp_path: Path) -> None:
    measured(tmp_path)
    with ExitStack() as stack:
        mine = stack.enter_context(ExitStack())
        mine.enter_context(slots(tmp_path).turn())
        single = Client(tmp_path, "alone")
        stack.callback(single.kill)
        wait_until(lambda: is_locked(tmp_path / "queue"), 30, "somebody waits")
        with pytest.raises(TrainingError), slots(tmp_path).turn():  # there is room, but not before that one
            pass
        mine.close()
        assert single.is_in()
        with pytest.raises(TrainingError), slots(tmp_path).turn():
            pass
    with slots(tmp_path).turn():
        pass


def is_locked(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.sockets
def test_the_turn_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    measured(tmp_path)
    with clients(tmp_path, AT_ONCE) as found:
        found[1].kill()
        with slots(tmp_path).turn():
            pass


def test_a_turn_ends_with_the_job_that_fails_and_its_peak_does_not_count(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), slots(tmp_path, peak=10 * FREE).turn():
        raise ZeroDivisionError
    measured(tmp_path)
    with slots(tmp_path).turn(), slots(tmp_path).turn():
        pass


def test_a_job_that_takes_more_than_there_is_gets_its_turn_alone(tmp_path: Path) -> None:
    with slots(tmp_path, peak=10 * FREE).turn():
        pass
    with slots(tmp_path).turn(), pytest.raises(TrainingError), slots(tmp_path).turn():
        pass


def test_without_a_memory_to_ask_everybody_is_alone(tmp_path: Path) -> None:
    unmeasured = Slots(tmp_path, "kind", None, patience=0.05)
    for _ in range(2):
        with unmeasured.turn(), pytest.raises(TrainingError), unmeasured.turn():
            pass


def test_clients_spread_over_the_gpus_and_places_of_the_dead_are_free(tmp_path: Path) -> None:
    folders = [make_own_folder(tmp_path / name) for name in ("first", "second")]
    found = [take_emptiest(folders) for _ in range(4)]
    assert [number for number, _ in found] == [0, 1, 0, 1]
    for number, place in found:
        if number == 1:
            os.close(place)
    again = take_emptiest(folders)
    assert again[0] == 1
    assert len(list((tmp_path / "second").glob("here-*"))) == 1
    for _, place in [*found[0::2], again]:
        os.close(place)


def test_a_folder_that_another_put_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="not ours"):
        Slots(tmp_path / "link", "kind")
