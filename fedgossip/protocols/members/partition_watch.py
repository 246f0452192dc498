"""Detection of partitions: members that are lost within a window, and return together."""

from __future__ import annotations

from fedgossip.core.machine import Effect, NodeId, SetTimer


class PartitionWatch:
    """The lost members and times, and those reported as on the other side.

    Several must be lost within a window, as one may have crashed.  Reports follow two periods after the last loss, so
    that one partition is one event.
    """

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._lost: dict[NodeId, int] = {}
        self._apart: set[NodeId] = set()
        self._back: set[NodeId] = set()

    def lost(self, node: NodeId, now_ns: int) -> Effect:
        self._lost[node] = now_ns
        return SetTimer(("member", "partition"), 2 * self._period_ns)

    def found(self, node: NodeId) -> list[Effect]:
        """Record a returned member; if it was reported, set a timer for all that return with it."""
        self._lost.pop(node, None)
        if node not in self._apart:
            return []
        self._back.add(node)
        return [SetTimer(("member", "merged"), 2 * self._period_ns)]

    def parted(self, now_ns: int, window_ns: int) -> list[NodeId]:
        """Return the members on the other side, ascending; empty unless there are new ones."""
        within_ns = window_ns + 3 * self._period_ns
        recent = {node for node, at in self._lost.items() if now_ns - at <= within_ns}
        if len(recent) < 2 or recent <= self._apart:
            return []
        self._apart |= recent
        return sorted(recent)

    def merged(self) -> list[NodeId]:
        """Return the members that returned since the last call, ascending."""
        back, self._back = sorted(self._back), set()
        self._apart -= set(back)
        return back
