"""One sealed TCP stream between two peers, for large vectors.

It imports `net`, its folders `hub` and `links`, and cryptography.  Records are sealed with AES-256-GCM
(ChaCha20-Poly1305 without AES), with keys agreed inside CURVE (`sealing`); all messages but the first use the stream
once it is up (`sealed_way`).  CURVE costs 1.3 CPU s/GB at both ends; a sealed record is opened directly at its place in
the vector.

It uses non-blocking TCP directly, no second ZeroMQ socket: 49 bytes are read of a stranger, a partner's memory is one
record, and no thread copies.  The stream is optional: until the other end has proved the key, and if its port cannot be
reached, everything is sent by CURVE.  Each end changes over between two messages.  A broken stream is a broken link.
Through a relay a stream is a call to the port 10 000 above the links'.  Links by ipc:// have none;
FEDGOSSIP_LINKS=curve disables streams.  Measurements without keys copy records in place of sealing; an end with keys
accepts no such offer.

The header of a large model is reported (`ModelBegun`) before memory is allocated for its vectors.
"""
