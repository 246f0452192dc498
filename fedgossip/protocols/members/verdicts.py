"""Verdicts that exclude a member: of several judges, or of all remaining ones, without recently refuted judges.

A single verdict is evidence without effect.  All verdicts are kept, of each judge one on each life of a member, in any
order of arrival; from them, and from the entries, every peer computes the same:

    there      members that take part in the round
    enough     quorum(there) judges, or all of those that can judge where these are fewer
    can judge  members there, not out themselves and not judged by the own peer: those it receives from
    counts     a verdict on the present life, by a judge with a voice that the own peer has not judged
    out        members with enough verdicts that count, each from its round `until` on

`out` is the least set for which this holds: fewer members that can judge only make more go out.  So one false verdict
has no effect; half of a network that is cut off, or the last of three, is enough for itself.  The own peer's verdicts
matter only where it receives from fewer than a quorum; these few are cut off with it, and give the same verdicts.

A verdict on an earlier life was refuted.  Where fewer than a quorum gave it on that life, its judges have no voice for
SILENT_ROUNDS about the round that they named.  An honest judge may lose its voice too, by a member that hides from it
alone: its verdicts do not count for a while, and judges without a voice are not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedgossip.core.machine import NodeId
from fedgossip.core.messages import ConfirmDead

SILENT_ROUNDS = 64
"""Distance in rounds from a refuted verdict within which its judge's verdicts do not count."""

LIVES_KEPT = 2
"""Number of lives of each member with stored verdicts, the latest judged ones."""

JUDGES_KEPT = 64
"""Maximum number of verdicts kept on one life; up to this number of members all are linked."""

Said = tuple[ConfirmDead, ...]
"""All verdicts on one member, by (incarnation, judge)."""


def quorum(members: int) -> int:
    """Return the number of judges that must agree in a network of so many members; one less may lie without effect.

    At most 5: in a large network only members with a link to the judged one can judge, and they are O(log n).
    """
    return max(1, min(members - 1, 2 + members // 8, 5))


def with_verdict(before: Said, verdict: ConfirmDead) -> Said:
    """Return `before` with `verdict`, or `before` itself where it changes nothing; any order gives the same."""
    found = {(one.incarnation, one.by): one for one in before}
    key = verdict.incarnation, verdict.by
    if key in found and found[key].until <= verdict.until:  # of two of one judge the earlier end counts
        return before
    found[key] = verdict
    lives = sorted({life for life, _ in found})[-LIVES_KEPT:]
    kept: list[ConfirmDead] = []
    for life in lives:
        on_it = sorted((one for one in found.values() if one.incarnation == life), key=lambda one: (one.until, one.by))
        kept += sorted(on_it[:JUDGES_KEPT], key=lambda one: one.by)
    return tuple(kept) if verdict in kept else before


def refuted(
    verdicts: Mapping[NodeId, Said], lives: Mapping[NodeId, int], members: int
) -> dict[NodeId, tuple[int, ...]]:
    """Return, by judge, the rounds of its refuted verdicts that fewer than a quorum gave."""
    found: dict[NodeId, list[int]] = {}
    for node, given in verdicts.items():
        earlier = [one for one in given if one.incarnation < lives[node]]
        for life in {one.incarnation for one in earlier}:
            judges = [one for one in earlier if one.incarnation == life]
            for one in judges if len(judges) < quorum(members) else ():
                found.setdefault(one.by, []).append(one.until)
    return {judge: tuple(sorted(rounds)) for judge, rounds in found.items()}


def silent(refuted_rounds: Iterable[int], round: int) -> bool:
    """Return whether a judge with these refuted rounds has no voice about `round`."""
    return any(abs(named - round) < SILENT_ROUNDS for named in refuted_rounds)


def out(
    standing: Mapping[NodeId, Said],
    mute: Mapping[NodeId, frozenset[NodeId]],
    there: frozenset[NodeId],
    own: NodeId,
) -> frozenset[NodeId]:
    """Return the excluded members.  `standing`: the verdicts in force on each; `there`: the participants.

    `mute`: on each, the judges whose verdicts on it do not count; they can give no other.  `own`: the viewing peer.
    """
    judged = {node for node, verdicts in standing.items() if any(one.by == own for one in verdicts)}
    judges = {node: {one.by for one in verdicts} - judged for node, verdicts in standing.items()}
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
