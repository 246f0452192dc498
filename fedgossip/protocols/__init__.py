"""State machines decide which message is sent to which participant, and when; they own no socket, clock, thread or
random source.

A protocol imports `algorithms`, `topology`, `secure`, `core`, `base`, numpy and the pure part of the standard library:
no zmq, torch, time, threading, asyncio, random, logging or os (tests/house/test_floors.py).  `gossip` and
`state_transfer` serve the others; each machine's docstring has its table of phases and events, which
tests/protocols/gossip/test_transitions.py compares with all transitions of the machines under the fuzzer.

A round of gossip: `gossip.sync_gossip` sends the trained model, stores the neighbours' models in `gossip.mailbox` until
`gossip.awaited_round` ends the round, and mixes by `gossip.learner`.  Wrappers around a machine: `members.member` (a
changing roster), `gossip.attacker`, `state_transfer` (a restart without a checkpoint).
"""
