"""How long answers on a link take, and so how long one is waited for before something is said again.

    timeout = smoothed + max(4 * deviation, smoothed)          smoothed, deviation: moving means, of 1/8 and 1/4

at least LEAST_NS and at most a limit; FIRST_NS before the first answer, and doubled with the second and the third that
does not come, until one comes.  The caller measures those alone that are known to be of a thing said once.

Source: Paxson, Allman, Chu and Sargent, Computing TCP's retransmission timer, RFC 6298 (2011), with the rule of Karn
and Partridge, Improving round-trip time estimates in reliable transport protocols, SIGCOMM 1987.  Ours differs in the
least timeout: that of Linux in place of a second, and twice the smoothed time, for answers here wait for a machine that
may be adding; and it doubles twice, from the second on, for what is said after it is a question of a few bytes, which
fills no link.
"""

from __future__ import annotations

FIRST_NS = 1_000_000_000
"""Timeout before the first answer, as RFC 6298 has it."""

LEAST_NS = 200_000_000
"""Minimum timeout, as Linux has it: messages are lost seldom, and a busy machine answers late."""

DOUBLINGS_MAX = 2
"""Maximum number of times that a timeout doubles."""


class RoundTrips:
    """Those of one link, in nanoseconds; `longest_ns` limits the timeout."""

    def __init__(self, longest_ns: int) -> None:
        self.longest_ns = longest_ns
        self.quickest_ns = 0
        """The shortest that was seen; 0 before the first."""
        self._smoothed_ns = self._deviation_ns = self._timeouts = 0

    def saw(self, took_ns: int) -> None:
        """An answer came after so long to what was said once."""
        took_ns = max(took_ns, 1)
        if not self.quickest_ns:
            self._smoothed_ns, self._deviation_ns, self.quickest_ns = took_ns, took_ns // 2, took_ns
        else:
            self._deviation_ns += (abs(self._smoothed_ns - took_ns) - self._deviation_ns) // 4
            self._smoothed_ns += (took_ns - self._smoothed_ns) // 8
            self.quickest_ns = min(self.quickest_ns, took_ns)
        self._timeouts = 0

    def answered(self, took_ns: int) -> None:
        """A question was answered after so long, which is sooner than a long thing: it tells that the link is there."""
        if not self.quickest_ns:
            self.saw(took_ns)
        self._timeouts = 0

    def timed_out(self) -> None:
        """No answer came in time."""
        self._timeouts = min(self._timeouts + 1, 1 + DOUBLINGS_MAX)

    @property
    def timeout_ns(self) -> int:
        """How long the next answer is waited for."""
        return min(self._usual_ns << max(self._timeouts - 1, 0), self.longest_ns)

    @property
    def _usual_ns(self) -> int:
        if not self.quickest_ns:
            return FIRST_NS
        return max(self._smoothed_ns + max(4 * self._deviation_ns, self._smoothed_ns), LEAST_NS)
