"""The experiment sent by an organiser to invited participants, and its handling on their machines.

A proposal has the entries listed in CARRIED, with all defaults, the file of its graph, and a common test set from a
file.  Neither data nor code are sent: participants use their own files, and a "module:function" must exist there,
identical.  A proposal cannot name a file of the receiving machine.

Before a person agrees, nothing of it is imported or stays on disk.  Then its files are written to

    FOLDER/MARK/proposed-files/graph.toml, graph.gml, ...   the graph
    FOLDER/MARK/proposed-files/test-set/NAME                the common test set, alone: its name is in the plan's hash

No import statement can name a folder with a hyphen.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import tomli_w

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import from_toml
from fedgossip.base.errors import ConfigError, NotWrittenError, PeerError, reason
from fedgossip.base.untrusted_text import line
from fedgossip.core import run_format
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import GRAPH_LETTERS, PROPOSAL_LETTERS, Proposal
from fedgossip.core.task import LocalTask
from fedgossip.data.columns.table_schema import FEDERATED, TEST
from fedgossip.data.custom import code_of, modules_of
from fedgossip.data.data import CODE, SOURCES, USUAL_FOLDER
from fedgossip.data.partitions import PLACE
from fedgossip.data.table_files import OF_TABLES, QUERY, SQL
from fedgossip.experiment import Experiment, GossipExperiment, checked
from fedgossip.experiment.sections import is_standard
from fedgossip.net.invites.invite_client import ORGANISER
from fedgossip.plans import compose
from fedgossip.plans.compose import DataShares
from fedgossip.plans.plan import Plan, hash_of
from fedgossip.topology.graphs.names import SUFFIXES

OWN = f"own:{PLACE}"
"""data.source in a proposal if each participant uses its own data."""

TEST_BYTES_MAX = 16 << 20
"""Maximum bytes of a common test set in a proposal."""

ITEM_BYTES = {"float32": 4, "float64": 8}
"""Dtypes of models, and bytes per element."""

CARRIED = (
    "seed", "rounds", "name", "topology", "algorithm", "forecast", "coordinator", "parallel",
    "data", "model", "train", "eval", "task", "study",
)  # fmt: skip
"""Sections and keys that an invite may carry; [track] would send a member's record to a destination of the
organiser.
"""


_FILES = [name for name, one in SOURCES.items() if one.travels]
_FOLDERS = [name for name, one in SOURCES.items() if one.place == USUAL_FOLDER]
"""Sources that each machine finds for itself; the organiser's location of them is irrelevant elsewhere."""
_NAME = re.compile(r"[\w][\w.-]{0,99}")

Learning = tuple[LocalTask, DataShares]


@dataclass(frozen=True)
class SharedExperiment:
    """The common form of an experiment; `data`: location of this participant's examples, "": the experiment's; `test`:
    bytes of the proposed test set.
    """

    experiment: Experiment
    data: str
    graph: str = ""
    test: bytes = b""


# --- at the organiser -------------------------------------------------------------------------------------------------


def shared(experiment: Experiment, data: str, leader: NodeId | None = None) -> SharedExperiment:
    """Return the part of an organiser's experiment that can be sent; `data`: its own source, or "".  Raises
    ConfigError.
    """
    if data and leader is not None:
        advice = f"Leave --data out; where each brings its own, write data.source = 'csv:{PLACE}.csv?label=COLUMN'."
        raise ConfigError("the one that leads learns from no data of its own", advice)
    if experiment.data.scale == FEDERATED:
        text = f'data.scale = "{FEDERATED}" of a run by invite: the statistics that were agreed on do not travel'
        advice = f'Set data.scale = "{TEST}": columns are then scaled by the common test set, which travels.'
        raise ConfigError(text, f"{advice}  Or let the sites agree first: fedgossip pilot host FILE.")
    _check_real(experiment)
    if str(getattr(getattr(experiment, "topology", None), "weights", "")).startswith("pi:"):
        advice = "Put the weights into the graph's file: docs/together/topologies.md."
        raise ConfigError("topology.weights names a file of this machine, which the others have not", advice)
    content, graph = experiment.to_dict(), ""
    own = data or PLACE in experiment.data.source
    data = data or (experiment.data.source.replace(PLACE, "0") if own and leader is None else "")
    if isinstance(experiment, GossipExperiment) and os.sep in experiment.topology.graph:
        graph = _text_of(Path(experiment.topology.graph))
    section = content["data"]
    if own and experiment.learns:
        section["source"], section["partition"] = OWN, {"kind": "own"}
        if any(map(is_standard, (experiment.data.source, str(experiment.data.test), data))) or experiment.data.by_test:
            section["scale"] = TEST
    elif experiment.learns and _path_in(experiment.data.source):
        text = f"data.source = {experiment.data.source!r} is a file of this machine, which the others have not"
        raise ConfigError(text, "Give it with --data, as each of the others does with its own.")
    return SharedExperiment(checked(content, "experiment"), data if own else "", graph, _common_test(experiment))


