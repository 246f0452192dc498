"""The experiment file: TOML in, typed settings out, and the parts of a run made from them.

Every key but the graph has a default.  An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.errors import ConfigError, nearest
from fedgossip.faults import KINDS, Fault
from fedgossip.learning.own import PLACE
from fedgossip.learning.settings import TrainSettings
from fedgossip.protocols.partners import RULES


class Data(msgspec.Struct, forbid_unknown_fields=True):
    """[data]: which examples there are, and who has which."""

    source: str = "digits"
    """digits | breast-cancer | mnist | fashion-mnist | csv:PATH?label=COLUMN | npz:PATH | text:PATH |
    module:function; with {peer} in it, a file of each peer's own, see learning/own.py"""
    partition: dict[str, Any] = msgspec.field(default_factory=lambda: {"kind": "iid"})
    """kind = iid | dirichlet | shard | pathological | size-skewed | natural | own, and that kind's own keys."""
    test: float | str = 0.2
    """The common test set: a share of the examples, between 0 and 1, or "own", the one that the source brings,
    or a source."""


class Model(msgspec.Struct, forbid_unknown_fields=True):
    """[model]"""

    source: str = "softmax"
    """softmax | mlp:IN-HIDDEN-OUT | cnn:small | cnn:small-bn | chars:WIDTH | module:function"""


class TopologySection(msgspec.Struct, forbid_unknown_fields=True):
    """[topology]"""

    graph: str
    """A family (ring, torus:4x4, regular:3, ...), a name of `fedgossip topology list`, or a path."""
    n: int | None = None
    """Number of peers, for families that do not fix it."""
    weights: str | None = None
    """metropolis | max-degree | uniform | lazy | best-constant; without it the file's rule, or metropolis."""


class Algorithm(msgspec.Struct, forbid_unknown_fields=True):
    """[algorithm]"""

    name: str = "dsgd"
    """dsgd | push-sum (directed graphs too) | window-doubling (with the graph of that name)"""
    mode: str = "sync"
    """sync: rounds that wait for the neighbours.  async: pairwise exchanges beside training; nobody waits."""
    partner: str = "uniform"
    """Whom an asynchronous peer meets next: uniform | matching (in turn) | speed (who answers sooner, more often)."""
    exchanges: int = 1
    """That an asynchronous peer begins per round of training."""
    deadline: float = 30.0
    """The longest wait for neighbours' models in a round, in seconds; above the slowest peer's training time."""
    least_deadline: float = 5.0
    """The shortest: between the two the deadline follows the rounds that a peer has seen."""
    start_timeout: float = 300.0
    """Seconds to wait for all neighbours before the first round."""


class Eval(msgspec.Struct, forbid_unknown_fields=True):
    """[eval]"""

    every: int = 5
    """Rounds between two evaluations; the last round is always evaluated."""


class Simulation(msgspec.Struct, forbid_unknown_fields=True):
    """[simulation]: the virtual network and devices of `--on sim`; real runs ignore it."""

    latency: float = 0.005
    jitter: float = 0.0
    bandwidth: float | None = None
    detection: float = 1.0
    """Seconds of silence after which a peer is told that a link is lost; a shorter cut only delays what is sent."""
    training: float = 0.05
    training_jitter: float = 0.0
    speed_spread: float = 0.0


