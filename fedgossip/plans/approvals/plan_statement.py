"""The plan of a run as one file with one hash, for sites to read, compare, sign, and match with a release.

    plan.json    written by `fedgossip plan show --out`, and into every folder of a federated run

It has everything that must agree between sites: the experiment with every default, hashes of common files and user
modules, the model's layout, the data that leaves a site, and the version.  It excludes a site's choices for its
machine, projections of tensors (a policy pins those), and agreed statistics: the plan is the same before and after the
agreement, and the site's approval holds them (`site_approvals`).

The plan in plain words, and its changes key by key, contain exactly the statement's content.
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, NotWrittenError
from fedgossip.base.untrusted_text import line
from fedgossip.base.version import __version__
from fedgossip.core.task import LocalTask
from fedgossip.data.agreed import agreed_table
from fedgossip.data.columns.declarations import OWN, declared_columns
from fedgossip.data.columns.table_schema import DROP, FEDERATED, IMPUTE, INDICATOR, MEAN, SchemaColumn, TableSchema
from fedgossip.data.custom import modules_of
from fedgossip.data.objectives import EVALUATION, STATISTICS, SUMS
from fedgossip.data.partitions import PLACE
from fedgossip.data.table_files import SQL, table_file
from fedgossip.experiment import Experiment, FederatedExperiment
from fedgossip.experiment.meanings import keys
from fedgossip.learning.settings import OF_THE_MACHINE
from fedgossip.plans.federated.privacy_budget import statistics_cost
from fedgossip.plans.plan import Plan, without_folders
from fedgossip.plans.tasks import schema_of_experiment
from fedgossip.privacy.accounting import epsilon, meaning

FORMAT = 1
HASH_SHOWN = 16
"""Number of printed digits of a hash that people compare; 64 bits."""


TELEPHONE_GROUPS, GROUP_DIGITS = 8, 5
"""Digits for comparing a plan by telephone: 40, or 132 bits, so that a search for two plans with the same digits takes
2^66 steps.
"""


def spoken(sha256: str) -> str:
    """Return a hash of 64 hex digits as decimal digits in groups, to be read aloud."""
    count = TELEPHONE_GROUPS * GROUP_DIGITS
    digits = f"{int(sha256, 16) % 10**count:0{count}d}"
    return " ".join(digits[at : at + GROUP_DIGITS] for at in range(0, count, GROUP_DIGITS))


class StatedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Model properties that must agree between sites."""

    parameters: int
    type: str
    layout: str


class StatedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Columns that all sites must have; with their statistics if the file of these is among the common files."""

    columns: tuple[str, ...]
    labels: tuple[str, ...]
    sites: int = 0
    records: int = 0
    dropped: int | None = 0
    """Number of records left out for an empty cell; None if too few to publish."""


class StatedTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The terms of a site, in the words printed at the start of every run."""

    how: str
    sent: str
    seen: str
    budget: str
    before: tuple[str, ...] = ()
    """Data that leaves a site before this run, in a step of the same plan."""


class PlanStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of plan.json."""

    format: int = FORMAT
    version: str
    """Version of fedgossip."""
    experiment: dict[str, Any]
    """Every key that must be equal at all sites, with its value."""
    model: StatedModel
    table: StatedTable | None = None
    """None if the sites agree on no columns."""
    files: dict[str, str]
    """sha256 of each common file, by name."""
    code: dict[str, str]
    """sha256 of each of the user's own modules, by name."""
    terms: StatedTerms

    @property
    def name(self) -> str:
        return str(self.experiment.get("name") or self._method)

    @property
    def _method(self) -> str:
        if "coordinator" in self.experiment:
            return str(self.experiment["coordinator"]["algorithm"])
        return str(self.experiment["algorithm"]["name"])

    @property
    def rounds(self) -> int:
        return int(self.experiment["rounds"])

    @property
    def hash(self) -> str:
        """64 hex digits: sha256 of the file."""
        return hashlib.sha256(encoded(self)).hexdigest()