def shared_tables(experiment: Experiment) -> SharedExperiment:
    """Return an experiment of sites with one table each, "csv:NAME-{peer}.csv?...", in the form that can be sent: with
    names, without folders.

    Raises ConfigError.
    """
    _check_real(experiment)
    content = experiment.to_dict()
    section, source = content["data"], experiment.data.source
    if PLACE in source:
        section["source"] = _unplaced(source)
        _table_name(str(section["source"]))
    elif experiment.learns and _path_in(source):
        text = f"data.source = {source!r} is a file of this machine, which the sites have not"
        raise ConfigError(text, f'Write data.source = "csv:site-{PLACE}.csv?label=COLUMN": each site names its own.')
    if experiment.data.scale == FEDERATED:
        section["agreed"] = Path(experiment.data.agreed).name
    return SharedExperiment(checked(content, "experiment"), "", test=_common_test(experiment))


def _check_real(experiment: Experiment) -> None:
    if experiment.faults or (isinstance(experiment, GossipExperiment) and experiment.adversary.peers):
        advice = "Leave it out: it is for simulations, and for processes of one machine."
        raise ConfigError(f"{'[[faults]]' if experiment.faults else '[adversary]'} of a run by invite", advice)


def _common_test(experiment: Experiment) -> bytes:
    """Return the common test set; b"" if it is not a file."""
    if experiment.exchanges_logits and _path_in(str(experiment.data.common)):
        text = f"data.common = {experiment.data.common!r} is a file, which does not travel to the others"
        raise ConfigError(text, 'Set data.common = "random:500", or to a bundled source.')
    test = _file_of(str(experiment.data.test))
    if not test and _path_in(str(experiment.data.test)):
        text = f"data.test = {experiment.data.test!r} is of a kind that cannot travel to the others"
        raise ConfigError(text, f"Name one of these: {', '.join(_FILES)}.")
    return _bytes_of(test) if test else b""


def _unplaced(source: str) -> str:
    kind, _, rest = source.partition(":")
    path, mark, query = rest.partition("?")
    return f"{kind}:{Path(path).name}{mark}{query}"


def _table_name(source: str) -> str:
    """Return the name of each site's table, with {peer}."""
    kind, _, rest = source.partition(":")
    name, _, query = rest.partition("?")
    if kind not in OF_TABLES or kind == SQL or not _NAME.fullmatch(name.replace(PLACE, "0")) or PLACE not in name:
        text = f"data.source = {source[:100]!r} names no table of each site"
        raise ConfigError(
            text, f'Tables are "csv:site-{PLACE}.csv?label=COLUMN", in letters, digits, ".", "-" and "_".'
        )
    if QUERY in dict(parse_qsl(query)):
        raise _file_refusal(source)
    return name


def find_own_table(experiment: Experiment, node: int) -> Path | None:
    """Return the path of a site's own table in an experiment of `shared_tables`; None if it uses none."""
    kind, _, rest = experiment.data.source.partition(":")
    return Path(rest.partition("?")[0].replace(PLACE, str(node))) if kind and PLACE in rest else None


