"""The driver with sockets: one process per peer, ZeroMQ with CURVE between them.

It imports pyzmq, cryptography, `protocols`, `faults` and `core`.  `host` runs one machine: one thread owns every socket
and the machine, one worker thread trains and evaluates.  An event is handled with one reading of the clock, the
recorded one:

    now_ns = self.clock()
    for effect in self.machine.handle(event, now_ns):
        self._perform(effect, ...)

Chunks of a model on a link (`links`) are assembled to a message (`outbox`), which the host passes to its machine as
`Received`; it performs the returned `Send`s.

Wires: a gossip peer binds one ROUTER and has one DEALER per peer that it sends to, in one Context.  A coordinator or a
server binds one ROUTER and dials nobody (`hub`).  CURVE is always on, with an allow-list through a ZAP handler
(`sockets`).  The sender of a message is the authenticated key's (User-Id), never a field.  The first message is a
Hello, which detects another experiment and a second process with an identity in use.

A message is a msgpack header (typed, unknown fields refused, at most 64 KiB) and raw buffers, in chunks of 256 KiB:
CURVE transfers one 25 MB message at 95 to 130 MB/s, and in chunks at about 800.  Sizes are compared with the schema
before allocation.  Nothing is unpickled, and torch.load runs only with weights_only.

Limits: SNDHWM is 1 MiB a link (the rest waits in the outbox as references), LINGER is bounded, and IMMEDIATE is set:
without it sends to a dead peer queue in memory.  ZeroMQ does not limit a message of many frames, so a thread closes
connections beyond 1.5 MiB of unread bytes (`connections`); this needs Linux and TCP, and does not watch ipc://.  Beyond
half of the open files the oldest strangers are closed, beyond three quarters a filter keeps new ones out.

ZMTP heartbeats are off: libzmq 4.3.5 aborts the process when a peer disconnects while its messages are unread (issue
4364); TCP's probes and TCP_USER_TIMEOUT report a silent network within about 10 s.

Traps, each measured: a CURVE server without a running ZAP handler serves *any* key; domain='*' does not match a set
zap_domain; MAXMSGSIZE counts the cipher's bytes too, so a limit of exactly one chunk broke the connection of every full
chunk; create_certificates writes the secret key file with mode 0644; unbinding a ROUTER's address breaks the
connections that it had accepted; closing a socket with unread messages resets TCP and revokes data that the other end
has not read.
"""
