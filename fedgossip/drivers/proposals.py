"""An experiment that travels: what one organiser proposes to those it has invited, and what becomes of it there.

What travels is the experiment with all its defaults, the file of its graph, and the common test set where that is a
file.  Nobody's data and nobody's code travel: a run that learns from files is one in which each brings its own, and a
"module:function" must be there already, the same to the last line.  A proposal cannot name a file of the machine that
it comes to, so it cannot choose what is learned from.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from fedgossip import outside_files
from fedgossip.decoding import from_toml
from fedgossip.errors import ConfigError
from fedgossip.experiment import Experiment, GossipExperiment, checked
from fedgossip.learning.custom import is_function
from fedgossip.learning.data import KINDS
from fedgossip.learning.per_peer import PLACE
from fedgossip.learning.sources import code_of
from fedgossip.learning.table_schema import FEDERATED
from fedgossip.machine import NodeId
from fedgossip.messages import GRAPH_LETTERS, PROPOSAL_LETTERS, Proposal
from fedgossip.plans import compose
from fedgossip.plans.compose import DataShares
from fedgossip.plans.own_graphs import is_own_graph
from fedgossip.plans.plan import Plan
from fedgossip.rundir.run_directory import write_whole
from fedgossip.task import LocalTask

OWN = f"own:{PLACE}"
"""What a proposal has as data.source where each brings its own data."""

TEST_BYTES_MAX = 16 << 20
"""Maximum size of a common test set that travels."""

_FILES = ("csv", "npz", "text", "lines", "parquet")
_FOLDERS = ("mnist", "fashion-mnist")
"""Sources that are looked for where each machine has them; where the organiser's lie is nobody else's concern."""
_MODELS = ("cnn", "softmax", "mlp", "chars", "gpt")
_NAME = re.compile(r"[\w][\w.-]{0,99}")

Learning = tuple[LocalTask, DataShares]


@dataclass(frozen=True)
class SharedExperiment:
    """An experiment as all will have it; `data` is where this participant's own examples are, "" for the experiment's.

    `test` holds the bytes of the common test set that travels.
    """

    experiment: Experiment
    data: str
    graph: str = ""
    test: bytes = b""


# --- at the organiser -------------------------------------------------------------------------------------------------


def shared(experiment: Experiment, data: str, leader: NodeId | None = None) -> SharedExperiment:
    """Return what can travel of an experiment of the organiser's; `data` is what it learns from itself, "" for what
    the experiment says, and where it leads the run and learns nothing.  Raises ConfigError."""
    if data and leader is not None:
        advice = f"Leave --data out; where each brings its own, write data.source = 'csv:{PLACE}.csv?label=COLUMN'."
        raise ConfigError("the one that leads learns from no data of its own", advice)
    if experiment.data.scale == FEDERATED:
        text = f'data.scale = "{FEDERATED}" of a run by invite: the statistics that were agreed on do not travel'
        raise ConfigError(text, "Start coordinator and clients with keys that people compare: docs/coordinator.md.")
    content, graph = experiment.to_dict(), ""
    own = data or PLACE in experiment.data.source
    data = data or (experiment.data.source.replace(PLACE, "0") if own and leader is None else "")
    if isinstance(experiment, GossipExperiment) and os.sep in experiment.topology.graph:
        graph = _text_of(Path(experiment.topology.graph))
    section = content["data"]
    if own and experiment.learns:
        section["source"], section["partition"] = OWN, {"kind": "own"}
    elif experiment.learns and _path_in(experiment.data.source):
        text = f"data.source = {experiment.data.source!r} is a file of this machine, which the others have not"
        raise ConfigError(text, "Give it with --data, as each of the others does with its own.")
    test = _file_of(str(experiment.data.test))
    common = _bytes_of(test) if test else b""
    if not test and _path_in(str(experiment.data.test)):
        text = f"data.test = {experiment.data.test!r} is of a kind that cannot travel to the others"
        raise ConfigError(text, f"Name one of these: {', '.join(_FILES)}.")
    return SharedExperiment(checked(content, "experiment"), data if own else "", graph, common)


def proposal_of(whole: SharedExperiment, task: LocalTask | None) -> Proposal:
    """Return the words that travel; `task` is None for loops: scripts bring it.  Raises ConfigError for too many."""
    e, content = whole.experiment, whole.experiment.to_dict()
    section, name = content["data"], ""
    if whole.graph:
        content["topology"]["graph"] = Path(content["topology"]["graph"]).name
    if test := _file_of(str(e.data.test)):
        kind, _, rest = str(e.data.test).partition(":")
        name = test.name
        section["test"] = f"{kind}:{name}{_query(rest)}"
    if ":" in str(section["source"]) and str(section["source"]).partition(":")[0] in _FOLDERS:
        section["source"] = section["source"].partition(":")[0]
    if name and not _NAME.fullmatch(name):
        raise ConfigError(f"{name}: the name of this file cannot travel", "Use letters, digits, '.', '-' and '_'.")
    text = tomli_w.dumps(content)
    if (size := len(text.encode())) > PROPOSAL_LETTERS:
        raise ConfigError(f"the experiment has {size} letters; {PROPOSAL_LETTERS} can travel", "Shorten it.")
    digest = hashlib.sha256(whole.test).hexdigest() if name else ""
    if installed := [name for name in _functions(e) if not _is_here(name)]:
        advice = "Import it in a module beside the experiment, and name that: its text can be compared, and read."
        raise ConfigError(f"{installed[0]} is no code of this folder: nobody could compare it with theirs", advice)
    model = (task.length, task.dtype.name) if task else (0, "")
    return Proposal(text, whole.graph, code_of(_functions(e)), *model, name, len(whole.test), digest)


def _text_of(path: Path) -> str:
    try:
        text = outside_files.read_text(outside_files.named(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", "Name a graph's file in topology.graph.") from None
    if (size := len(text.encode())) > GRAPH_LETTERS:
        raise ConfigError(f"{path}: {size} letters; {GRAPH_LETTERS} can travel", "Name a family of graphs.")
    return text


def _bytes_of(path: Path) -> bytes:
    try:
        content = outside_files.read_bytes(outside_files.named(path), outside_files.LARGE)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "Name the common test set in data.test.") from None
    if len(content) > TEST_BYTES_MAX:
        advice = f"Use fewer examples: up to {TEST_BYTES_MAX >> 20} MiB travel."
        raise ConfigError(f"{path}: {len(content):,} bytes are too many for a common test set", advice)
    return content


def _file_of(source: str) -> Path | None:
    """The file that a source of data names, if it does."""
    kind, colon, rest = source.partition(":")
    return Path(rest.partition("?")[0]) if colon and kind in _FILES else None


def _path_in(source: str) -> bool:
    """Whether a source is somewhere on this machine, and there alone."""
    kind, colon, _ = source.partition(":")
    return bool(colon) and kind in KINDS and kind not in _FOLDERS


def _query(rest: str) -> str:
    _, mark, query = rest.partition("?")
    return mark + query


def _functions(experiment: Experiment) -> list[str]:
    """What of the experiment is a function or a class, of whomever; nothing is imported."""
    e, rest, found = experiment, list(experiment.named_code), list[str]()
    for value, words in ((e.model.source, _MODELS), (e.data.source, KINDS), (str(e.data.test), KINDS)):
        if value in rest:
            rest.remove(value)
            found += [value] if is_function(value) and value.partition(":")[0] not in words else []
    if isinstance(e, GossipExperiment) and not is_own_graph(e.topology.graph):
        rest.remove(e.topology.graph)
    return [*found, *filter(is_function, rest)]


def _is_here(name: str) -> bool:
    """Whether a function is of a module in this folder: what is installed cannot be compared, nor lent to anybody."""
    top = name.partition(":")[0].partition(".")[0]
    return top != "fedgossip" and (Path(f"{top}.py").is_file() or Path(top).is_dir())


# --- at those who are invited -----------------------------------------------------------------------------------------


def experiment_of(proposal: Proposal, folder: Path) -> Experiment:
    """Return the proposed experiment, its graph and its test set in `folder`; nothing is read, run or written yet.

    Raises ConfigError for an experiment that cannot be run, or names a file of this machine.
    """
    content = _content(proposal)
    graph, data = _section(content, "topology").get("graph", ""), _section(content, "data")
    if proposal.graph and not _NAME.fullmatch(str(graph)):
        raise _named(str(graph))
    if not proposal.graph and graph and (os.sep in str(graph) or Path(str(graph)).exists()):
        raise _named(str(graph))
    if proposal.graph:
        content["topology"]["graph"] = str((folder / str(graph)).resolve())
    _check_source(str(data.get("source", "digits")))
    kind, _, rest = str(data.get("test", 0.2)).partition(":")
    if proposal.test:
        if not _NAME.fullmatch(proposal.test) or kind not in _FILES or rest.partition("?")[0] != proposal.test:
            raise _named(proposal.test)
        data["test"] = f"{kind}:{(folder / proposal.test).resolve()}{_query(rest)}"
    elif isinstance(data.get("test"), str):
        _check_source(str(data["test"]))
    return checked(content, "the organiser's experiment")


def keep_graph(proposal: Proposal, folder: Path) -> None:
    """Write the file of the graph, where one travels.  Raises ConfigError for a name that is no file's."""
    if proposal.graph:
        name = str(_section(_content(proposal), "topology").get("graph", ""))
        if not _NAME.fullmatch(name):
            raise _named(name)
        write_whole(folder / name, proposal.graph.encode())


