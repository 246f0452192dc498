"""The cryptography of one secure sum, FG-SecAgg/1: the coordinator learns a sum over enough clients, and no more.

It imports cryptography, `base` and the message bounds of `core`; no socket, clock or random source: entropy is an
argument. docs/privacy/attacks.md lists the defended attacks.

    client.py   the client's steps              server.py   the coordinator's
    session.py  the terms that both share       aborts.py   reasons to abandon a session
    sums.py     both as a library: frames in, frames out (docs/privacy/secure-library.md)

A step object's methods return the next step and use it up: a call in another order than the protocol's cannot be
written.  `step.frame` is the frame to send; a driver (`protocols.federated.secure_round` and `client_round`) decides
when a stage is over.

    client   SecAggClient.join(invite) -> .share(neighbourhood) -> .mask(delivery, integers) -> .consent(survivors)
             -> .reveal(consents) -> .finish(result, words)
    server   invite() -> Inviting -> Distributing -> Summing -> Consenting -> Unmasking -> Summed
             each: frame or frame_for(client), take(client, frame), waiting, close() -> the next

Clients mask with pairwise and own masks modulo 2^32, on a complete graph up to 64 clients and on a Harary graph above.
Any client may drop at any stage as long as t of each share group (more than two thirds) answer to the end.  Three
outcomes: the next step; `ProtocolError`, a frame that changes nothing; `RoundAbandoned` with a `Reason`, secrets
erased.  Sums of integers have no order.  The masked message carries the keys of the next round.

A session's number is life << 32 | round; life counts the coordinator's starts.  A client masks once in a round of the
run, rounds only go up, and its log has the line on disk before the vector leaves (`session_history`): two sums of one
round would differ by one client's update.

A simulation is one process with all participants, and skips the work that only separates them (`primitives`, bounded in
bytes): a pair's secret is a hash of public keys, both ends' work is done once, and signatures made in the process are
not checked.  The bytes are those of the real code.

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
