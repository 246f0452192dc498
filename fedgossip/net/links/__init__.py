"""Links between peers that dial each other: connections, frames, queues.

It imports `net` and all its folders but `invites`.  `mesh` is one peer's sockets: a ROUTER that receives, and a
`partner_link` with a DEALER for each partner.  Its `outbox` sends one message at a time, chunk by chunk.  A caller with
an unknown key is a guest (`Guests`): it may send Hello and Join, at a low rate.
"""
