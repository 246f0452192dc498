"""Notes that a reader needs first of a run that did not go as it should."""

from __future__ import annotations

from fedgossip.report.page.markup import Markup, text
from fedgossip.report.page.reading import RecordedRun


def incomplete(name: str, run: RecordedRun) -> tuple[str, str] | None:
    """Return the note on a run that is not finished, or lacks exchanges: why, and what that means for the page."""
    status, who = run.summary.status, f"{run.roles.one}s"
    if status == "finished":
        return (f"{name} is finished, and incomplete:", " ".join(run.summary.lacking)) if run.summary.lacking else None
    if status == "partial" and run.summary.lacking:
        return f"{name} is {status}: {run.summary.lacking[0]}", " ".join(run.summary.lacking[1:])
    if status == "partial" and run.summary.led:
        return (
            f"{name} ended without some of its {who}: its status is “{status}”.",
            "They died, hung or were stopped; the rounds went on with the others, and the global model is of those.",
        )
    if status == "partial":
        return (
            f"{name} ended without some of its {who}: its status is “{status}”.",
            "They died, hung or were stopped; the others went on to the end, and what is shown last is of them alone.",
        )
    if status == "exhausted":
        return (
            f"{name} was ended by its budget of privacy.",
            "The next round would have crossed it; the global model is that of the rounds before.",
        )
    last = run.network[-1].round if run.network else 0
    return (
        f"{name} did not finish: its status is “{status}”.",
        f"{_wanting(run)}All that follows shows what was measured up to round {last}.",
    )


def _wanting(run: RecordedRun) -> str:
    """Return the note that too few clients ended the run, where they did."""
    facts = run.participation.too_few if run.participation else None
    if facts is None:
        return ""
    return f"{facts.get('clients', '?')} {run.roles.one}s were there, and a round needs {facts.get('needed', '?')}. "


def notice(said: tuple[str, str] | None) -> Markup | None:
    """Return a highlighted line, its first sentence in bold; None without one."""
    if said is None:
        return None
    return Markup(f'<p class="notice" role="status"><b>{text(said[0])}</b> {text(said[1])}</p>')
