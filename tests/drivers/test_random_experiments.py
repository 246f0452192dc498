"""Whatever valid experiment is made at random: one digest on both engines and over a stop, bytes that add up, no fault
of ours; and a dry run says yes exactly where the run begins."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, get_origin, get_type_hints

import msgspec
import pytest
from random_experiments import UNDRAWN, Content, experiment
from resuming import halves

from fedgossip import Run, run_local, simulate
from fedgossip.algorithms.codecs.names import CODECS
from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.algorithms.descent.methods import DESCENTS
from fedgossip.algorithms.descent.row_filters import FILTERS
from fedgossip.algorithms.federated.names import ALGORITHMS
from fedgossip.algorithms.gossip.names import METHODS
from fedgossip.algorithms.robust.attacks import ATTACKS
from fedgossip.algorithms.robust.robust_mixing import COMBINATIONS
from fedgossip.base.errors import ConfigError, FedgossipError
from fedgossip.cli.run.run import show_plan
from fedgossip.core.records import EventRow, NetworkRow, PeerRow
from fedgossip.core.run_format import CHECKPOINT
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.experiment.reading import RUN_KINDS
from fedgossip.experiment.run_sections import BY_LOSSES, FORECAST_LEVELS
from fedgossip.faults import KINDS
from fedgossip.learning.personal.methods import PERSONAL
from fedgossip.learning.settings import SLOTS
from fedgossip.plans import compose
from fedgossip.protocols.gossip.pairing import RULES

EXAMPLES = Path(__file__).parents[2] / "examples"
BATCH, SHORT, LONG = 10, 200, 5_000
RESUMED = 4
"""Of so many experiments one is stopped, too."""
OF_TIME = "seconds", "seconds_training", "seconds_waiting", "seconds_mixing", "seconds_communicating"


@pytest.fixture(autouse=True)
def beside_the_own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)


def attempt(do: Any) -> Any:
    """Return what comes of it, or the refusal; what is no FedgossipError is a fault of ours and passes through."""
    try:
        return do()
    except FedgossipError as error:
        assert "\n" not in str(error) and error.advice, error
        return error


def drawn(seed: int) -> Content:
    """Return the experiment of a seed; of four seeds three look for one that has a plan."""
    for turn in range(6):
        content = experiment(6 * seed + turn)
        if seed < SHORT and content.get("parallel", {}).get("method") == "hogwild":  # starts a process
            continue
        plan = attempt(lambda c=content: compose.plan(load_experiment(c)))  # type: ignore[misc]
        if seed % 4 == 0 or not isinstance(plan, FedgossipError):
            break
    return content


def begins(came: object) -> bool:
    return not isinstance(came, ConfigError)


def told(run: Run) -> dict[tuple[int, int], Any]:
    """What each peer's rounds came to."""
    return {(row.round, row.peer): (repr(row.loss), repr(row.score)) for row in run.rows if isinstance(row, PeerRow)}


def hurried(content: Content) -> bool:
    """Whether rounds end without those who are late, and arrays have no time."""
    least = 9 if "classes" in content.get("simulation", {}) else 1  # a slow link is late for longer deadlines, too
    return any(isinstance(one, dict) and one.get("deadline", 9) < least for one in content.values())


def check_bytes(run: Run) -> None:
    sent = sum(row.bytes_sent for row in run.rows if isinstance(row, PeerRow))
    last = [row for row in run.rows if isinstance(row, NetworkRow)][-1]
    assert run.summary["bytes_sent"] == sent
    if run.summary["status"] == "finished" and last.round == run.summary["rounds"]:
        assert last.bytes_sent == sent


def resumed(content: Content, engine: str, folder: Path) -> tuple[Run, Run] | None:
    """Return the whole run, and the same from an image of its middle; None where a run of this kind has none."""
    plan = compose.plan(load_experiment(content))
    if not plan.pausable:
        return None
    whole, left = halves(plan, folder, engine)
    if not (left / CHECKPOINT).exists():  # it was over before
        return None
    plan = compose.plan(load_experiment(content))
    return whole, simulate_plan(plan, engine=engine, out=left, resume=True)


def threaded(content: Content) -> bool:
    """Whether its steps use several threads: equal bits are promised of one (docs/reference/numerics.md)."""
    return content.get("train", {}).get("threads", 1) > 1


def near(one: Run, other: Run) -> bool:
    return one.summary["test_loss"] == pytest.approx(other.summary["test_loss"], rel=1e-4, nan_ok=True)