def statement_of(
    plan: Plan, task: LocalTask, opened: Sequence[str] = (), schema: TableSchema | None = None
) -> PlanStatement:
    """Return the plan that the clients of a run, or the peers of a graph, are asked to approve.

    `opened`: the disclosures of a run's sums, in words; () if models are sent.  `schema`: columns of statistics.
    Raises ConfigError for an unreadable file.
    """
    e, terms = plan.experiment, plan.terms(task.length, task.dtype.itemsize)
    content = without_folders(dict(plan.fingerprint))
    for key in ("simulation", "faults"):
        content.pop(key, None)
    for key in OF_THE_MACHINE:
        content["train"].pop(key, None)
    return PlanStatement(
        version=__version__,
        experiment=content,
        model=StatedModel(task.length, task.dtype.name, task.schema),
        table=_table(e, schema),
        files={path.name: _sha256(path) for path in _common_files(e)},
        code={name: _sha256(path) for name, path in sorted(modules_of(e.named_code).items())},
        terms=StatedTerms(terms.how, "; ".join(opened) or terms.sent, terms.seen, terms.budget, statistics_words(e)),
    )


def agrees(e: Experiment) -> bool:
    """Return whether the sites agree on statistics under the same plan, as a step or as the whole run."""
    made = e.task.kind in SUMS and e.task.kind != STATISTICS  # from existing statistics
    return isinstance(e, FederatedExperiment) and e.data.scale == FEDERATED and not made


def statistics_words(e: Experiment) -> tuple[str, ...]:
    """Return, in words, the data that leaves a site in the agreement on statistics; () without this step before the
    run.
    """
    if not agrees(e) or e.task.kind == STATISTICS or (e.budget and e.budget.unit != "record"):
        return ()
    text = "two sums over the sites, for the means, spreads and counts of the columns: data agree"
    if (spent := statistics_cost(e)) is None:
        return (f"{text}; exact and without noise, so no epsilon covers them",)
    assert e.budget is not None
    worth = f"epsilon {epsilon([spent], e.budget.delta):.3g} for each record"
    return (f"{text}; with noise {e.budget.noise:g} on each site's: {worth}, out of the same budget",)


def _table(e: Experiment, schema: TableSchema | None) -> StatedTable | None:
    if e.data.scale != FEDERATED:
        return None
    if agrees(e):
        schema = schema or schema_of_experiment(e)
        return StatedTable(_name_columns(schema.features), _name_columns(schema.labels))
    found = agreed_table.read(Path(e.data.agreed))
    columns, labels = _name_columns(found.schema.features), _name_columns(found.schema.labels)
    dropped = 0 if found.dropped is msgspec.UNSET else found.dropped
    return StatedTable(columns, labels, found.sites, found.records, dropped)


def _name_columns(columns: Sequence[SchemaColumn]) -> tuple[str, ...]:
    return tuple(f"{one.name} [{one.unit}]" if one.unit else one.name for one in columns)


def _common_files(e: Experiment) -> Iterator[Path]:
    """Yield the files of all sites: common examples, and agreed statistics."""
    if not e.learns and e.data.scale != FEDERATED:
        return
    if e.data.scale == FEDERATED and not agrees(e):
        yield Path(e.data.agreed)
    for source in {e.data.source, str(e.data.test), str(e.data.common)}:
        if source.partition(":")[0] == SQL and (query := table_file(source)[0].query):
            yield query
        path = Path(source.partition(":")[2].partition("?")[0]).expanduser()
        if PLACE not in source and source.partition(":")[2] and path.is_file():
            yield path
            if (own := path.with_name(path.name + OWN)).is_file():
                yield own


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(outside_files.read_bytes(outside_files.resolve(path), outside_files.LARGE)).hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "All sites have this file; ask for it.") from None


def encoded(statement: PlanStatement) -> bytes:
    return msgspec.json.format(msgspec.json.encode(statement, order="deterministic"), indent=1) + b"\n"


def write(path: Path, statement: PlanStatement) -> None:
    """Write the file atomically.  Raises NotWrittenError."""
    try:
        owner_files.placed(path, encoded(statement))
    except OSError as error:
        raise NotWrittenError(path, error) from None


