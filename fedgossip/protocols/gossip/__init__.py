"""Gossip on a known graph: synchronous (sync_gossip), asynchronous (async_gossip), and the parts of both.

It imports `algorithms`, `core` and `base`; `push_sum`, `private_gossip` and `members` import it.

A synchronous round r at peer i (`sync_gossip`): `Trained` -> `trained` of the algorithm -> `Send` of a Model to each
neighbour; the own vectors are stored.  A Model of a later round waits in `mailbox`.  With the last awaited model:
`ordered_mix` -> `mixed` of the algorithm -> `RoundDone` -> `Train` for round r + 1.  A neighbour is at most one round
ahead, for it needs the model of round r, so the number of buffers is bounded.

Beginning and end (`lifecycle`): a peer stays joining until all partners are here or the start timer; then its rounds;
then closing, until its accounts are settled; then leaving, with repeated goodbyes, so that no socket closes on a model
that a neighbour still needs.  Every wait has a limit.

A silent neighbour: at the deadline (`partner_set`), or on PeerGone, its weight goes to the own model, and it is not
awaited until it sends a model of this round or the last.  A new connection repeats the last two models.  A missing
model is requested after four times the quickest round: earlier adds 15 % of bytes on full links, later makes a run that
loses 30 % of its messages three times as long.

An edge counts at both ends or at neither (`edge_ledger`); otherwise the mean moves, by per cents of the spread at one
per cent of lost messages.  Every model carries which round of the receiver was mixed last, and which had to be mixed
without it.  A peer that lacks j's round s and had sent its own asks until j answers: if j had mixed, the debt w (x_j -
x_i) is added late; if not, the round is void.  What j did never changes, so an answer may be lost, repeated or
overtaken.  Nothing extra is sent while nothing is lost.

An asynchronous exchange (`async_gossip`): i offers x_i to j; j computes h = (x_i - x_j) / 2, adds h to x_j and answers
h; i subtracts h.  The sum is kept to rounding, without locks, for any graph.

A method is an algorithm's object, held by a `learner`: one of push-sum's kind (`needs` columns, the last slot `WEIGHT`)
and an asynchronous one (one slot) are a file and a line too.  CHOCO-SGD sends changes (`replicas`); RelaySGD sends
another sum to each neighbour (`relay_gossip`).  A partner whose models should have been mixed and never were is
reported as `never_exchanged`, and decides the run's status (`plans.completeness`).

Attackers (`attacker`) are honest machines within a machine that holds their models back until those of all honest
neighbours are here.  Records, scores and the final model are of the honest peers.  A robust rule that is no sum takes
no late corrections.
"""
