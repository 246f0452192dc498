"""State machines decide which message is sent to whom, and when; they own no socket, clock, thread or random source.

A protocol imports `algorithms`, `topology`, `secure`, `core`, `base`, numpy and the pure part of the standard library:
no zmq, torch, time, threading, asyncio, random, logging or os (tests/house/test_floors.py).  `gossip` and `transfer`
serve the other folders; each machine's docstring has its table of phases and events, which
tests/protocols/gossip/test_transitions.py compares with everything that machines do under the fuzzer.

A synchronous round of gossip: `gossip.sync_gossip` receives `Trained`, sends its model to its neighbours, stores
theirs in `gossip.mailbox` until `gossip.awaited_round` ends the round, and mixes by `gossip.learner`.

What a run may add round a machine: `members.member` stands round any gossip machine, `gossip.attacker` round an honest
one, `transfer.state_transfer` round the machine of a peer that restarts without a checkpoint.
"""
