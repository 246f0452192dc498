"""The participant and the link that carried most bytes of vectors: where a faster network would be felt first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedgossip.core.machine import NodeId
from fedgossip.core.records import PeerRow, Row

Link = tuple[NodeId, NodeId]


def busiest(rows: Sequence[Row], links: Mapping[Link, int]) -> dict[str, Any]:
    """Return the node with its bytes, and the link with its own; of equal ones the lowest id.

    A node has two directions that work at once, so the larger one counts.  `links`: bytes of vectors that were sent
    from the first to the second; empty where the driver has no links, and then the link is None.
    """
    sent: dict[NodeId, int] = {}
    received: dict[NodeId, int] = {}
    for row in rows:
        if type(row) is PeerRow:
            peer = row.peer
            sent[peer] = sent.get(peer, 0) + row.payload_sent
            received[peer] = received.get(peer, 0) + row.payload_received
    most = max((*sent.values(), *received.values()), default=0)
    node = min((node for way in (sent, received) for node, payload in way.items() if payload == most), default=None)
    largest = max(links.values(), default=None)
    link = min((link for link, payload in links.items() if payload == largest), default=None)
    return {"node": node if most else None, "bytes": most, "link": link and list(link), "link_bytes": largest}
