"""Links of a coordinator or a server and its clients: one address, many callers.

It imports `net` and all its folders but `invites`.  The coordinator binds one ROUTER and dials nobody (`server`); a
client has one DEALER and binds nothing (`client`).  The client's Hello is the first message, and the coordinator's is
the answer.

Sending (`router_sender`): one chunk in turn for each client, by streams four.  What a connection does not take is
tried again after 2 to 100 ms.

Receiving (`router_sender`): a message of more than one chunk waits for its turn, so the coordinator's memory does not
grow with its clients.  Two are received at once; a third and a fourth where those bring less than 100 MB/s of 0.1 s in
which the coordinator reads.

A new connection of a client is reported to the machine (`LinkUp.afresh`), since everything under way on the old one is
lost. Of two processes with one key the first stays; the same process, or a later life, replaces its connection.
"""
