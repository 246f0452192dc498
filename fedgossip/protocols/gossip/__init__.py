"""Gossip on a known graph: synchronous (sync_gossip), asynchronous (async_gossip), and the parts of both.

It imports `algorithms`, `core` and `base`; `push_sum`, `private` and `members` import it.

A synchronous round r at peer i.  `Trained` -> `trained` of the algorithm -> `Send` of a Model to each neighbour; the
own vectors are stored.  A received Model of a stranger or of an impossible round is refused; one of a later round
waits in `mailbox`.  With the last awaited model: `ordered_mix` -> `mixed` of the algorithm -> `RoundDone` -> `Train`
for round r + 1.  A neighbour is at most one round ahead, for it needs the model of round r; on a directed graph a peer
that does not receive from i is ahead by at most the links on the path from i to it.  So the number of buffers is
bounded.  A late model is a fact for the log and no error.

Beginning and end (`lifecycle`, for all gossip machines).  A peer stays joining until all partners are here, gone or
left, or until the start timer; then come its rounds; then closing, until the accounts that precede a goodbye are
settled; then leaving: it repeats Leaving until all partners are done and every account is settled.  So no peer closes
its sockets on a model that a neighbour still needs.  Every wait ends: at `drain_ns`; after 20 goodbyes
to a partner that does not answer; after `hurry_ns` where the user stops the run.

A silent neighbour.  At the deadline, or on PeerGone, its weight goes to the own model and the round is mixed without
it; it is not awaited again until a model of this round or the last arrives from it.  Links keep the order of messages,
so a peer that receives a neighbour's model of a later round does not wait for the earlier one.  A peer that learns,
before it has sent, that a neighbour has advanced without its model skips to that neighbour's round (`skipped`).
Without these two rules neighbours stay out of step after one delay.  On a new connection the last two models are sent
again: a link that breaks and returns costs no round.  The deadline is 8 times the median of the durations seen and
their spread (`partner_set`); a peer without partners keeps that pace, or it would run away from the others.

A missing model is requested after four times the quickest round.  Where links are full that is too early (15 % more
bytes on a complete graph of 16 at 300 kB/s, 4 % on regular:4); the lower quartile halves that, but makes a run that
loses 30 % of its messages three times as long.  Links leave out a request for vectors that are arriving, and queue no
vectors twice: a repeat costs a model's memory at both ends.

An edge counts at both ends or at neither (`edge_ledger`).  Otherwise the mean moves, by per cents of the spread at one
per cent of lost messages.  Every model carries which round of the receiver was mixed last, and which had to be mixed
without it.  A peer that lacks j's round s and had sent its own asks with each message until j answers; until then
neither mixes over this edge.  If j had mixed, the debt w (x_j - x_i) of round s is added late; if not, the round is
void.  What j did in round s never changes, so each answer may be lost, repeated or overtaken.  Nothing extra is sent
or stored while nothing is lost.  A debt that cannot be settled, since j died or slept to the end, is reported as
`unsettled`.  An arc without its reverse has no account (`one_sided`); push-sum is the method for such graphs.

An asynchronous exchange (`async_gossip`), while training goes on.  i offers x_i to j; j, unless it is
busy and declines, computes h = (x_i - x_j) / 2, adds h to x_j and answers h; i subtracts h from x_i.  The same h is
added and subtracted, so the sum is kept to rounding, without locks, without bipartite graphs, for any n.  j stores its
answer until i has it: a repeated offer gets the same answer and changes nothing.

Partners without exchange (`lifecycle`).  A machine reports at its end the partners whose models it should have mixed
and never did (`learned_alone`); its checkpoints have them too.  Where every round has a graph of its own, or a partner
is drawn, only partners that never sent anything count.  The status of the run follows (`plans.completeness`).

A method is an algorithm's object: machines hold a `learner`, which trains, mixes and corrects by it.  So a method of
push-sum's kind (`needs` columns, the last slot `WEIGHT`) and one of asynchronous gossip (one slot) are a file and a
line too; private gossip alone has D-PSGD's sum in integers.  A new view of the roster calls `rejoined` at all members
in the same round; repairs of earlier rounds correct the model alone.

CHOCO-SGD (`replicas`) is an algorithm whose slot is the copy of a peer that the others hold.  Its machine is
synchronous gossip that sends changes in place of whole vectors and completes them on arrival.  A message names the
version that it changes; a gap costs one whole model, and no bit of the result.

RelaySGD (`relay_gossip`) sends another sum to each neighbour, so it has a machine of its own, without accounts of
edges: a sum has each model of its side once, whatever is lost, and its count shows how many are missing.

Attackers (`attacker`) are honest machines within a machine that holds their models back until the models of all honest
neighbours have arrived; what goes out is a function of them (`algorithms.robust.attacks`), so stacked arrays have the
same bits.  Attackers are a role whose rounds are not the run's: records, scores and the final model are of the honest
peers.  A rule of `algorithms.robust.robust_mixing` that is no sum takes no repairs: its result with a late model cannot
be computed afterwards.
"""
