"""Links between peers that dial each other: connections, frames, queues.

It imports `net` and all its folders but `invites`.  `mesh` is one peer's sockets: a ROUTER that receives from all
partners, and for each of them a `partner_link` with a DEALER that sends.  A Send of the machine enters the partner's
`outbox`, of whose messages one is under way, chunk by chunk; at the other end `mesh` passes the chunks to the sender's
assembler. A caller without a known key is a guest (`Guests`): it may send Hello and Join, in its own name, and not
often.
"""
