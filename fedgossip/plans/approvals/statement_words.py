"""A plan in plain words, for the people responsible for the data; and its changes, key by key.

The words contain exactly the statement's content, so they cover everything in the hash.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from fedgossip.base.untrusted_text import line
from fedgossip.data.columns.declarations import declared_columns
from fedgossip.data.columns.table_schema import DROP, INDICATOR, MEAN
from fedgossip.data.objectives import EVALUATION, STATISTICS, SUMS
from fedgossip.experiment.meanings import keys
from fedgossip.plans.approvals.plan_statement import HASH_SHOWN, PlanStatement, differences, spoken
from fedgossip.privacy.accounting import meaning

STUDY_SHOWN = 10_000
"""Maximum letters of a text of [study]; names of all sites are one text."""
COLUMNS_SHOWN = 12
"""Maximum number of columns that are named."""
EMPTY_CELLS = {
    MEAN: "  An empty cell counts as the mean of its column.",
    INDICATOR: "  An empty cell counts as the mean of its column, and as a feature of its own where enough have one.",
    DROP: "  Records with an empty cell are left out{}.",
}
"""What is done with empty cells, by data.missing."""
PROBLEMS = ("averaging", "quadratic")
"""Tasks with a known answer, which use no data."""


def lines(statement: PlanStatement) -> list[tuple[str, str]]:
    """Return (question, answer) in the order in which to read them."""
    e, terms = statement.experiment, statement.terms
    sums = e["task"]["kind"] in SUMS
    return [
        ("plan", f"{statement.name}, {statement.hash[:HASH_SHOWN]}"),
        ("learns", _learns(statement)),
        ("from", _from(statement)),
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
        ("own code", _named(statement.code) or "None: nothing runs but fedgossip and what it is installed with."),
        ("common files", _named(statement.files) or "None."),
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
"""Keys of [study] and the words before each, in the order in which to read them."""


def study_lines(study: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return (what, text) of what people have agreed on beside the run; [] where the file has no [study].

    Texts of a received plan are untrusted: each is one printable line.
    """
    texts = {key: "; ".join(map(str, one)) if isinstance(one, list) else str(one) for key, one in study.items()}
    return [(what, line(texts[key], STUDY_SHOWN)) for key, what in STUDY.items() if texts.get(key)]


def study_of(statement: PlanStatement) -> tuple[tuple[str, str], ...]:
    """Return the same of a plan."""
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
        return "Nothing yet: the sites agree on statistics of their columns, which what is learned later begins from."
    if e["task"]["kind"] == EVALUATION:
        return "Nothing: the sites judge a model that there is, each on its own records."
    if e["task"]["kind"] in SUMS and statement.table:
        return f"{e['model']['source']} of {', '.join(statement.table.labels)}, by sums over the sites that are exact."
    text = f"To tell {', '.join(statement.table.labels)}, by a" if statement.table else "A"
    return f"{text} model {e['model']['source']} of {m.parameters:,} numbers ({m.type}, layout {m.layout[:8]})."


def _from(statement: PlanStatement) -> str:
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
    missing = EMPTY_CELLS.get(data.get("missing", ""), "").format(left_out)
    rewritten = [
        name for name, keys in data.get("columns", {}).items() if declared_columns({name: keys})[name].rewrites
    ]
    declared = f"  Cells of {', '.join(rewritten)} are first rewritten as data.columns declares." if rewritten else ""
    return f"{text}{missing}{declared}"


def _rounds(statement: PlanStatement) -> str:
    e = statement.experiment
    if e["task"]["kind"] in SUMS:
        return f"{e['rounds']} at most.  In each a site tells its sums; it trains nothing."
    return f"{e['rounds']}.  {_training(e['train'])}"


def _training(train: Mapping[str, Any]) -> str:
    passes = train.get("local_epochs")
    up_to = "at most " if train.get("fewest_epochs") else ""
    how = f"{up_to}{passes:g} passes over its records" if passes else f"{train.get('local_steps') or 5} steps"
    how = how.replace("1 passes", "1 pass") if passes == 1 else how
    step = f"{train['optimizer']} at rate {train['lr']:g}, in batches of {train['batch_size']}"
    return f"In each a site trains {how}: {step}."


def _budget(privacy: Mapping[str, Any] | None, said: str) -> str:
    if privacy is None or privacy["unit"] == "none":
        return _sentence(said)
    text = f"Epsilon at most {privacy['max_epsilon']:g} at delta {privacy['delta']:g} for each {privacy['unit']}"
    how = f"noise {privacy['noise']:g}, clip {privacy['clip']:g}"
    return f"{text}, by {how}.  {meaning(privacy['max_epsilon'], privacy['unit'])}"


def _named(hashes: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({one[:HASH_SHOWN]})" for name, one in hashes.items())


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def changes(before: PlanStatement, now: PlanStatement) -> list[tuple[str, str, str, str]]:
    """Return (key, value before, value now, what the key means) of all that differs."""
    return [(_key(name), _shown(was), _shown(has), _meaning(_key(name))) for name, was, has in differences(before, now)]


def _key(name: str) -> str:
    return name.removeprefix("experiment.")


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return textwrap.shorten(text, 60, placeholder=" ...")


_MEANT = {
    "version": "The release of fedgossip.",
    "model": "The model's size and layout.",
    "files": "A file that all sites have, by its bytes.",
    "code": "A module of the user's own, by its bytes.",
    "table": "What the sites have agreed on.",
    "terms": "What a site agrees to, in words.",
}


def _meaning(key: str) -> str:
    known: Sequence[Any] = keys().get(key, ())
    if known:
        return str(known[0].meaning).partition(". ")[0].rstrip(".") + "."
    return _MEANT.get(key.partition(".")[0], "")
