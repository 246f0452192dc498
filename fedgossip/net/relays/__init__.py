"""Addresses, reachability, and relays for peers that cannot be dialled.

It imports `net`, `net.streams`, and websockets.  An entry may have several addresses, relays last; a thread tries all
by handshakes, and the links move to the one that answers (`reachability`).

ZeroMQ is not aware of a relay (`relay`, `relay_client`): both ends use ports of their own machines, and an agent's
thread passes bytes on.  A key is proved to a relay by X25519 (`roster_file`).  A relay is reached by TCP, or by a
WebSocket (`web_stream`) through the network's proxy (`web_way`).

This peer's addresses are looked up every second.  When they change, all links are made again and the machine receives
`Moved`, at once and for each returning link.
"""
