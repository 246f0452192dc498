"""The costs of a round at one peer: drivers feed a `Meter`, which returns a row of the record for each round.

Times are lengths of unions of intervals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from fedgossip.core.gains import COUNTS
from fedgossip.core.machine import Aggregated, LocalWork, RoundDone
from fedgossip.core.records import ADAPTER_DISTANCE, PeerRow

OF_ROUNDS = (*COUNTS, ADAPTER_DISTANCE)
"""Names of a coordinator's numbers that its row stores under `logged`."""


class Meter:
    """One peer's account of its current round, from the end of the previous round to its end; the first begins with its
    training.

    Each nanosecond counts once.  It is training; else away (in no column), if the peer was dead; else communicating, if
    vectors were in transfer; else waiting.
    """

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.bytes_sent = self.bytes_received = 0
        self.payload_sent = self.payload_received = 0
        self._since: int | None = None  # when this round began
        self._busy: deque[Span] = deque()
        self._carried: list[Span] = []
        self._away: list[Span] = []
        self._left: int | None = None
        self.loss: float | None = None
        self.epsilon: float | None = None
        self._of_jobs: dict[int, tuple[float | None, dict[str, float | None] | None]] = {}  # until the rounds end
        self._aggregated: Mapping[str, float] = {}
        self._counted: list[int] | None = None
        self._owed = 0  # bytes of vectors counted in the row before, sent later
        self._train_began: int | None = None
        self._trained_ns = 0

    def began(self, now_ns: int) -> None:
        """Begin the first round, if it does not begin with a training."""
        if self._since is None:
            self._since = now_ns

    def train_began(self, now_ns: int) -> None:
        self._train_began = now_ns
        self.began(now_ns)

    def train_ended(
        self, now_ns: int, job: int, metrics: Mapping[str, float], logged: Mapping[str, float] | None = None
    ) -> None:
        """Record a job's loss and the user's numbers for the row of round job + 1; its time counts when trained."""
        began = now_ns if self._train_began is None else self._train_began
        self._train_began = None
        self._trained_ns += now_ns - began
        self.occupied(began, now_ns)
        self._of_jobs[job] = metrics.get("loss"), dict(logged) if logged else None

    def broke_off(self, now_ns: int) -> None:
        """Record a crash of the peer: its current training is lost."""
        if self._train_began is not None:
            self.occupied(self._train_began, now_ns)
            self._trained_ns += now_ns - self._train_began
            self._train_began = None
        self._of_jobs.clear()

    def record_death(self, now_ns: int) -> None:
        """Record the death of the peer: it does not wait until it returns."""
        self.broke_off(now_ns)
        self._left = now_ns

    def record_restart(self, now_ns: int) -> None:
        """Record the peer's restart."""
        if self._left is not None:
            self._away.append((self._left, now_ns))
            self._left = None

    def occupied(self, began_ns: int, ended_ns: int) -> None:
        """Record a span of training, or of an evaluation outside the method: neither communication nor waiting."""
        self._busy.append((began_ns, ended_ns))

    def record_sent(self, size: int, payload: int, times: int = 1) -> None:
        """Record a message of `size` bytes, including `payload` bytes of vectors, sent to `times` receivers."""
        self.bytes_sent += times * size
        self.payload_sent += times * payload

    def record_received(self, size: int, payload: int) -> None:
        """Record a received message; arguments as in `record_sent`."""
        self.bytes_received += size
        self.payload_received += payload

    def carries(self, begins_ns: int, ends_ns: int) -> None:
        """Record one span of vector transfer, as `carried` does."""
        span = begins_ns, ends_ns
        if ends_ns > begins_ns and (not self._carried or self._carried[-1] != span):  # several at once count once
            self._carried.append(span)

    def carried(self, spans: Iterable[Span]) -> None:
        """Record spans of vector transfer; they may end in a later round."""
        self._carried += spans

    def aggregated(self, done: Aggregated) -> None:
        """Record the metrics of the clients' contributions to a coordinator's round."""
        self._aggregated = {name: value for name, value in done.facts.items() if isinstance(value, int | float)}
        self._counted = counted if isinstance(counted := done.facts.get("counted"), list) else None
        self.loss = self._aggregated.get("loss")
        self.epsilon = self._aggregated.get("epsilon")

    def done(self, effect: RoundDone | LocalWork, now_ns: int, mixing_ns: int) -> PeerRow:
        """Close the round that the machine reports; times as in `mixed`."""
        if isinstance(effect, LocalWork):
            self.epsilon = effect.epsilon
            return self.mixed(effect.round, now_ns, mixing_ns, effect.score)
        row = self.mixed(effect.round, now_ns, mixing_ns, None)
        row.staleness = effect.staleness
        # waiting bytes belong to this round, not to the later one in which they are sent
        more, self._owed = effect.waiting_bytes - self._owed, effect.waiting_bytes
        row.payload_sent = max(0, row.payload_sent + more)
        row.bytes_sent = max(row.payload_sent, row.bytes_sent + more)
        return row

    def mixed(self, round: int, now_ns: int, mixing_ns: int, score: float | None) -> PeerRow:
        """Close the round: `now_ns` is the arrival of the last model, `mixing_ns` the duration of the sum after it."""
        communicating_ns, waiting_ns = self._measure_times(now_ns)
        loss, logged = self.loss, None
        for job in sorted(job for job in list(self._of_jobs) if job < round):  # a training may end meanwhile
            loss, logged = self._of_jobs.pop(job)
        row = PeerRow(
            round=round,
            peer=self.peer,
            loss=loss,
            score=score,
            bytes_sent=self.bytes_sent,
            bytes_received=self.bytes_received,
            payload_sent=self.payload_sent,
            payload_received=self.payload_received,
            seconds_training=self._trained_ns / 1e9,
            seconds_communicating=communicating_ns / 1e9,
            seconds_waiting=waiting_ns / 1e9,
            seconds_mixing=mixing_ns / 1e9,
            seconds=(now_ns + mixing_ns) / 1e9,
            epsilon=self.epsilon,
            logged=logged,
        )
        self._since, self._trained_ns = now_ns + mixing_ns, 0
        if self._aggregated:
            row.clients, row.counted = int(self._aggregated["clients"]), self._counted
            row.score_clients = self._aggregated.get("score")
            row.score_worst_client = self._aggregated.get("worst")
            row.logged = {name: self._aggregated[name] for name in OF_ROUNDS if name in self._aggregated} or row.logged
            self._aggregated = {}
        self.bytes_sent = self.bytes_received = self.payload_sent = self.payload_received = 0
        self.loss = None
        return row

    def _measure_times(self, now_ns: int) -> tuple[int, int]:
        since = 0 if self._since is None else self._since
        busy = list(self._busy) if self._train_began is None else [*self._busy, (self._train_began, now_ns)]
        busy += self._away
        trained = covered_ns(busy, since, now_ns)
        either = covered_ns([*busy, *self._carried], since, now_ns)
        while self._busy and self._busy[0][1] <= now_ns:
            self._busy.popleft()
        self._carried = [span for span in self._carried if span[1] > now_ns]
        self._away.clear()  # a round ends while its peer is there
        return either - trained, max(0, now_ns - since - either)


Span = tuple[int, int]
"""(start, end) in nanoseconds of one clock."""


def covered_ns(spans: Iterable[Span], since_ns: int, until_ns: int) -> int:
    """Return the length of the union of the spans, between the two times, in nanoseconds."""
    total, end = 0, since_ns
    for begins, ends in sorted(spans):
        stop = ends if ends < until_ns else until_ns
        if stop > end and begins < until_ns:
            total += stop - (begins if begins > end else end)
            end = stop
    return total