def check(content: Content, folder: Path, stops: bool = True) -> str:
    """Return what the experiment came to.  `stops`: whether it is stopped and resumed, too."""
    plan = attempt(lambda: compose.plan(load_experiment(content)))
    dry = [
        plan if isinstance(plan, FedgossipError) else attempt(lambda on=on: show_plan(plan, on=on, as_json=True))
        for on in ("sim", "stacked")
    ]
    sim = attempt(lambda: simulate(content))
    stacked = attempt(lambda: simulate(content, engine="stacked", out=folder / "out"))
    assert list(map(begins, dry)) == [begins(sim), begins(stacked)], (dry, sim, stacked)
    assert begins(stacked) or not begins(sim) or "stacked" in str(stacked), (stacked, sim)
    assert begins(stacked) == (folder / "out").exists()
    for run in (sim, stacked):
        if isinstance(run, Run):
            check_bytes(run)
    if isinstance(sim, Run) and isinstance(stacked, Run):
        late = any(row.name in ("missed", "overdue", "abandoned") for row in sim.rows if isinstance(row, EventRow))
        same = sim.digest == stacked.digest and told(sim) == told(stacked)
        assert same or (late and hurried(content)) or (threaded(content) and near(sim, stacked))
    if isinstance(sim, Run) and stops and (both := resumed(content, "sim", folder / "sim")):
        assert both[0].digest == both[1].digest == sim.digest
        assert both[0].rows == both[1].rows or math.isnan(both[0].summary["test_loss"] or 0)
        assert both[0].summary["events"] == both[1].summary["events"]
    return "refused" if not begins(sim) else "simulated" if not isinstance(stacked, Run) else "both"


def checked(seeds: range, folder: Path) -> Counter[str]:
    came: Counter[str] = Counter()
    for seed in seeds:
        try:
            came[check(drawn(seed), folder / str(seed), seed % RESUMED == 0)] += 1
        except Exception as error:
            error.add_note(f"seed {seed}: {msgspec.json.encode(drawn(seed)).decode()}")
            raise
        shutil.rmtree(folder / str(seed), ignore_errors=True)
    return came


@pytest.mark.usefixtures("capsys")
@pytest.mark.parametrize("batch", range(SHORT // BATCH))
def test_a_random_experiment_is_one_run_on_all_engines_or_refused_by_all(batch: int, tmp_path: Path) -> None:
    came = checked(range(batch * BATCH, (batch + 1) * BATCH), tmp_path)
    assert came["both"] >= 1  # else the generator makes nothing that says anything


QUADRATIC: Content = {"rounds": 4, "seed": 5, "task": {"kind": "quadratic", "dim": 5, "sigma": 0.1}}
FOUND: dict[str, Content] = {
    "cta of private gossip": {
        "topology": {"graph": "complete", "n": 4},
        "algorithm": {"private": True, "options": {"order": "cta"}},
    },
    "fragments of one element": {
        "task": {"kind": "quadratic", "dim": 1},
        "parallel": {"workers": 3, "outer": {"lr": 0.7, "fragments": 2}},
    },
    "a trimmed mean of too small a cohort": {
        "coordinator": {"clients": 6, "cohort": 2, "algorithm": "trimmed-mean", "secure": {"on": False}},
    },
    "steps of a personal method, and running statistics": {
        "data": {"source": "digits"},
        "model": {"source": "cnn:small-bn"},
        "topology": {"graph": "ring", "n": 3},
        "algorithm": {"personal": "pfedme"},
        "train": {"device": "cpu", "lr": 0.05, "batch_size": 3, "local_steps": 1},
    },
    "a personal method of a problem with a known answer": {
        "topology": {"graph": "ring", "n": 3},
        "algorithm": {"personal": "ditto"},
    },
    "a correction of every element where steps change a few rows": {
        "task": {"kind": "sparse-logistic", "dim": 40, "examples": 20, "nonzeros": 3},
        "coordinator": {"clients": 3, "algorithm": "scaffold"},
    },
    "a probe of late models": {
        "topology": {"graph": "star", "n": 4},
        "algorithm": {"name": "relaysgd"},
        "forecast": {"level": "probe"},
    },
    "a followed forecast, of the mean and of all peers, by an algorithm of one's own": {
        "topology": {"graph": "ring", "n": 4},
        "algorithm": {"name": "two_tap:TwoTap", "options": {"slem": 0.8}},
        "forecast": {"level": "followed"},
    },
    "rows of a filter in an image": {
        "task": {"kind": "sparse-logistic", "dim": 40, "examples": 20, "nonzeros": 3},
        "parallel": {"workers": 2, "method": "parameter-server", "server": {"filters": ["threshold:0.01"]}},
    },
    "statistics kept apart in an image": {
        "task": {},
        "data": {"source": "digits"},
        "model": {"source": "cnn:small-bn"},
        "train": {"device": "cpu", "local_steps": 1, "batch_size": 2},
        "rounds": 2,
        "coordinator": {"clients": 3, "algorithm": "median", "secure": {"on": False}},
    },
    "rounds that all take longer than their deadline": {
        "parallel": {"workers": 3, "method": "tree", "deadline": 0.2, "least_deadline": 0.05, "start_timeout": 9},
        "simulation": {"latency": 0.1},
    },
    "attackers that need all models": {
        "topology": {"graph": "complete", "n": 5},
        "adversary": {"peers": [1], "knowledge": "all"},
    },
    "a flap without an end, and a peer that is dead for ever": {
        "topology": {"graph": "ring", "n": 5},
        "faults": [{"kind": "crash", "start": 0.15, "peers": [1]}, {"kind": "flap", "seconds": 0.4}],
    },
    "signed weights of lost models": {
        "topology": {"graph": "leja:ring", "n": 6},
        "forecast": {"level": "shadow"},
        "faults": [{"kind": "reorder", "probability": 0.5, "seconds": 0.2}],
    },
    "a forecast of a median": {
        "topology": {"graph": "complete", "n": 4},
        "algorithm": {"combine": "median"},
        "forecast": {"level": "shadow"},
    },
    "payloads gathered by fewer workers than the run has": {
        "parallel": {"workers": 5, "method": "all-to-all", "codec": "top-k:0.5"},
        "faults": [{"kind": "crash", "start": 0.15, "peers": [1]}],
    },
    "a server without a message of its worker": {
        "parallel": {"workers": 1, "method": "parameter-server", "server": {"servers": 3, "staleness": 1}},
        "faults": [{"kind": "drop", "links": [[0, 1]]}],
    },
    "a server without a goodbye of one worker, and the other is dead for ever": {
        "parallel": {"workers": 2, "method": "parameter-server", "server": {"staleness": "async"}},
        "simulation": {"training": 0.1, "classes": [{"nodes": "1", "slower": 1000}]},
        "faults": [{"kind": "drop", "links": [[0, 2]], "start": 0.55}, {"kind": "crash", "start": 350.0, "peers": [1]}],
    },
    "fragments with other numbers of buckets": {
        "task": {"kind": "quadratic", "dim": 15},
        "parallel": {"workers": 2, "bucket": 12, "outer": {"lr": 0.7, "fragments": 2}},
    },
    "a limit of memory where the engines differ about the attacker": {
        "topology": {"graph": "complete", "n": 3},
        "adversary": {"peers": [0], "attack": "alie", "knowledge": "all"},
        "forecast": {"level": "followed", "memory": 1e-9},
    },
}


@pytest.mark.usefixtures("capsys")
@pytest.mark.parametrize("content", FOUND.values(), ids=FOUND)
def test_what_failed_once_does_not_again(content: Content, tmp_path: Path) -> None:
    check(QUADRATIC | content, tmp_path)


def test_every_key_method_codec_and_fault_is_drawn() -> None:
    words = set(itertools.chain.from_iterable(_words(experiment(seed)) for seed in range(2 * LONG)))
    names = [
        *METHODS,
        *ALGORITHMS,
        *COLLECTIVES,
        *DESCENTS,
        *CODECS,
        *ATTACKS,
        *COMBINATIONS,
        *PERSONAL,
        *RULES,
        *KINDS,
    ]
    names += [*KINDS, *FORECAST_LEVELS, *SLOTS, *BY_LOSSES, *FILTERS]
    keys = [key for kind in RUN_KINDS.values() for key in _keys(kind.experiment)]
    undrawn = {key for key in {*names, *keys} if not key.startswith(UNDRAWN)} - words
    assert not undrawn, undrawn


def _keys(section: type, path: str = "") -> Iterator[str]:
    """Yield the keys of an experiment's section, `train.lr`, and of the sections in it."""
    for name, kind in get_type_hints(section).items():
        if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)):
            yield from _keys(kind, f"{path}{name}.")
        elif get_origin(kind) is not ClassVar:
            yield path + name


