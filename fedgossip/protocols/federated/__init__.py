"""A coordinator and its clients: invitations, updates, their aggregation, in the clear or by a secure sum.

It imports `algorithms`, `secure`, `gossip` for what all machines share, and `core`.

A round (`coordinator`, `client`).  `algorithms.sampling` draws the cohort from (seed, round, present clients) ->
Invite with the model -> each client trains with its algorithm's terms -> Contribution, added on arrival -> with the
first `wanted` of them, or at the deadline with a quorum: `server.step` -> Checkpoint -> the next round.  Below the
quorum the round is abandoned and changes nothing.

Sums.  Terms are rounded to a fixed grid and summed as whole numbers (`sums`: exact for elements of 2^-22 and more), so
the sum has the same bits in every order of arrival, in memory that does not grow with the clients.  Robust rules store
the cohort's vectors, ascending by id.

Memory of clients.  An Invite names the round in which the receiver was counted last: only then does what a client
stores (SCAFFOLD's c_i) change.  A client's rule can stand round another (`algorithms.federated.coded`): what a codec
left out is a part of the client's memory, which the coordinator's `counted` moves on; the coordinator decodes a
contribution on arrival and adds it as any other.  In a secure sum the elements of `random-k` take the place of the
update, and their mean is spread out again.  `train.personal` keeps layers at their node (FedBN).
What the task itself stores of a client (a model of its own) is kept from the start of its last round too (`core.task`,
`begin_training`): an invitation to that round again, after a stop, trains from there.

Restart.  A coordinator that restarts draws the same cohort and sends the same model; clients answer with what they
have trained already (a plain sum; a secure round is abandoned).  Its checkpoint is on disk (`durable`) before a round
is reported, so a reported round survives any crash; the open round is abandoned, for its keys are lost.  Clients that
were never counted though they were to take part are reported as `never_counted`.

`aggregation_round` declares `Exchange`, in which a secure sum takes the place of the plain one.  `buffered` is FedBuff:
no cohorts, a server step after every K answers.  `client_round` declares the metrics that a client sends, from which
the plan's text is made.

A secure round (`secure_round`, `client_round`).  Invite -> keys (once; the next ones travel with the masked vector)
and training -> Shares -> Masked -> Survivors (signed) -> Reveal -> unmask -> `server.step`.  Each phase has one
deadline. Below the threshold the round is abandoned, its keys are discarded, and the next takes its place.  Where that
one has the same update, the client consents to the same survivors as before, or refuses (`secure.session_history`).
A client masks while it trains, since its keys went ahead with the round before.  A sum that clients within the agreed
bounds cannot make is refused after unmasking (`BOUND`).  Clients receive the hash of the sum; the model arrives with
the next invitation.
Losses and `local_test` scores are elements of the sum too, except where a budget hides records or clients.

A budget (`aggregation_round`).  A spend is a line of the participant's log before its release is sent.  Records are
each client's own: it refuses (BUDGET) and stays out.  Clients are the coordinator's: it opens no round that would cross
the limit.  When too few are left the run ends "exhausted".
"""
