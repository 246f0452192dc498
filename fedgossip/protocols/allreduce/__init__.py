"""Workers that hold one model and add their gradients by a collective.

It imports `algorithms`, `state_transfer`, `gossip` for the base of all machines, and `core`.

A round: `Train` with `gradient` -> `Trained` -> the moves of the collective's table (`reduction`), in its order for any
order of arrival -> the mean -> the descent's step, the same bits at every worker -> `RoundDone`.  With `overlap`
stretches of the gradient (`Produced`) are summed while the rest is computed.  Chunks are sent again when lost
(`chunk_links`), and a worker is at most one round ahead (`round_sums`).

A missing worker: the others agree on a view of more than half of them and repeat the round, or fetch the state of a
worker that completed it (`worker_group`, `state_transfer`).

Local training in place of gradients (`parallel.outer`): the update replaces the gradient, and the descent is the outer
step (DiLoCo).  A worker trains from the model plus its unsent updates (`worker_state`); with `fragments` each fragment
is a separate vector (`coded_fragments`).  A ring costs each worker 2 (m - 1)/m d and has one model for all; a round of
gossip on the complete graph costs (m - 1) d, and its peers drift.

Codecs: a repeated round sends the same payload.  Linear codecs are summed by the table; other payloads are gathered
(`PayloadGather`) and decoded by all in the order of ranks; a payload is decoded before it is forwarded, so an invalid
one stops at the first honest worker.  PowerSGD is two reductions in one round (`reduction`).
"""