def keep_test(proposal: Proposal, test: bytes, folder: Path) -> None:
    """Write the common test set.  Raises ConfigError for another one than was announced."""
    if not proposal.test:
        return
    if len(test) != proposal.test_bytes or hashlib.sha256(test).hexdigest() != proposal.test_digest:
        raise ConfigError("the common test set is not the one that was announced", "Join again, or ask the organiser.")
    write_whole(folder / proposal.test, test)


def check_code(proposal: Proposal, experiment: Experiment) -> list[str]:
    """Return the functions of people's own that the experiment names, whose code is here and the same.

    Nothing of it is run.  Raises ConfigError where it is not here, or another.
    """
    names = _functions(experiment)
    missing = [name for name in names if not _is_here(name)]
    if missing or code_of(names) != proposal.code:
        files = ", ".join(sorted({f"{name.partition(':')[0]}.py" for name in missing or names}))
        what = "is not here" if missing else "is another here than at the organiser's"
        advice = "Code does not travel: get the files from somebody you trust, read them, put them into this folder."
        raise ConfigError(f"the experiment runs code of {files}, which {what}", advice)
    return names


def check_data(experiment: Experiment, data: str) -> None:
    """Raise ConfigError where what this participant learns from is not what the experiment asks for."""
    own = experiment.data.source == OWN and experiment.learns
    if own and not data:
        test = str(experiment.data.test)
        label = re.search(r"[?&]label=([^&]+)", test)
        example = f"csv:FILE?label={label[1]}" if label else "npz:FILE"
        raise ConfigError("each brings its own data to this run", f"Say which are yours: --data '{example}'")
    if data and not own:
        text = f"the data of this run are its own: {experiment.data.source}, shared out by its seed"
        raise ConfigError(text, "Leave --data out.")


def learning_of(plan: Plan, node: int, data: str) -> Learning | None:
    """Make the task of one that brings its own data; None where the experiment has them.  Raises ConfigError."""
    e = plan.experiment
    if not data or not e.learns:
        return None
    own = msgspec.structs.replace(e, data=msgspec.structs.replace(e.data, source=data))
    return compose.task_of(own, plan.learners, [node], os.urandom)


def _content(proposal: Proposal) -> dict[str, Any]:
    try:
        return from_toml(proposal.experiment)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the organiser's experiment is not TOML: {error}", "Is it the same release?") from None


def _section(content: dict[str, Any], name: str) -> dict[str, Any]:
    section = content.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(f"the organiser's experiment: {name} is no table", "Is it the same release?")
    return section


def _check_source(source: str) -> None:
    kind = source.partition(":")[0]
    bundled = source in KINDS and kind not in _FILES
    if not (bundled or source in ("own", OWN) or (is_function(source) and kind not in KINDS)):
        raise _named(source)


def _named(what: str) -> ConfigError:
    text = f"the organiser's experiment names a file of this machine: {what[:100]!r}"
    return ConfigError(text, "Do not take part, or ask why: an invite never needs that.")
