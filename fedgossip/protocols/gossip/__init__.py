"""Gossip on a known graph: synchronous (sync_gossip), asynchronous (async_gossip), and the parts of both.

It imports `algorithms`, `core` and `base`; `push_sum`, `private_gossip` and `members` import it.

A synchronous round r at peer i (`sync_gossip`): `Trained` -> `trained` of the algorithm -> `Send` of a Model to each
neighbour; the peer's vectors are stored.  A Model of a later round waits in `mailbox`.  With the last awaited model:
`ordered_mix` -> `mixed` of the algorithm -> `RoundDone` -> `Train` for round r + 1.  A neighbour is at most one round
ahead, because it needs the model of round r; so the number of buffers is bounded.

Beginning and end (`lifecycle`): a peer stays joining until all partners are here or the start timer; then its rounds;
then closing, until its accounts are settled; then leaving, with repeated `Leaving` messages, so that no socket closes
while a neighbour still needs a model.  Every wait has a limit.

A silent neighbour: at the deadline (`partner_set`), or on PeerGone, its weight is added to the peer's, and it is not
awaited until it sends a model of this round or the last.  A new connection repeats the last two models.  A missing
model is requested after four times the quickest round: an earlier request adds 15 % of bytes on full links; a later one
makes a run with 30 % lost messages three times as long.

An edge counts at both ends or at neither (`edge_ledger`); otherwise the mean moves, by per cents of the spread at one
per cent of lost messages.  Every model contains the last round for which the receiver's model was mixed, and the round
mixed without it.  A peer that lacks j's model of round s, and sent its own, asks until j answers: if j mixed it, the
debt w (x_j - x_i) is added late; if not, the round is void.  The answer never changes, so it may be lost, repeated or
reordered.  Nothing extra is sent while nothing is lost.

An asynchronous exchange (`async_gossip`): i offers x_i to j; j computes h = (x_i - x_j) / 2, adds h to x_j and answers
h; i subtracts h.  The sum is kept to rounding, without locks, for any graph.

A method is an algorithm object in a `learner`.  Methods of push-sum's kind (`needs` columns, the last slot `WEIGHT`)
and asynchronous ones (one slot) also take one file and one line.  CHOCO-SGD sends changes (`replicas`); RelaySGD sends
a different sum to each neighbour (`relay_gossip`).  If a partner's models should have been mixed and never were, the
partner is reported as `never_exchanged`; this determines the run's status (`plans.completeness`).

Attackers (`attacker`) are honest machines in a wrapper that holds their models back until the models of all honest
neighbours have arrived.  Records, scores and the final model are of the honest peers.  A robust rule that is not a sum
accepts no late corrections.
"""