def read(path: Path) -> PlanStatement:
    """Read the file.  Raises ConfigError if it is missing or was changed."""
    advice = "Make it again: fedgossip plan show EXPERIMENT --out FILE"
    try:
        content = outside_files.read_bytes(path)
        statement = from_json(msgspec.json.Decoder(PlanStatement), content)
    except OSError as error:
        raise ConfigError(f"{path}: no plan there ({error.strerror})", advice) from None
    except UnreadableError as error:
        raise ConfigError(f"{path}: no plan: {error}", advice) from None
    if statement.format != FORMAT:
        raise ConfigError(f"{path}: a plan of format {statement.format}; this release knows {FORMAT}", advice)
    if encoded(statement) != content:
        raise ConfigError(f"{path}: changed since it was written", advice)
    return statement


def differences(before: PlanStatement, now: PlanStatement) -> list[tuple[str, Any, Any]]:
    """Return (key, value before, value now) of each difference, by dotted names; None for a missing value."""
    was, has = _flat(msgspec.to_builtins(before)), _flat(msgspec.to_builtins(now))
    return [(key, was.get(key), has.get(key)) for key in sorted(was | has) if was.get(key) != has.get(key)]


def _flat(value: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, one in value.items():
        inner = isinstance(one, Mapping) and one
        found |= _flat(one, f"{path}{key}.") if inner else {f"{path}{key}": one}
    return found


STUDY_SHOWN = 10_000
"""Maximum letters of a text of [study]; the names of all sites are one text."""
COLUMNS_SHOWN = 12
"""Maximum number of columns listed by name."""
EMPTY_CELLS = {
    MEAN: "  An empty cell counts as the mean of its column.",
    INDICATOR: "  An empty cell counts as the mean of its column, and as a feature of its own where enough have one.",
    DROP: "  Records with an empty cell are left out{}.",
    IMPUTE: "  Empty cells are drawn, {sets} times, by models of the other columns; the drawn tables stay at the site.",
}
"""Treatment of empty cells, by the first word of data.missing."""
PROBLEMS = ("averaging", "quadratic")
"""Tasks with a known solution, which use no data."""


def lines(statement: PlanStatement) -> list[tuple[str, str]]:
    """Return (question, answer) in reading order."""
    e, terms = statement.experiment, statement.terms
    sums = e["task"]["kind"] in SUMS
    return [
        ("plan", f"{statement.name}, {statement.hash[:HASH_SHOWN]}"),
        ("learns", _learns(statement)),
        ("from", _describe_source(statement)),
        ("who", _who(statement)),
        *study_of(statement),
        *(("before", _sentence(one)) for one in terms.before),
        ("rounds", _rounds(statement)),
        (
            "leaves a site",
            f"Masked numbers, whose sums are opened: {terms.sent}." if sums else f"It sends {terms.sent}.",
        ),
        ("who sees it", _sentence(terms.seen)),
        ("budget", _budget(e.get("coordinator", {}).get("privacy"), terms.budget)),
        ("own code", _list_files(statement.code) or "None: only fedgossip and its installed libraries run."),
        ("common files", _list_files(statement.files) or "None."),
        ("version", f"fedgossip {statement.version}"),
        ("by telephone", spoken(statement.hash)),
    ]


STUDY = {
    "sites": "sites",
    "purpose": "purpose",
    "legal_basis": "legal basis",
    "retention": "kept",
    "contact": "contact",
}
"""Keys of [study] and their labels, in reading order."""


def study_lines(study: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return (label, text) of the agreements in [study]; each text of a received plan is one printable line."""
    texts = {key: "; ".join(map(str, one)) if isinstance(one, list) else str(one) for key, one in study.items()}
    return [(what, line(texts[key], STUDY_SHOWN)) for key, what in STUDY.items() if texts.get(key)]


def study_of(statement: PlanStatement) -> tuple[tuple[str, str], ...]:
    """Return the agreements in the [study] of a plan, as `study_lines` does."""
    return tuple(study_lines(statement.experiment.get("study", {})))


def _who(statement: PlanStatement) -> str:
    if "coordinator" in statement.experiment:
        return f"{statement.experiment['coordinator']['clients']} sites and a coordinator ({statement.terms.how})."
    return f"Peers of a graph, without a coordinator ({statement.terms.how})."


def _learns(statement: PlanStatement) -> str:
    e, m = statement.experiment, statement.model
    if e["task"]["kind"] in PROBLEMS:
        return f"Nothing from data: {e['task']['kind']}, {m.parameters:,} numbers."
    if e["task"]["kind"] == STATISTICS:
        return "Nothing yet: the sites agree on statistics of their columns, which later training uses."
    if e["task"]["kind"] == EVALUATION:
        return "Nothing: the sites evaluate an existing model, each on its own records."
    if e["task"]["kind"] in SUMS and statement.table:
        return f"{e['model']['source']} of {', '.join(statement.table.labels)}, by sums over the sites that are exact."
    text = f"To predict {', '.join(statement.table.labels)}, by a" if statement.table else "A"
    return f"{text} model {e['model']['source']} of {m.parameters:,} numbers ({m.type}, layout {m.layout[:8]})."


def _describe_source(statement: PlanStatement) -> str:
    data, table = statement.experiment["data"], statement.table
    own = "Each site's own file, which stays there" if "{peer}" in data["source"] else "Data that are divided"
    text = f"{own} ({data['source']})."
    if table is None:
        return text
    named = ", ".join(table.columns[:COLUMNS_SHOWN])
    more = f" and {len(table.columns) - COLUMNS_SHOWN} more" if len(table.columns) > COLUMNS_SHOWN else ""
    agreed = f", agreed on by {table.sites} sites with {table.records} records" if table.sites else ""
    text = f"{text}  {len(table.columns)} columns{agreed}: {named}{more}."
    left_out = (
        ", too few to publish how many" if table.dropped is None else f": {table.dropped}" if table.dropped else ""
    )
    word, _, sets = data.get("missing", "").partition(":")
    missing = EMPTY_CELLS.get(word, "").format(left_out, sets=sets)
    rewritten = [
        name for name, keys in data.get("columns", {}).items() if declared_columns({name: keys})[name].rewrites
    ]
    declared = f"  Cells of {', '.join(rewritten)} are first rewritten as data.columns declares." if rewritten else ""
    chosen = f"  Only records with {line(data['where'], STUDY_SHOWN)}." if data.get("where") else ""
    return f"{text}{chosen}{missing}{declared}"


def _rounds(statement: PlanStatement) -> str:
    e = statement.experiment
    if e["task"]["kind"] in SUMS:
        return f"{e['rounds']} at most.  In each a site sends its sums; it trains nothing."
    return f"{e['rounds']}.  {_training(e['train'])}"


def _training(train: Mapping[str, Any]) -> str:
    passes = train.get("local_epochs")
    up_to = "at most " if train.get("fewest_epochs") else ""
    how = f"{up_to}{passes:g} passes over its records" if passes else f"{train.get('local_steps') or 5} steps"
    how = how.replace("1 passes", "1 pass") if passes == 1 else how
    step = f"{train['optimizer']} at rate {train['lr']:g}, in batches of {train['batch_size']}"
    return f"In each a site trains {how}: {step}."


def _budget(privacy: Mapping[str, Any] | None, text: str) -> str:
    if privacy is None or privacy["unit"] == "none":
        return _sentence(text)
    text = f"Epsilon at most {privacy['max_epsilon']:g} at delta {privacy['delta']:g} for each {privacy['unit']}"
    how = f"noise {privacy['noise']:g}, clip {privacy['clip']:g}"
    return f"{text}, by {how}.  {meaning(privacy['max_epsilon'], privacy['unit'])}"


def _list_files(hashes: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({one[:HASH_SHOWN]})" for name, one in hashes.items())


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def changes(before: PlanStatement, now: PlanStatement) -> list[tuple[str, str, str, str]]:
    """Return (key, value before, value now, meaning of the key) of each difference."""
    return [
        (_key(name), _shorten(was), _shorten(has), _meaning(_key(name))) for name, was, has in differences(before, now)
    ]


def _key(name: str) -> str:
    return name.removeprefix("experiment.")


def _shorten(value: Any) -> str:
    text = "none" if value is None else str(value)
    return textwrap.shorten(text, 60, placeholder=" ...")


_MEANT = {
    "version": "The release of fedgossip.",
    "model": "The model's size and layout.",
    "files": "A file that all sites have, by its bytes.",
    "code": "A module of the user's own, by its bytes.",
    "table": "The agreement of the sites.",
    "terms": "A site's agreement, in words.",
}


def _meaning(key: str) -> str:
    known: Sequence[Any] = keys().get(key, ())
    if known:
        return str(known[0].meaning).partition(". ")[0].rstrip(".") + "."
    return _MEANT.get(key.partition(".")[0], "")