class Task(msgspec.Struct, forbid_unknown_fields=True):
    """[task]: in place of learning from data, a problem with a known answer (pure numpy)."""

    kind: str = "learning"
    """learning | averaging | quadratic"""
    dim: int = 1
    dtype: str = "float32"
    """float32 | float64; learning is always float32."""
    eta: float = 0.1
    """Quadratic: step size."""
    sigma: float = 0.0
    """Quadratic: standard deviation of the gradient noise per coordinate."""
    placement: str = "smooth"
    """Quadratic: how the targets b_i lie on the node ids: smooth | alternating | random"""


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """A whole experiment; see each section."""

    topology: TopologySection
    seed: int = 1
    """Every random number of the run follows from it."""
    rounds: int = 60
    name: str = ""
    """For the run directory and the report; the graph's name where empty."""
    data: Data = msgspec.field(default_factory=Data)
    model: Model = msgspec.field(default_factory=Model)
    train: TrainSettings = msgspec.field(default_factory=TrainSettings)
    algorithm: Algorithm = msgspec.field(default_factory=Algorithm)
    eval: Eval = msgspec.field(default_factory=Eval)
    simulation: Simulation = msgspec.field(default_factory=Simulation)
    task: Task = msgspec.field(default_factory=Task)
    faults: list[Fault] = msgspec.field(default_factory=list)
    """[[faults]]: what goes wrong, when, and to whom; in the simulator and in real processes of one machine."""

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved experiment as plain data, without keys that are None (TOML has no null)."""
        content = msgspec.to_builtins(self)
        content["train"] = dataclasses.asdict(self.train)  # msgspec leaves out the fields that it did not set itself
        return typing.cast("dict[str, Any]", _without_none(content))


SECTIONS = (Data, Model, TrainSettings, TopologySection, Algorithm, Eval, Simulation, Task)


# --- reading ----------------------------------------------------------------------------------------------------------


def load(source: Path | str | Mapping[str, Any], overrides: Sequence[str] = (), **top: Any) -> Experiment:
    """Return the experiment of a file, or of a mapping of the same shape.

    `overrides` are "section.key=value" texts (values as in TOML; a bare word is a string); `top` replaces top-level
    keys.  Relative paths inside a file are relative to that file.  Raises ConfigError, naming the key.
    """
    if isinstance(source, Mapping):
        where, content = "experiment", _copied(source)
    else:
        where, content = str(source), _read(Path(source))
    for override in overrides:
        _override(content, override)
    content.update({key: value for key, value in top.items() if value is not None})
    if not isinstance(source, Mapping):
        _anchor_paths(content, Path(source).resolve().parent)
    return checked(content, where)


def checked(content: dict[str, Any], where: str) -> Experiment:
    """Return `content` as an Experiment.  Raises ConfigError for the first key that is unknown or wrong."""
    for path, key, known in _unknown(content, Experiment, ""):
        raise ConfigError(f"{where}: unknown key {path + key!r}", nearest(key, known))
    try:
        experiment = msgspec.convert(content, Experiment)
    except ConfigError as error:  # of the [train] section, which checks itself
        raise ConfigError(f"{where}: [train]: {error}", error.advice) from None
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        if "missing required field" in text and ("`topology`" in text or "`graph`" in text):
            raise ConfigError(
                f"{where}: no graph", 'Give at least:  [topology]  graph = "ring"  n = 8'
            ) from None
        raise ConfigError(f"{where}: {place.rstrip('`') or 'the file'}: {text[0].lower()}{text[1:]}", "") from None
    _check_values(experiment, where)
    return experiment


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise ConfigError(f"{path}: {reason}", "README shows an experiment file to start from.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}", "Strings need quotes; sections are [name].") from None


def _override(content: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: no '='", "Write --set section.key=value, for example --set train.lr=0.05")
    try:
        parsed = tomllib.loads(f"v = {value.strip()}")["v"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    *sections, last = key.strip().split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise ConfigError(f"--set {text}: {section!r} is no section", "Write --set section.key=value.")
    content[last] = parsed


def _unknown(content: Mapping[str, Any], kind: type, path: str) -> Iterator[tuple[str, str, list[str]]]:
    known = typing.get_type_hints(kind)
    for key, value in content.items():
        if key not in known:
            yield path, key, list(known)
        elif isinstance(value, Mapping) and known[key] in SECTIONS:
            yield from _unknown(value, known[key], f"{path}{key}.")
        elif key == "faults" and isinstance(value, Sequence):
            for number, entry in enumerate(value):
                yield from _unknown_of_fault(entry, f"faults[{number}]")


def _unknown_of_fault(entry: object, where: str) -> Iterator[tuple[str, str, list[str]]]:
    """Raise ConfigError for a kind that there is not; yield the keys that its kind has not."""
    if not isinstance(entry, Mapping):
        return  # refused as what it is
    kind = entry.get("kind")
    if kind not in KINDS:
        what = f"kind = {kind!r} is not known" if "kind" in entry else "no kind"
        raise ConfigError(f"{where}: {what}", nearest(str(kind), KINDS))
    known = [*KINDS[kind].__struct_fields__, "kind"]
    yield from ((f"{where} ({kind}).", key, known) for key in entry if key not in known)


def _anchor_paths(content: dict[str, Any], base: Path) -> None:
    """Make the paths of the graph and of the data absolute: the resolved experiment runs from anywhere."""
    topology, data = content.get("topology"), content.get("data")
    if isinstance(topology, dict) and isinstance(graph := topology.get("graph"), str) and _is_path(graph, base):
        topology["graph"] = str((base / graph).resolve())
    for key in ("source", "test"):
        if not (isinstance(data, dict) and isinstance(source := data.get(key), str)):
            continue
        kind, colon, rest = source.partition(":")
        if colon and kind in ("csv", "npz", "text", "mnist", "fashion-mnist"):
            name, mark, query = rest.partition("?")
            data[key] = f"{kind}:{(base / Path(name).expanduser()).resolve()}{mark}{query}"


def _is_path(graph: str, base: Path) -> bool:
    return os.sep in graph or graph.endswith((".toml", ".txt", ".edges")) or (base / graph).is_file()


LONGEST_SECONDS = 1e9
"""Thirty years; times are kept in 64-bit nanoseconds."""

ABOVE_0 = sys.float_info.min
MOST = 2**31 - 1
"""The largest count."""


def _check_values(experiment: Experiment, where: str) -> None:
    e = experiment
    choices = {
        "algorithm.name": (e.algorithm.name, ("dsgd", "push-sum", "window-doubling")),
        "algorithm.mode": (e.algorithm.mode, ("sync", "async")),
        "algorithm.partner": (e.algorithm.partner, RULES),
        "task.kind": (e.task.kind, ("learning", "averaging", "quadratic")),
        "task.dtype": (e.task.dtype, ("float32", "float64")),
    }
    for key, (word, known) in choices.items():
        if word not in known:
            raise ConfigError(f"{where}: {key} = {word!r} is not known", nearest(word, known))
    s, seconds, number = e.simulation, LONGEST_SECONDS, sys.float_info.max
    ranges: dict[str, tuple[float | None, float, float]] = {  # above 0 means: 0 itself is refused
        "rounds": (e.rounds, 1, MOST),
        "eval.every": (e.eval.every, 1, MOST),
        "task.dim": (e.task.dim, 1, MOST),
        "train.batch_size": (e.train.batch_size, 1, MOST),
        "train.threads": (e.train.threads, 1, 1024),
        "train.lr": (e.train.lr, ABOVE_0, number),
        "algorithm.deadline": (e.algorithm.deadline, ABOVE_0, seconds),
        "algorithm.exchanges": (e.algorithm.exchanges, 1, 1000),
        "algorithm.least_deadline": (e.algorithm.least_deadline, 0, seconds),
        "algorithm.start_timeout": (e.algorithm.start_timeout, ABOVE_0, seconds),
        "simulation.latency": (s.latency, 0, seconds),
        "simulation.jitter": (s.jitter, 0, seconds),
        "simulation.bandwidth": (s.bandwidth, ABOVE_0, number),
        "simulation.training": (s.training, 0, seconds),
        "simulation.training_jitter": (s.training_jitter, 0, 1e6),
        "simulation.speed_spread": (s.speed_spread, 0, 10),
        "simulation.detection": (s.detection, 0, seconds),
    }
    for key, (value, low, high) in ranges.items():
        if value is not None and not low <= value <= high:
            least = "above 0" if low == ABOVE_0 else f"at least {low:g}"
            raise ConfigError(f"{where}: {key} = {value} is out of range", f"Set it {least}, at most {high:g}.")
    _check_test(e.data.test, where)
    _check_own(e.data, where)
    if e.seed < 0:
        raise ConfigError(f"{where}: seed = {e.seed} is negative", "Use 0 or a positive number.")


def _check_test(test: float | str, where: str) -> None:
    if isinstance(test, str):
        if test != "own" and ":" not in test:
            advice = 'Set it to a share: 0.2, to "own", or to a source: "csv:PATH?label=COLUMN".'
            raise ConfigError(f"{where}: data.test = {test!r} is no test set", advice)
    elif not 0 < test < 1:
        raise ConfigError(f"{where}: data.test = {test} is no share", 'Set it between 0 and 1, such as 0.2, or "own".')


def _check_own(data: Data, where: str) -> None:
    own = PLACE in data.source
    if own != (data.partition.get("kind") == "own"):
        advice = f'A source with {PLACE} in it and partition = {{ kind = "own" }} go together.'
        raise ConfigError(f"{where}: data.source = {data.source!r}, partition = {data.partition}", advice)
    if own and not (isinstance(data.test, str) and ":" in data.test and PLACE not in data.test):
        advice = 'Set it to a file that all peers have: "csv:PATH?label=COLUMN", "npz:PATH".'
        raise ConfigError(f"{where}: data.test = {data.test!r} is not common to peers with files of their own", advice)


def _copied(source: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in source.items()}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value
