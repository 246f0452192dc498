"""A coordinator and its clients: invitations, updates, their aggregation, in the clear or by a secure sum.

It imports `algorithms`, `secure`, `gossip` for the base of all machines, and `core`.

A round: `algorithms.sampling` draws the cohort from (seed, round, present clients) -> Invite with the model -> training
-> Contribution, added on arrival -> with the first `wanted`, or at the deadline with a quorum: `server.step` ->
Checkpoint.  Below the quorum the round is abandoned and changes nothing.

Sums: terms are rounded to a fixed grid and summed as integers (`sums`: exact for elements of 2^-22 and more), so the
sum has the same bits in every order of arrival.  Robust rules store the cohort's vectors, ascending by id.

A client's memory (SCAFFOLD's c_i, a codec's error, a personal model) changes when an Invite names the last round that
counted the client: both ends agree despite losses.

A restarted coordinator draws the same cohort and sends the same model; clients send their stored answers (a secure
round is abandoned, because its keys are lost).  A reported round is on disk (`durable`).

A secure round (`secure_round`, `client_round`): Invite -> keys (once; the next ones are sent with the masked vector),
during training -> Shares -> Masked -> Survivors (signed) -> Reveal -> unmask -> `server.step`.  Each phase has one
deadline.  Below the threshold the round is abandoned; a client consents again only to the same survivors of the same
update (`secure.session_history`).  Losses and `local_test` scores are elements of the sum, unless a budget protects
records or clients.

A budget (`aggregation_round`): each spend is written to the participant's log before its release is sent.  A client
with an exhausted budget refuses (BUDGET); a coordinator opens no round that would exceed its clients' limit.  When too
few are left, the run ends as "exhausted".
"""
