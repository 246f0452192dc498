"""Links of a coordinator or a server and its clients: one address, many callers.

It imports `net` and all its folders but `invites`.  The coordinator binds one ROUTER and dials nobody (`server`); a
client has one DEALER and binds nothing (`client`).  The client's Hello is first; the coordinator answers with its own.

Sending takes turns, one chunk per client, or four by a stream (`router_sender`).  A message of more than one chunk
waits for its turn, two at once, so the coordinator's memory does not grow with its clients.

A client's new connection is reported (`LinkUp.afresh`): everything under way on the old one is lost.  Of two processes
with one key the first stays; the same process, or a later incarnation, replaces its connection.
"""
