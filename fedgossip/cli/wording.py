"""Events in words for people.  The record holds names and values, `event_kinds` the templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from string import Formatter

from fedgossip.base.signals import KILL
from fedgossip.core.event_kinds import kind_of
from fedgossip.core.machine import NodeId
from fedgossip.core.records import EventRow
from fedgossip.core.roles import Roles
from fedgossip.report.page.reasons import REASONS, given_up


class _Unknown:
    def __format__(self, _spec: str) -> str:
        return "?"


Label = Callable[[NodeId], str]


@dataclass(frozen=True)
class _Member:
    """A number, which is a participant's where a template asks for the `member`."""

    node: int
    label: Label

    def __format__(self, spec: str) -> str:
        return self.label(self.node) if spec == "member" else format(self.node, spec)

    def __str__(self) -> str:
        return str(self.node)


class _Known(dict[str, object]):
    def __missing__(self, _key: str) -> object:
        return _Unknown()


def words_for(roles: Roles) -> Callable[[EventRow], str]:
    """Return the function that words events, for peers or for a coordinator and its clients."""
    return event_text if roles.leader is None else partial(federated_text, label=roles.label)


def event_text(row: EventRow) -> str:
    """Return an event in words."""
    return _fill(row, kind_of(row.name).words, client)


def client(node: NodeId) -> str:
    """Return the name of a participant below a coordinator, where all of them are clients."""
    return f"client {node}"


def federated_text(row: EventRow, label: Label = client) -> str:
    """Return an event of a federated run in words; `label` names a participant: "leaf coordinator 1"."""
    kind = kind_of(row.name)
    return _fill(row, kind.led or kind.words, label)


def _fill(row: EventRow, words: str, label: Label) -> str:
    """`words`: the template for a value without facts."""
    value = row.value
    if row.name == "died":
        return _describe_exit(value)
    facts = value if isinstance(value, Mapping) else {} if value is None else {"value": value}
    templates = kind_of(row.name).facts if isinstance(value, Mapping) else tuple(filter(None, [words]))
    known = _Known({str(key): _format(one, label) for key, one in facts.items()})
    if str(facts.get("reason")) in REASONS:
        known["reason"] = REASONS[str(facts["reason"])]
    if row.name in ("abandoned", "contributes_nothing"):
        known["why"] = given_up(facts)
    try:
        if templates:
            stated = {key for key in known if facts.get(key) not in ([], ())}  # "without" nobody
            return _best_template(templates, stated).format_map(known)
    except (ValueError, TypeError):  # the value is of another kind than the template wants
        pass
    name = row.name.replace("_", " ")
    if "value" in known:
        return f"{name}: {known['value']}"
    return ": ".join([name, *([", ".join(f"{key} {one}" for key, one in known.items())] if known else [])])


def _best_template(templates: tuple[str, ...], known: set[str]) -> str:
    """Return the first template with all of its facts known, and no empty list among them; else the last."""
    return next((one for one in templates if _fields(one) <= known), templates[-1])


def _fields(template: str) -> set[str]:
    return {field for _, field, _, _ in Formatter().parse(template) if field}


def _describe_exit(value: object) -> str:
    """Return how a process ended without a report of its own; negative codes are signals."""
    code = value.get("exit_code") if isinstance(value, Mapping) else None
    if not isinstance(code, int):
        return "ended without a report"
    if code == -KILL:
        return "was killed"
    if code < 0:
        return f"was ended by signal {-code}"
    return f"ended with code {code} and without a report"


def _format(value: object, label: Label) -> object:
    """Return numbers for formatting, and lists as people write them."""
    if isinstance(value, (list, tuple)):
        if any(isinstance(one, (list, tuple)) for one in value):
            return " | ".join(str(_format(one, label)) for one in value)
        return ", ".join(str(one) for one in value) or "nobody"
    return _Member(value, label) if type(value) is int else value