def proposal_of(whole: SharedExperiment, task: LocalTask | None) -> Proposal:
    """Return the proposal; `task` is None for loops, as scripts make it.  Raises ConfigError for a too large one."""
    e = whole.experiment
    content = {key: value for key, value in e.to_dict().items() if key in CARRIED}
    section, name = content["data"], ""
    if whole.graph:
        content["topology"]["graph"] = _graph_name(str(content["topology"]["graph"]))
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
    if installed := [name for name in e.named_code if not _is_here(name)]:
        advice = "Import it in a module next to the experiment, and name that: its text can be compared, and read."
        raise ConfigError(f"{installed[0]} is no code of this folder: others could not compare it with theirs", advice)
    model = (task.length, task.dtype.name) if task else (0, "")
    return Proposal(text, whole.graph, code_of(e.named_code), *model, name, len(whole.test), digest)


def _text_of(path: Path) -> str:
    try:
        text = outside_files.read_text(outside_files.resolve(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read: {reason(error)}", "Name a graph's file in topology.graph."
        ) from None
    if (size := len(text.encode())) > GRAPH_LETTERS:
        raise ConfigError(f"{path}: {size} letters; {GRAPH_LETTERS} can travel", "Name a family of graphs.")
    return text


def _bytes_of(path: Path) -> bytes:
    try:
        content = outside_files.read_bytes(outside_files.resolve(path), outside_files.LARGE)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "Name the common test set in data.test.") from None
    if len(content) > TEST_BYTES_MAX:
        advice = f"Use fewer examples: up to {TEST_BYTES_MAX >> 20} MiB travel."
        raise ConfigError(f"{path}: {len(content):,} bytes are too many for a common test set", advice)
    return content


def _file_of(source: str) -> Path | None:
    kind, colon, rest = source.partition(":")
    return Path(rest.partition("?")[0]) if colon and kind in _FILES else None


def _path_in(source: str) -> bool:
    """Return whether a source exists only on this machine."""
    kind, colon, _ = source.partition(":")
    return bool(colon) and kind in SOURCES and kind not in _FOLDERS


def _query(rest: str) -> str:
    _, mark, query = rest.partition("?")
    return mark + query


def _graph_name(graph: str) -> str:
    """Return the name of a graph's file at its receiver, with a suffix that selects the reader."""
    return f"graph{next((one for one in SUFFIXES if graph.lower().endswith(one)), '.txt')}"


def _is_here(name: str) -> bool:
    """Return whether a function's module is in this folder and can be compared or sent."""
    module = name.partition(":")[0]
    path = modules_of([name], Path.cwd()).get(module)
    return module.partition(".")[0] != "fedgossip" and path is not None and path.is_relative_to(Path.cwd())


# --- at invited participants ------------------------------------------------------------------------------------------


def _check_sizes(proposal: Proposal) -> None:
    size, words = ITEM_BYTES.get(proposal.dtype), "Do not take part, or ask why."
    if size is None and (proposal.parameters or proposal.dtype):  # loops have their own model
        raise ConfigError(
            f"the organiser's model is of {line(proposal.dtype)}, not of {' or '.join(ITEM_BYTES)}", words
        )
    if (model := proposal.parameters * (size or 0)) > outside_files.LARGE:
        raise ConfigError(f"the organiser's model has {model:,} bytes: more than this machine can hold", words)
    if proposal.test_bytes > TEST_BYTES_MAX:
        text = f"the common test set has {proposal.test_bytes:,} bytes, and at most {TEST_BYTES_MAX:,} travel"
        raise ConfigError(text, words)


def experiment_of(proposal: Proposal, folder: Path, tables: Path | None = None) -> Experiment:
    """Return the proposed experiment, its graph and its test set in `folder`; nothing is read, run or written so far.

    `tables`: an own folder for the site's table and agreements, by the names of `shared_tables`; None if no file may be
    named.  Raises ConfigError for an experiment that cannot run, cannot be sent, or names a file of this machine.
    """
    _check_sizes(proposal)
    content = _content(proposal)
    for key in content:
        if key not in CARRIED:
            section = f"[{key}]" if isinstance(content[key], dict) else f"[[{key}]]"
            text = f"the organiser's experiment has {section}, which no invite may carry"
            raise ConfigError(text, "Do not take part, or ask why: that is each member's own to choose.")
    topology, data = _section(content, "topology"), _section(content, "data")
    graph, weights = str(topology.get("graph", "")), str(topology.get("weights", ""))
    if proposal.graph and not _NAME.fullmatch(graph):
        raise _file_refusal(graph)
    if not proposal.graph and graph and (os.sep in graph or Path(graph).exists()):
        raise _file_refusal(graph)
    if weights.partition(":")[0] == "pi":
        raise _file_refusal(weights)
    if proposal.graph:
        topology["graph"] = str((folder / _graph_name(graph)).resolve())
    _place_tables(data, tables)
    kind, _, rest = str(data.get("test", 0.2)).partition(":")
    if proposal.test:
        if not _NAME.fullmatch(proposal.test) or kind not in _FILES or rest.partition("?")[0] != proposal.test:
            raise _file_refusal(proposal.test)
        data["test"] = f"{kind}:{(folder / run_format.TEST_SET / proposal.test).resolve()}{_query(rest)}"
    elif isinstance(data.get("test"), str):
        _check_source(str(data["test"]))
    return checked(content, "the organiser's experiment")


