"""Whose word makes a member gone: several judges, or those that are left, and never one that was refuted of late.

A verdict is evidence, and counts for nothing alone.  All verdicts are kept, of each judge one on each life of a member,
whatever the order in which they come; from them, and from the entries, everyone computes the same:

    there      members that take part in the round
    enough     quorum(there) judges, or all of those that can judge where these are fewer
    can judge  who is there and not out itself, and whom the own peer has not judged: they are who it hears
    counts     a verdict on the present life, whose judge has a voice and was not itself judged by the own peer
    out        on whom enough judges have verdicts that count, each from its round `until` on

`out` is the least set for which this holds: taking members out of those that can judge only makes more go out.  So a
lie of one is a lie of one; half of a network that is cut off, or the last of three, is enough for itself.  The own
peer's verdicts matter only where it hears fewer than a quorum; these few are cut off with it, and say the same.

A verdict on an earlier life was refuted.  Where fewer than a quorum gave it on that life, its judges have no voice for
SILENT_ROUNDS about the round that they named.  One who tells the truth may lose it too, by one that hides from it
alone: its word is missed for a while, and those that cannot judge are not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedgossip.core.machine import NodeId
from fedgossip.core.messages import ConfirmDead

SILENT_ROUNDS = 64
"""Within so many rounds of one that was refuted, the verdicts of its judge do not count."""

LIVES_KEPT = 2
"""Verdicts are kept on so many lives of each member, the latest that were judged."""

JUDGES_KEPT = 64
"""Verdicts that are kept on one life; to so many members everyone has links to all."""

Said = tuple[ConfirmDead, ...]
"""All verdicts on one member, by (incarnation, judge)."""


def quorum(members: int) -> int:
    """Return how many judges must agree in a network of so many members; one less may lie without effect.

    At most 5: in a large network only those judge that have a link to the member, and they are O(log n).
    """
    return max(1, min(members - 1, 2 + members // 8, 5))


def with_verdict(said: Said, verdict: ConfirmDead) -> Said:
    """Return `said` with `verdict`; the same object where it changes nothing.  Any order of verdicts gives the same."""
    found = {(one.incarnation, one.by): one for one in said}
    key = verdict.incarnation, verdict.by
    if key in found and found[key].until <= verdict.until:  # of two of one judge the earlier end counts
        return said
    found[key] = verdict
    lives = sorted({life for life, _ in found})[-LIVES_KEPT:]
    kept: list[ConfirmDead] = []
    for life in lives:
        on_it = sorted((one for one in found.values() if one.incarnation == life), key=lambda one: (one.until, one.by))
        kept += sorted(on_it[:JUDGES_KEPT], key=lambda one: one.by)
    return tuple(kept) if verdict in kept else said


def refuted(
    verdicts: Mapping[NodeId, Said], lives: Mapping[NodeId, int], members: int
) -> dict[NodeId, tuple[int, ...]]:
    """Return, by judge, the rounds that it named in verdicts that were refuted and that too few others gave too."""
    found: dict[NodeId, list[int]] = {}
    for node, said in verdicts.items():
        earlier = [one for one in said if one.incarnation < lives[node]]
        for life in {one.incarnation for one in earlier}:
            judges = [one for one in earlier if one.incarnation == life]
            for one in judges if len(judges) < quorum(members) else ():
                found.setdefault(one.by, []).append(one.until)
    return {judge: tuple(sorted(rounds)) for judge, rounds in found.items()}


def silent(refuted_rounds: Iterable[int], round: int) -> bool:
    """Whether a judge that was refuted in these rounds has no voice about `round`."""
    return any(abs(named - round) < SILENT_ROUNDS for named in refuted_rounds)


def out(
    said: Mapping[NodeId, Said], mute: Mapping[NodeId, frozenset[NodeId]], there: frozenset[NodeId], own: NodeId
) -> frozenset[NodeId]:
    """Return who is out.  `said`: on each, the verdicts that count, all of them in force; `there`: who takes part.

    `mute`: on each, those whose verdicts on it do not count; they can give no other.  `own`: whose view this is.
    """
    judged = {node for node, verdicts in said.items() if any(one.by == own for one in verdicts)}
    judges = {node: {one.by for one in verdicts} - judged for node, verdicts in said.items()}
    found: set[NodeId] = set()
    while True:
        able = there - judged - found
        more = {
            node
            for node in judges.keys() - found
            if len(judges[node])
            >= max(1, min(quorum(len(there | {node})), len(able - {node} - mute.get(node, frozenset()))))
        }
        if not more:
            return frozenset(found)
        found |= more
