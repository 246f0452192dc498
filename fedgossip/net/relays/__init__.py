"""Addresses, reachability, and relays for peers that cannot be dialled.

It imports `net`, `net.streams`, and websockets.  An entry's address is a row of addresses, relays last.  With one
nothing happens here. With several the first is dialled at once, and a thread tries all by handshakes with the peer's
key; the links move to the one that answers (`reachability`).  A relay is dialled after a second without an
answer, those by TCP first.

ZeroMQ is not aware of a relay (`relay`, `relay_client`): the caller connects to a port of its own machine, the called
peer accepts from its own machine, and in between an agent's thread passes bytes on.  A key is proved to a relay by
X25519 with a fresh key of the relay's (`roster_file`).  A relay is reached by TCP, or by the web: a WebSocket
(`web_stream`) carries the same bytes then, through the network's proxy (`web_way`).

Addresses at which this peer can be dialled are looked up every second.  When they change, all links are made again and
the machine receives `Moved`, at once and for each link that returns, since what was sent in between was lost.
"""