def _place_tables(data: dict[str, Any], tables: Path | None) -> None:
    """Replace names of a site's files in [data] by their paths in `tables`."""
    source, federated = str(data.get("source", "digits")), data.get("scale") == FEDERATED
    if tables is None:
        if federated:
            text = f'the organiser\'s experiment has data.scale = "{FEDERATED}", a file not in such an invite'
            raise ConfigError(text, "Ask the organiser whether it is one for fedgossip pilot join.")
        _check_source(source)
        return
    if PLACE in source:
        data["source"] = f"{source.partition(':')[0]}:{(tables / _table_name(source)).resolve()}{_query(source)}"
    else:
        _check_source(source)
    if federated:
        if not _NAME.fullmatch(agreed := str(data.get("agreed", ""))):
            raise _file_refusal(agreed)
        data["agreed"] = str((tables / agreed).resolve())


def hash_of_proposal(proposal: Proposal) -> str:
    """Return the hash of the proposal: the experiment, its graph and the common test set."""
    return hash_of({"text": proposal.experiment, "graph": proposal.graph, "test": proposal.test_digest})


def check_agreed(proposal: Proposal, folder: Path) -> None:
    """Raise PeerError for another proposal than the one accepted with the invite of this folder.

    An organiser has one experiment per invite: a later or old one is refused before anybody is asked, and `--yes` in a
    script agrees to nothing new.
    """
    now = hash_of_proposal(proposal)
    before = agreed_here(folder) if (folder / run_format.PROPOSAL).exists() else now
    if before != now:
        text = f"the organiser proposes another run ({now[:16]}) than was agreed to with this invite ({before[:16]})"
        raise PeerError(text, "Ask why: another run is another invite.", peer=ORGANISER)


def keep_agreed(proposal: Proposal, folder: Path) -> None:
    """Record the proposal that a person has accepted, in their own folder.  Raises NotWrittenError."""
    _keep(folder / run_format.PROPOSAL, hash_of_proposal(proposal).encode())


def agreed_here(folder: Path) -> str:
    """Return the hash of the proposal accepted with the invite of this folder.  Raises ConfigError."""
    path = folder / run_format.PROPOSAL
    try:
        return outside_files.read_text(path).partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {reason(error)}", "Put it back, or ask for a new invite.") from None


def keep_graph(proposal: Proposal, folder: Path) -> None:
    """Write the graph file of a proposal under a local name.  Raises NotWrittenError."""
    if proposal.graph:
        graph = str(_section(_content(proposal), "topology").get("graph", ""))
        _keep(folder / _graph_name(graph), proposal.graph.encode())


def keep_test(proposal: Proposal, test: bytes, folder: Path) -> None:
    """Write the common test set.  Raises ConfigError if it differs from the announced one, and NotWrittenError."""
    if not proposal.test:
        return
    if len(test) != proposal.test_bytes or hashlib.sha256(test).hexdigest() != proposal.test_digest:
        raise ConfigError("the common test set is not the one that was announced", "Join again, or ask the organiser.")
    if not _NAME.fullmatch(proposal.test):
        raise _file_refusal(proposal.test)
    _keep(folder / run_format.TEST_SET / proposal.test, test)


