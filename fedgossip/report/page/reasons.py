"""Reasons for an abandoned round and for a client's absence, in words; and the notes at the top of a faulty
run's page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedgossip.core.records import event_kinds
from fedgossip.report.page.markup import Markup, text
from fedgossip.report.page.reading import RecordedRun

REASONS = {
    "TOO_FEW": "too few clients",
    "DEADLINE": "it took too long",
    "INTERRUPTED": "the coordinator was stopped in it",
    "POLICY": "the session is not one that a client’s own policy allows",
    "COMPANY": "a sum of other clients than those before",
    "POINT": "the point does not follow from the earlier sums, or few records count there",
    "ROSTER": "a participant is not in the roster, or the rosters differ",
    "SIG": "a signature is not that client’s",
    "DUPKEY": "a key is not one client’s alone",
    "AEAD": "a sealed share was changed on its way",
    "SCHEMA": "numbers of another layout than agreed",
    "MODEL_HASH": "the model is not the one that was announced",
    "REPLAY": "the round is not later than the last",
    "TWICE": "a single-use step was requested again",
    "INCONSISTENT_U3": "lists of survivors that cannot all be true",
    "SHARE_INVALID": "a secret could not be put together from its shares",
    "OVERFLOW": "a number that the sum cannot hold",
    "BOUND": "a sum that clients which keep to the bounds cannot make",
    "NOT_FINITE": "the model would not have been finite",
    "BUDGET": "its privacy budget is used up",
}
"""Words for `secure.aborts.Reason`, and for the coordinator's own reasons."""

STAGES = {
    "KEYS": "while keys were exchanged",
    "SHARES": "while shares of secrets were handed out",
    "MASKED": "while masked updates arrived",
    "CONSIST": "while the survivors were confirmed",
    "UNMASK": "while the sum was unmasked",
}
"""Words for `secure.aborts.Stage`."""


def gravest_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the counts of events in the order of their importance to a reader; names of other versions are last."""
    rank = {name: place for place, name in enumerate(event_kinds())}
    return sorted(counts.items(), key=lambda one: (rank.get(one[0], len(rank)), one[0]))


def reason(word: object) -> str:
    """Return a reason in words; an unknown one unchanged."""
    return REASONS.get(str(word)) or str(word).replace("_", " ").lower()


def explain_abandoned(facts: Mapping[str, Any]) -> str:
    """Return why a round was abandoned, from the value of its event."""
    word = str(facts.get("reason", "TOO_FEW"))
    stage = re.search(r"stage (\w+)\)", str(facts.get("text", "")))
    why = " ".join([reason(word), *([STAGES[stage[1]]] if stage and stage[1] in STAGES else [])])
    if word != "TOO_FEW":
        return why
    return f"{why}: {facts.get('contributions', '?')} contributed, {facts.get('needed', '?')} are needed"


def incomplete(name: str, run: RecordedRun) -> tuple[str, str] | None:
    """Return the note on a run that did not finish, or lacks exchanges: the cause, and its consequence for the page."""
    status, who = run.summary.status, f"{run.roles.one}s"
    if status == "finished":
        return (f"{name} is finished, and incomplete:", " ".join(run.summary.lacking)) if run.summary.lacking else None
    if status == "partial" and run.summary.lacking:
        return f"{name} is {status}: {run.summary.lacking[0]}", " ".join(run.summary.lacking[1:])
    if status == "partial" and run.summary.led:
        return (
            f"{name} ended without some of its {who}: its status is “{status}”.",
            "They died, hung or were stopped; the rounds continued with the others, and the global model is of those.",
        )
    if status == "partial":
        return (
            f"{name} ended without some of its {who}: its status is “{status}”.",
            "They died, hung or were stopped; the others continued to the end, and the last figures are of them alone.",
        )
    if status == "exhausted":
        return (
            f"{name} was ended by its privacy budget.",
            "The next round would have crossed it; the global model is that of the rounds before.",
        )
    last = run.network[-1].round if run.network else 0
    return (
        f"{name} did not finish: its status is “{status}”.",
        f"{_wanting(run)}All that follows shows what was measured up to round {last}.",
    )


def _wanting(run: RecordedRun) -> str:
    facts = run.participation.too_few if run.participation else None
    if facts is None:
        return ""
    return f"{facts.get('clients', '?')} {run.roles.one}s were there, and a round needs {facts.get('needed', '?')}. "


def notice(reason: tuple[str, str] | None) -> Markup | None:
    """Return a highlighted line, its first sentence in bold; None without one."""
    if reason is None:
        return None
    return Markup(f'<p class="notice" role="status"><b>{text(reason[0])}</b> {text(reason[1])}</p>')
