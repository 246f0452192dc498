"""State machines: which message is sent to whom, and when.  No socket, clock, thread or random source.

A synchronous round of gossip: `gossip.sync_gossip` receives `Trained`, sends its model to its neighbours, stores
theirs in `gossip.mailbox` until `gossip.awaited_round` ends the round, and mixes by `gossip.learner`.
"""