def _words(content: Content, path: str = "") -> Iterator[str]:
    """Yield keys, `train.lr`, and the words that are values, without their numbers."""
    for key, value in content.items():
        yield path + key
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield from _words(one, f"{path}{key}.")
            else:
                yield str(one).partition(":")[0]


@pytest.mark.long
@pytest.mark.sockets  # some draw several processes for a participant
@pytest.mark.usefixtures("capsys")
@pytest.mark.parametrize("batch", range(50))
def test_many_random_experiments(batch: int, tmp_path: Path) -> None:
    size = LONG // 50
    assert checked(range(batch * size, (batch + 1) * size), tmp_path)["both"] >= size // 5


def as_processes(seed: int) -> Run | None:
    """Return the simulation of a seed that has its bits whatever the time does, with 4 participants at most."""
    content = drawn(seed)
    timed = {"faults", "simulation"} & content.keys()
    timed |= {"over_selection", "sampling"} & content.get("coordinator", {}).keys()
    timed |= {"mode"} & content.get("algorithm", {}).keys()
    steps = content.get("parallel", {}).get("server", {}).get("staleness")
    if timed or steps or content.get("coordinator", {}).get("algorithm") == "fedbuff":
        return None
    plan = attempt(lambda: compose.plan(load_experiment(content)))
    if isinstance(plan, FedgossipError) or plan.n > 4:
        return None
    run = attempt(lambda: simulate(content))
    return run if isinstance(run, Run) else None


@pytest.mark.sockets
@pytest.mark.parametrize("place", [0, *(pytest.param(k, marks=pytest.mark.long) for k in range(1, 30))])
def test_a_random_experiment_has_one_digest_as_processes(place: int, tmp_path: Path) -> None:
    of = ((seed, run) for seed in itertools.count() if (run := as_processes(seed)))
    seed, run = next(itertools.islice(of, place, None))
    assert run_local(drawn(seed), tmp_path / "run").digest == run.digest, drawn(seed)
