"""Decentralized and federated learning: peers that learn together by gossip."""

from __future__ import annotations

__version__ = "0.1.0"
