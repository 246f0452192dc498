"""A sealed stream parallel to a CURVE connection, from the offer on, at either end; selects the one for the next
message.

    caller                                        callee
    S + number, offer       -- CURVE -->
                            <-- CURVE --          S + number, answer; empty: no stream now
    hail, ticket, P         -- TCP ------>        a caller without the key is disconnected
                            <----- TCP --         P
    B + count, all else     <---- TCP --->        B + count, all else
    K + bytes               <---- TCP --->        K + bytes

K acknowledges read bytes: those acknowledged by TCP may have reached only a middlebox.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from fedgossip.core.machine import NodeId
from fedgossip.net.links.outbox import Pair, plain_body
from fedgossip.net.streams.sealed_stream import HEAD_BYTES, SealedStream
from fedgossip.net.streams.sealing import TAG_BYTES, Agreed, SealBrokenError, StreamOffer

SEAL, PROOF, BEGIN, READ_SO_FAR = b"S", b"P", b"B", b"K"

ACK_SECONDS = 7.0
"""Maximum seconds without an acknowledgement of sent bytes; then the link continues by CURVE."""

_MARK = struct.Struct("<cII")
_PROOF, _BEGIN = _MARK.pack(PROOF, 0, 0), _MARK.pack(BEGIN, 0, 0)
_ACK = _MARK.pack(READ_SO_FAR, 0, 0)
_COUNT = struct.Struct("<Q")
ACK_BYTES = HEAD_BYTES + _COUNT.size + TAG_BYTES


def seal_word(number: int, text: bytes) -> Pair:
    """Return the control frame with an offer or an answer."""
    return _MARK.pack(SEAL, number, 0), text


@dataclass(slots=True, eq=False)
class SealedWay:
    """One end of a stream, and the count of messages on the parallel CURVE connection."""

    node: NodeId
    frames_received: int = 0
    """Messages of ZeroMQ received on the CURVE connection since its S."""
    frames_sent: int = 0
    """Messages sent on it since the S sent here."""
    stream: SealedStream | None = None
    proof_sent: bool = False
    up: bool = False
    """Whether the other end has proved possession of the key."""
    sends: bool = False
    """Whether all messages of this end use the stream."""
    receives: bool = False
    """Whether all messages of the other end use the stream."""
    waits_for: int = 0
    acknowledged: int = 0
    """Bytes that the other end has read of the stream, without acknowledgements."""
    owed: int = 0
    """Bytes acknowledged by this end."""
    acks_sent: int = 0
    acks_taken: int = 0
    since: float = 0.0
    """Time since which sent bytes have waited without any acknowledgement; 0 if none wait."""
    base: int = 0
    """Bytes sent before the other end began to count."""
    swallowed: bool = False
    """Whether the last stream ended for lack of an acknowledgement."""

    def acknowledge(self) -> None:
        """Send the number of read bytes if it is new, after waiting bytes.  Raises OSError."""
        assert self.stream is not None
        waited, read = self.stream.sending, self.stream.taken - self.acks_taken * ACK_BYTES
        if self.up and read > self.owed and self.stream.send(_ACK, _COUNT.pack(read)):
            self.owed, self.acks_sent = read, self.acks_sent + 1
            if not waited:  # otherwise its owner continues when the network accepts more
                self.stream.flush()

    def overdue(self, now: float) -> bool:
        """Return whether no sent bytes were acknowledged for ACK_SECONDS."""
        assert self.stream is not None
        if self.stream.given - self.base - self.acks_sent * ACK_BYTES <= self.acknowledged:
            self.since = 0.0
        elif not self.since:
            self.since = now
        return bool(self.since) and now - self.since > ACK_SECONDS

    def _acknowledged(self) -> None:
        """Process an acknowledgement.  Raises SealBrokenError."""
        assert self.stream is not None
        body = self.stream.open()
        if not self.up or len(body) != _COUNT.size:
            raise SealBrokenError("an acknowledgement that is none")
        (read,) = _COUNT.unpack(body)
        self.acks_taken += 1
        if read > self.acknowledged:
            self.acknowledged, self.since = read, 0.0

    def forget_counts(self) -> None:
        """Reset the counts for the next stream."""
        self.acknowledged = self.owed = self.acks_sent = self.acks_taken = self.base = 0
        self.since = 0.0

    @property
    def waits(self) -> bool:
        """Whether earlier messages have still to arrive by the CURVE connection."""
        return self.receives and self.frames_received < self.waits_for

    @property
    def sending(self) -> bool:
        return self.stream is not None and self.stream.sending

    @property
    def in_use(self) -> bool:
        """Whether messages under way are lost when the stream breaks."""
        return self.sends or self.receives

    def count_sent(self, pair: Pair) -> None:
        """Count messages accepted by ZeroMQ for the CURVE connection."""
        self.frames_sent = 0 if pair[0][:1] == SEAL else self.frames_sent + 1

    def prove(self) -> bool:
        """Send the proof of possession of the key.  Raises OSError."""
        assert self.stream is not None
        proved = self.stream.send(_PROOF, b"")
        self.stream.flush()
        return proved

    def speak(self) -> bool:
        """Change over to the stream, between two messages; return whether it has.  Raises OSError."""
        if not self.sends:
            assert self.stream is not None
            self.sends = self.stream.send(_BEGIN, _COUNT.pack(self.frames_sent))
        return self.sends

    def send(self, pair: Pair) -> bool:
        """Seal a frame and send the part that the network accepts (small ones later, or at `flush`); False: not now.

        Raises OSError and WornOutError.
        """
        assert self.stream is not None
        return self.stream.send(pair[0], plain_body(pair))

    def flush(self) -> bool:
        """Send waiting bytes; return whether none are left.  Raises OSError."""
        assert self.stream is not None
        return self.stream.flush()

    def arrived(self) -> bool:
        """Read arriving bytes; return whether a record is complete and may be opened now.

        Raises EOFError, OSError and FrameError at the end of the stream.
        """
        assert self.stream is not None
        while not self.waits and self.stream.arrived():
            if self.stream.mark == _ACK:
                self._acknowledged()
            elif self.receives:
                return True
            else:
                self._begin()
        return False

    def _begin(self) -> None:
        """Read a record that precedes all others: a proof, then a B."""
        assert self.stream is not None
        mark, body = self.stream.mark, self.stream.open()
        if not self.up and (mark, len(body)) == (_PROOF, 0):
            self.up = True
            self.base = self.stream.given  # the hail and the proof
        elif self.up and (mark, len(body)) == (_BEGIN, _COUNT.size):
            (self.waits_for,) = _COUNT.unpack(body)
            self.receives = True
        else:
            raise SealBrokenError("a record before the one that begins")


@dataclass(slots=True, eq=False)
class StreamCall(SealedWay):
    """The calling end.  `callee`: its long-term key."""

    callee: str = ""
    offer: StreamOffer | None = None
    """Offer without an answer."""
    relayed: bool = False
    """Whether the callee is reached through a relay: its streams are then called at the address of its CURVE
    connection.
    """
    number: int = 0
    """Number of the last offer on this connection."""
    until: float = 0.0
    """Time at which the attempt counts as failed."""
    due: float = 0.0
    """Time of the next offer."""
    pause: float = 0.0
    descriptor: int = -1
    ends: object = None
    """Descriptor of the CURVE connection, and its two addresses."""


@dataclass(slots=True, eq=False)
class CalledStream(SealedWay):
    """The called end.  `connection`: the ROUTER's name of the CURVE connection."""

    connection: bytes = b""
    agreed: Agreed | None = field(default=None, repr=False)
    until: float = 0.0
