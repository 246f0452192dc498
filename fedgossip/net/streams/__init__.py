"""One sealed TCP stream between two peers, for large vectors.

It imports `net`, its folders `hub` and `links`, and cryptography.  Beside each CURVE connection there is a TCP stream
whose records are sealed with AES-256-GCM (ChaCha20-Poly1305 where the processor has no AES), with keys agreed inside
CURVE (`sealing`).  All messages but the first use it once it is there (`sealed_way`): CURVE costs 1.3 CPU s/GB at both
ends, and a sealed record is opened into the place of its vector.

It is own non-blocking TCP and no second ZeroMQ socket: 49 bytes are read of a stranger, a partner's memory is one
record, no thread copies, and it is the 180 lines of `sealed_stream`.

Nothing waits for the stream or needs it.  Until the other end has proved that it has the key, and where its port
cannot be reached, everything goes by CURVE.  Each end changes over between two messages and counts what it has sent
before, so the order stays.  A stream that breaks is a link that breaks: both are made again.  Through a relay a stream
is a call of its own, to the port 10 000 above that of the links, since relays pass bytes on and know no more.  Links
by ipc:// have none; FEDGOSSIP_LINKS=curve leaves streams out.  Measurements without keys have streams too, whose
records are copied in place of sealed; an end with keys accepts no such offer.

Small records go in one system call with the chunk behind them.  The header of a large model is reported (`ModelBegun`)
before memory is allocated for its vectors: the receiver may store a model until it is complete.
"""
