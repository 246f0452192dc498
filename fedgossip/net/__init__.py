"""The driver with sockets: one process per peer, ZeroMQ with CURVE between them.

It imports pyzmq, cryptography, `protocols`, `faults` and `core`.  `host` runs one machine: one thread owns every
socket and the machine, one worker thread trains and evaluates.  An event is handled with one reading of the clock,
which is also the recorded one:

    now_ns = self.clock()
    for effect in self.machine.handle(event, now_ns):
        self._perform(effect, ...)

So a model arrives as chunks on a link (`links`), `outbox` and the wire code make a message of them, the host
gives `Received` to its machine, and performs the `Send`s that the machine returns.

Wires.  Each gossip peer binds one ROUTER and has one DEALER per peer that it sends to, in one Context for the
process's life. A coordinator or a server binds one ROUTER and dials nobody (`hub`).  CURVE is always on, also on
loopback: keys are those of `fedgossip keys new`, or fresh ones of each process of a local run, with an allow-list
through a ZAP handler (`sockets`).  The sender of a message is taken from the authenticated key (ZAP's User-Id), never
from the message.  The first message of a link is a Hello (`greeting`): peers of two experiments do not mix, and a
second process with an identity that is in use is detected by the number that each process draws.

A message is a small msgpack header (typed, unknown fields refused, at most 64 KiB) and raw buffers, sent as chunks of
256 KiB: CURVE moves one 25 MB message at 95 to 130 MB/s and the same bytes in chunks at about 800 MB/s.  Sizes are
compared with the schema before anything is allocated.  Nothing is unpickled, and torch.load runs with weights_only
alone.  Header and cost of a message are computed once for all partners that it is sent to (`wire.Packed`); a receiver
counts the arriving frames.

Limits.  SNDHWM is small (1 MiB a link; the rest waits in the outbox as references to vectors), LINGER is bounded, and
IMMEDIATE is set: without it sixty sends of 4 MiB to a dead peer are all accepted and queue in memory.  ZeroMQ limits
frames (MAXMSGSIZE) and counts whole messages (the high-water mark), but does not limit a message of many frames, of
which nothing is reported before its end.  So a thread (`connections`) compares what TCP reports that a connection has
brought with what the process has read of it, every 2 ms while data arrive.  It closes a connection beyond 1.5 MiB,
with what the system still holds of it; all callers that are no partners may bring 16 MiB together.  Both ends are
watched.  Against 300 MB in one message, repeated, memory grows by 0 to 9 MB.  This needs Linux and TCP: a link by
ipc:// is not watched.

A process raises its soft limit of open files.  Of callers that are no partners the oldest are closed beyond 512 or
half of the limit; beyond three quarters a filter on the listening socket keeps new ones out, and a file that must be
written is tried again for 10 s (`base.owner_files`).  TCP's probes and TCP_USER_TIMEOUT report a silent network within
about 10 s. ZMTP heartbeats are off: libzmq 4.3.5 aborts the process at the next heartbeat when a peer breaks off while
its messages are unread (issue 4364, reproduced).

Traps, each measured: a CURVE server without a running ZAP handler serves *any* key; domain='*' does not match a set
zap_domain; MAXMSGSIZE counts the cipher's bytes too, so a limit of exactly one chunk broke the connection of every
full chunk; create_certificates writes the secret key file with mode 0644; unbinding a ROUTER's address breaks the
connections that it had accepted; closing a socket with unread messages resets TCP and takes back what the other end
has not read.
"""