def _keep(path: Path, content: bytes) -> None:
    """Write a proposal's file, unless the same one exists; no link is followed."""
    try:
        owner_files.make_folder(path.parent)
        owner_files.placed(path, content)
    except OSError as error:
        raise NotWrittenError(path, error) from None


def check_code(proposal: Proposal, experiment: Experiment, kept: Path | None = None) -> list[str]:
    """Return the experiment's user functions with identical code here; none is run.

    Raises ConfigError if the code is missing, differs, or is in `kept`, the proposals' folder.
    """
    names = list(experiment.named_code)
    missing = [name for name in names if not _is_here(name)]
    if missing or code_of(names) != proposal.code:
        files = ", ".join(sorted({f"{name.partition(':')[0]}.py" for name in missing or names}))
        what = "is not here" if missing else "is another here than at the organiser's"
        advice = "Code does not travel: get the files from a person you trust, read them, put them into this folder."
        raise ConfigError(f"the experiment runs code of {files}, which {what}", advice)
    for path in modules_of(names).values() if kept else ():
        if path.resolve().is_relative_to(kept.resolve()):  # type: ignore[union-attr]
            advice = "Do not take part, or ask why: no honest organiser names a file there."
            raise ConfigError(f"the experiment runs code of {path}, a folder for files of invites", advice)
    return names


def check_data(experiment: Experiment, data: str) -> None:
    """Raise ConfigError if this participant's training data do not match the experiment."""
    own = experiment.data.source == OWN and experiment.learns
    if own and not data:
        test = str(experiment.data.test)
        label = re.search(r"[?&]label=([^&]+)", test)
        example = f"csv:FILE?label={label[1]}" if label else "npz:FILE"
        raise ConfigError("each brings its own data to this run", f"Name yours: --data '{example}'")
    if own and is_standard(data) and not experiment.data.by_test:
        text = f"{data!r}: its columns would be scaled, and those of the others are not"
        raise ConfigError(text, "Leave scale=standard out; the organiser writes it for all, in data.source or --data.")
    if data and not own:
        text = f"the data of this run are its own: {experiment.data.source}, shared out by its seed"
        raise ConfigError(text, "Leave --data out.")


def check_model(experiment: Experiment, model: str) -> None:
    """Raise ConfigError if this participant names its own model in a run that averages models."""
    if model and not experiment.exchanges_logits:
        text = f"--model {model}: the models of this run are averaged, so all have one architecture"
        raise ConfigError(text, "Leave --model out; participants of feddf and fedmd may have models of their own.")


def check_own_model(folder: Path, model: str) -> str:
    """Return this participant's own model: the one with which it took its seat by the invite of this folder, if it did.

    Raises ConfigError for another one.
    """
    path = folder / run_format.OWN_MODEL
    try:
        before = outside_files.read_text(path) if path.exists() else model
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {reason(error)}", "Put it back, or ask for a new invite.") from None
    if model and model != before:
        text = f"--model {model}: this invite was accepted with {before or 'the model that the experiment names'}"
        raise ConfigError(text, "Leave --model out to resume, or join with a new invite.")
    return before


def keep_model(experiment: Experiment, folder: Path, model: str) -> None:
    """Write this participant's own model, in a run that exchanges logits.  Raises NotWrittenError."""
    if experiment.exchanges_logits:
        _keep(folder / run_format.OWN_MODEL, model.encode())


def learning_of(plan: Plan, node: int, data: str, model: str = "") -> Learning | None:
    """Make the task of a participant with its own data or model; None if the experiment has both.

    Raises ConfigError.
    """
    e = plan.experiment
    if not (data or model) or not e.learns:
        return None
    if data:
        e = msgspec.structs.replace(e, data=msgspec.structs.replace(e.data, source=data))
    if model:
        e = msgspec.structs.replace(e, model=msgspec.structs.replace(e.model, sources=[model]))
    return compose.task_of(e, plan.learners, [node], os.urandom)


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
    bundled = source in SOURCES and kind not in _FILES
    if not (bundled or source in ("own", OWN) or CODE.find_name(source)):
        raise _file_refusal(source)


def _file_refusal(what: str) -> ConfigError:
    text = f"the organiser's experiment names a file of this machine: {what[:100]!r}"
    return ConfigError(text, "Do not take part, or ask why: an invite never needs that.")
