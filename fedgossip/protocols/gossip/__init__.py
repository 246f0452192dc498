"""Gossip on a known graph, synchronous (sync_gossip) and asynchronous (async_gossip), and what both consist of."""
