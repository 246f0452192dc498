"""An audit in words: which nodes can solve for which vectors, and remedies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from fedgossip.base.errors import ConfigError
from fedgossip.topology.exposure import check_private, worst

if TYPE_CHECKING:
    from fedgossip.topology import Schedule
    from fedgossip.topology.exposure import Audit, Exposure, Set, Victims

Name = Callable[[int], str]

HEADS = ("exchange", "between mixings", "exposed", "after", "in float32", "after")

NAMED = 6
"""Maximum number of named nodes; --json has all."""

_EXCHANGES = {"clear": "plain gossip", "sums": "private gossip"}
_SITUATIONS = {"averaging": "nothing", "training": "training"}


def refused(schedule: Schedule, rounds: int) -> str | None:
    """Return why private gossip does not run on these graphs; None if it does."""
    try:
        check_private(schedule, rounds)
    except ConfigError as error:
        return str(error)
    return None


def rows(audit: Audit) -> list[tuple[str, ...]]:
    """Return the table: a row per exchange and situation, for the set of nodes with the most exposed ones."""
    others = audit.n - audit.colluding
    found = []
    for e in audit.exposures:
        cells = [cell for count in (e.exact, e.float32) for cell in _cells(worst(count)[1], others)]
        found.append((_EXCHANGES[e.exchange], _SITUATIONS[e.situation], *cells))
    return found


def _cells(victims: Victims, others: int) -> tuple[str, str]:
    return f"{len(victims)} of {others}", _count_rounds(victims) if victims else "-"


def meanings(audit: Audit) -> list[str]:
    """Return lines that define the table's words, and list the attempts."""
    one = audit.colluding == 1
    worst = "the node that sees most" if one else f"the {audit.colluding} nodes that together see most"
    tried = f"all {audit.sets}" if audit.all_sets else f"{audit.sets} sets of neighbours"
    return [
        f"exposed: whose vectors {worst} can solve for in {_counted(audit.rounds, 'round')} ({tried} tried).",
        "in float32: the same from numbers that are rounded as in a run, to 1 % of the spread of the first vectors.",
        "between mixings: nothing (averaging alone), or training, which makes every model new in every round.",
    ]


def verdict(audit: Audit, schedule: Schedule, reason: str | None) -> list[str]:
    """Return the conclusions, a sentence or two per line."""
    name = schedule.mixing(0).topology.label
    lines = [_plain(audit, name)]
    if reason:
        return [*lines, f"{reason[0].upper()}{reason[1:]}.{_describe_sums(audit.find('sums', 'training'), name)}"]
    lines.append(_training(audit, name))
    lines += _averaging(audit.find("sums", "averaging"), name)
    return [*lines, _pooled(schedule)]


def _plain(audit: Audit, name: Name) -> str:
    curious, near = worst(audit.find("clear", "training").exact)
    _, solved = worst(audit.find("clear", "averaging").float32)
    seen = f"Plain gossip: {_names(curious, name)} {_sees(curious)} {_counted(len(near), 'model')} as they are"
    return f"{seen}; by averaging alone up to {_counted(len(solved), 'first vector')} can be solved for."


def _describe_sums(exposure: Exposure, name: Name) -> str:
    curious, victims = worst(exposure.exact)
    return f"  From sums {_whom(curious, victims, name)}{_such(exposure.exact)}." if victims else ""


def _training(audit: Audit, name: Name) -> str:
    exposure = audit.find("sums", "training")
    curious, victims = worst(exposure.exact)
    if not victims:
        who = "no node" if audit.colluding == 1 else f"no {audit.colluding} nodes together"
        return f"Private gossip, training between mixings: {who} can solve for another's model."
    return (
        f"Private gossip, training between mixings: {_whom(curious, victims, name)}{_such(exposure.exact)}.  "
        "More neighbours for each, with fewer in common, would help."
    )


def _averaging(exposure: Exposure, name: Name) -> list[str]:
    curious, victims = worst(exposure.float32)
    if victims:
        return [
            f"If nothing were trained: {_whom(curious, victims, name)}{_such(exposure.float32)}.  So train between "
            "mixings; fewer rounds, more neighbours, or a larger graph without symmetries would help too."
        ]
    curious, victims = worst(exposure.exact)
    if victims:
        return [
            f"If nothing were trained: {_whom(curious, victims, name)}{_such(exposure.exact)}, but only from numbers "
            "that are never rounded; in float32 nobody."
        ]
    return ["If nothing were trained: nobody either."]


def _pooled(schedule: Schedule) -> str:
    mixing = schedule.mixing(0)
    few = min(range(mixing.n), key=lambda node: len(mixing.row(node)))
    pooled = _counted(len(mixing.row(few)) - 1, "node")
    return f"Always: a node and all of its neighbours but one know the last one's model if they talk, here {pooled}."


# --- words ------------------------------------------------------------------------------------------------------


def _whom(curious: Set, victims: Victims, name: Name) -> str:
    return f"{_names(curious, name)} can solve for {_names(sorted(victims), name)} after {_count_rounds(victims)}"


def _such(count: Mapping[Set, Victims]) -> str:
    sets = sum(map(bool, count.values()))
    return f" (and {sets - 1} more such of {len(count)})" if sets > 1 else ""


def _names(nodes: Sequence[int], name: Name) -> str:
    if len(nodes) > NAMED:
        return f"{len(nodes)} nodes"
    shown = [name(node) for node in nodes]
    return f"node {shown[0]}" if len(shown) == 1 else f"nodes {', '.join(shown[:-1])} and {shown[-1]}"


def _sees(nodes: Sequence[int]) -> str:
    return "sees" if len(nodes) == 1 else "see"


def _count_rounds(victims: Victims) -> str:
    return _counted(max(victims.values()), "round")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
