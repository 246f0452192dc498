"""When to stop waiting in a round that all go through together."""

from __future__ import annotations

from fedgossip.protocols.gossip.deadlines import Deadline


class RoundClock:
    """The waits of one peer's rounds; times in nanoseconds.

    A round that was cut short tells nothing: the deadline follows those alone in which somebody came, from their
    beginning to the last that came.
    """

    def __init__(self, deadline_ns: int, least_ns: int, ask_ns: int) -> None:
        self.deadline = Deadline(deadline_ns, min(least_ns, deadline_ns))
        self.ask_ns = ask_ns
        self.heard_ns = 0  # when the last vector of the open round came, or our own went out

    def heard(self, now_ns: int) -> None:
        """What came before our own went out was in time."""
        self.heard_ns = now_ns

    def over(self, began_ns: int) -> None:
        """Take note of a round in which somebody came."""
        self.deadline.saw(max(0, self.heard_ns - began_ns))

    def patience_ns(self, times: int) -> int:
        """How long to wait before a vector is asked for again: a lost one costs this, not the deadline."""
        quickest_ns = self.deadline.quickest_ns()  # not what is usual, which asking makes longer
        return (max(self.ask_ns, 4 * quickest_ns) if quickest_ns else 4 * self.ask_ns) << min(times, 6)

    def early_ns(self, began_ns: int, now_ns: int) -> int:
        """How much earlier than usual the round would end now."""
        return began_ns + self.deadline.usual_ns() - now_ns
