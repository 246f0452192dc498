"""Events in words: what a person reads of them; the record holds their names and values."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from string import Formatter

from fedgossip.records import EventRow
from fedgossip.report.reasons import REASONS, given_up
from fedgossip.roles import Roles

WORDS: dict[str, str | tuple[str, ...]] = {
    # a neighbour, or several
    "joined": "peer {value} is here",
    "gone": "peer {value} is gone; its weight goes to oneself",
    "missed": "goes on without {value}; their weight goes to oneself",
    "started_without": "started without {value}, which did not come",
    "asks": "asks peers {value} to let it in",
    "nobody_came": "none of {value} came",
    "never_exchanged": "never exchanged a model with {value}",
    "learned_alone": "exchanged a model with nobody: it learned alone",
    "never_counted": "no round counted an update of {value}",
    "one_sided": "nothing came from {value}, and no account can settle it: the mean moves",
    "skipped": "was behind and skipped {value} round(s)",
    "refuted": "peer {value} was suspected, and is here",
    "slept": "did not run for {value:.1f} s",
    "deserted": "the coordinator, {value}, is gone",
    "unlike": "peer {value} has another kind of processor: bits are each one's own; train.portable makes them equal",
    # what a fault script does
    "crashed": "killed by the fault script",
    "restarted": "started again by the fault script",
    "asleep": "put to sleep by the fault script",
    "awake": "woken by the fault script",
    "slow": "trains {value} times as slowly by the fault script",
    "partition": "the fault script parts the network: {value}",
    "healed": "the fault script joins the network again: {value}",
    "link_down": "the fault script cuts the link of peers {value}",
    "link_up": "the fault script mends the link of peers {value}",
    # what happens to processes
    "hung": "writes nothing any more; not waited for",
    "refused": "refused: {value}",
}
"""Of a value that stands alone."""

COORDINATED: dict[str, str | tuple[str, ...]] = {
    "gone": "client {value} is gone",
    "missed": "the round goes on without {value}",
    "started_without": "begins without {value}, which did not come",
    "nobody_came": "the coordinator did not come",
    "deserted": "the coordinator is gone: ends here",
    "unlike": "client {value} has another kind of processor than others: the bits are each one's own; train.portable "
    "makes them equal",
}
"""The same, where a coordinator and its clients tell it."""

FACTS: dict[str, str | tuple[str, ...]] = {
    # members
    "suspected": "peer {node} does not answer peer {by}",
    "gone": "peer {node} is gone; the graph goes on without it from round {until} on",
    "left": "peer {node} leaves; the graph goes on without it from round {until} on",
    "joins": "peer {node} takes part from round {since} on",
    "partition": "the network is parted: {unreachable} cannot be reached; going on with the others",
    "merged": "the network is whole again: {back} are back",
    "fetched": "has the model of round {model_of_round} from peer {from}",
    "superseded": "another process runs as peer {node}, at {address}, and began later",
    "began_anew": "has no checkpoint, and no neighbour gave it a model: begins with the first",
    "revoked": "the organiser has sent peer {node} away; the graph goes on without it",
    "sent_away": "the organiser has sent peer {node} away: ends here",
    "unread": "{text}",
    "too_late": "round {round} of {rounds} is over: too late to take part; keeps the model that it fetched",
    # what did not arrive, and what became of it
    "repaired": "what was lost of round {round} between it and peer {peer} is made up for",
    "unsettled": (
        "what was lost of round {round} between it and peer {peer} could not be made up for",
        "whether peer {peer} has taken offer {offer} could not be known",
        "whether answer {answer} has reached peer {peer} could not be known",
        "whether peer {to} has its share of weight {weight:.3g} could not be known",
    ),
    "skipped_mix": (
        "keeps its own model: a sum without {missing} is noise; the mean moves",
        "keeps its own model: the sum over {garbled} is noise; have all peers the same endpoints.toml?",
        "keeps its own model: the sum over {beyond} is beyond algorithm.bound; one of them lies",
    ),
    "withheld": (
        "sends nothing to peer {peer}: among {senders} its model would not be hidden",
        "sends nothing to peer {peer}: the keys of {keys}, who send to it too, are not here",
    ),
    "far_ahead": "peer {peer} speaks of round {round}, which cannot be: not believed",
    "unanswered": "peer {peer} did not answer offer {offer}",
    "returned": "a share of weight {weight:.3g} that peer {from} did not take is one's own again",
    "taken_back": "a share of weight {weight:.3g} for peer {to}, which is gone, is one's own again",
    "stopped_with_the_others": "the others have done their rounds: stops after {rounds}",
    # rounds of a coordinator
    "aggregated": "an update of {clients} clients",
    "abandoned": "the round is abandoned: {why}",
    "cut": "cut to the bound: updates of {cut} clients out of {of}; raise coordinator.secure.bound, or lower lr",
    "awaits": "waits for {missing}: {here} of {of} are here",
    "too_few": (
        "the last {unanswered} invitations were not answered in time",
        "too few clients: {clients} are here, a round needs {needed}",
    ),
    "abstained": "client {peer} stays out of the round: {reason}",
    "abandoned_here": "stays out of the round: {reason}",
    "budget": "{text}",
    "spent_before": "epsilon {epsilon:.4g} of {limit:g} was spent in other runs with this key, on the same data",
    "ended_early": "the coordinator has ended the run after {rounds} of {of} rounds",
    "misfits": "what client {held_by} gave back of client {of}’s secret does not fit",
    "late": (
        "what client {peer} says of round {round} comes too late",
        "a word of session {session} comes too late",
    ),
    "outdated": (
        "goes over from round {round} to round {now}",
        "what it trained is of no use any more: goes over to round {now}",
    ),
    "stale": "the update of client {peer} is {staleness} rounds old: not counted",
    # files, and how processes end
    "resumed": "goes on after round {round}, in life {incarnation}",
    "checkpoint_refused": "{file} is not taken: {text}",
    "checkpoint_failed": "no checkpoint could be written: {text}",
    "trace_full": "the trace has come to its limit: {text}",
    "trace_failed": "the trace could not be written: {text}",
    "rows_lost": "{count} rows of the record are lost: {reason}",
    "refused": ("refused {count} times: {text}", "refused: {text}", "refused what came from peer {from}: {reason}"),
    "failed": "failed: {text}",
}
"""Of several facts, by their names; the first that fits."""


class _Unknown:
    def __format__(self, _spec: str) -> str:
        return "?"


class _Known(dict[str, object]):
    def __missing__(self, _key: str) -> object:
        return _Unknown()


def words_for(roles: Roles) -> Callable[[EventRow], str]:
    """Return what tells events in words, for peers or for a coordinator and its clients."""
    return event_text if roles.leader is None else federated_text


def event_text(row: EventRow) -> str:
    """An event in words."""
    return _told(row, WORDS)


def federated_text(row: EventRow) -> str:
    """An event of a federated run in words."""
    return _told(row, WORDS | COORDINATED)


def _told(row: EventRow, alone: Mapping[str, str | tuple[str, ...]]) -> str:
    value = row.value
    if row.name == "died":
        return _died(value)
    facts = value if isinstance(value, Mapping) else {} if value is None else {"value": value}
    table = FACTS if isinstance(value, Mapping) else alone
    known = _Known({str(key): _said(one) for key, one in facts.items()})
    if str(facts.get("reason")) in REASONS:
        known["reason"] = REASONS[str(facts["reason"])]
    if row.name == "abandoned":
        known["why"] = given_up(facts)
    try:
        if templates := table.get(row.name):
            return _fitting(templates, known).format_map(known)
    except (ValueError, TypeError):  # a value of another kind than its name has
        pass
    name = row.name.replace("_", " ")
    if "value" in known:
        return f"{name}: {known['value']}"
    return ": ".join([name, *([", ".join(f"{key} {one}" for key, one in known.items())] if known else [])])


def _fitting(templates: str | tuple[str, ...], known: Mapping[str, object]) -> str:
    """Return the first template whose facts are all known, else the last."""
    if isinstance(templates, str):
        return templates
    return next((one for one in templates if _fields(one) <= known.keys()), templates[-1])


def _fields(template: str) -> set[str]:
    return {field for _, field, _, _ in Formatter().parse(template) if field}


def _died(value: object) -> str:
    """How a process ended that did not say so itself; negative codes are signals."""
    code = value.get("exit_code") if isinstance(value, Mapping) else None
    if not isinstance(code, int):
        return "ended without a last word"
    if code == -signal.SIGKILL:
        return "was killed"
    if code < 0:
        return f"was ended by signal {-code}"
    return f"ended with code {code} and no last word"


def _said(value: object) -> object:
    """Return numbers for formatting, and lists as people write them."""
    if isinstance(value, (list, tuple)):
        if any(isinstance(one, (list, tuple)) for one in value):
            return " | ".join(str(_said(one)) for one in value)
        return ", ".join(str(one) for one in value) or "nobody"
    return value
