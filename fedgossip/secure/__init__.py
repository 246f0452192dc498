"""The cryptography of one secure sum, FG-SecAgg/1: the coordinator learns a sum over enough clients, and no more.

It imports cryptography, `base` and the message bounds of `core`; no socket, clock or random source: entropy is an
argument. docs/privacy/attacks.md says what is defended and what is not.

    client.py   the client's steps              server.py   the coordinator's
    session.py  what both must agree on         aborts.py   why a session is given up
    sums.py     both as a library: frames in, frames out (docs/privacy/secure-library.md)

A step object holds what it may hold, and each method returns the next step and uses its own up, so that an order that
is not the protocol's cannot be written.  `step.frame` is what to send; a driver (`protocols.federated.secure_round`
and `client_round`) moves frames and decides when a stage is over.

    client   SecAggClient.join(invite) -> .share(neighbourhood) -> .mask(delivery, integers) -> .consent(survivors)
             -> .reveal(consents) -> .finish(result, words)
    server   invite() -> Inviting -> Distributing -> Summing -> Consenting -> Unmasking -> Summed
             each: frame or frame_for(client), take(client, frame), waiting, close() -> the next

Clients mask with pairwise and own masks modulo 2^32, on a complete graph up to 64 clients and on a Harary graph
above.  Any client may drop at any stage as long as t of each share group (more than two thirds) answer to the end.
There are three outcomes: the next step; `ProtocolError`, a frame that changes nothing; `RoundAbandoned` with a
`Reason`, and all secrets erased.  The sum is of integers, so its bits do not depend on the order.

The masked message of a round carries the keys of the next, so a client sends four messages a round: shares, the masked
vector, its signature on the survivors, its reveal.  The room also has quantisation with clipping, weights and metrics
inside the vector, policies, signatures, named culprits, discrete Gaussian noise, and a server whose memory does not
depend on the number of clients.

Sessions.  A session's number is life << 32 | round: a coordinator that restarts is never in an earlier session.  A
client masks once in a round of the run, rounds only go up, and its log has the line on disk before the vector leaves
(`session_history`).  Batches and rounding follow from the round, so two sums of one round would differ by one client's
update and nothing else.

A simulation is one process that is everybody, and leaves out what only keeps participants apart (`primitives`,
bounded in bytes).  A pair's secret is a hash of the two public keys in place of an X25519 agreement; a key is derived,
a short mask stream drawn and a seal opened once for both ends; a signature made in that process is not checked, any
other is, and keys of small order are refused; a frame packed there is not decoded again.  The bytes are those of the
code of real participants, which compute everything.

Sources: Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017; Bell et al.,
Secure single-server aggregation with (poly)logarithmic overhead, CCS 2020.
"""

from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.encoding import Encoding, ExactEncoding, SumResult
from fedgossip.secure.sums import SumClient, SumServer, sign_card

__all__ = [
    "Encoding",
    "ExactEncoding",
    "Reason",
    "RoundAbandoned",
    "SumClient",
    "SumResult",
    "SumServer",
    "sign_card",
]
