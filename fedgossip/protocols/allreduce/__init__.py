"""Workers that hold one model and add their gradients by a collective.

It imports `algorithms`, `transfer`, `gossip` for what all machines share, and `core`.

A round.  `Train` with `gradient` -> `Trained` -> `reduction` makes the moves of the collective's table as chunks
arrive, in the table's order and not in that of arrival -> the mean -> the descent's step, the same bits at every
worker -> `RoundDone`.  With `overlap` the Train has `stretches`, and `Produced` brings the elements that are final
before Trained brings all; each bucket is summed by itself, so the bits do not depend on it.

A chunk is stored until its receiver has it (`chunk_links`).  It is sent again where a later one was acknowledged
before it, or where the answer to a question does not name it.  The question is sent after a timeout that follows the
link (RFC 6298) and keeps its place behind the chunks, so a link slower than the first timeout carries none twice.  A
worker can be one round ahead, so there is room for two rounds (`round_sums`).

A missing worker (`worker_group`).  Where a worker is gone, or a round is not done in time, the workers report to all
how far they are, and the lowest proposes a view: which workers go on.  A view needs more than half of the last view,
and of the last one in which a round was done.  In one view a round has one result.  A worker that is behind requests
the state from a donor in pieces (`transfer.state_transfer`); otherwise the round is done again.  Too few workers wait
for the others until `start_timeout`.  A view is in the checkpoint before anything of it is sent, so the next life of a
worker is bound by it.  A worker that the others went on without asks to return (WorkerReturn): the lowest stops after
its round, and the view grows.

Local training in place of gradients: with `parallel.outer` the Train is local training, its update takes the
gradient's place, and the descent is the outer step (DiLoCo); codecs, views, fetched states and goodbyes are the same.
A worker trains from the model plus what it has not sent (`worker_state`: with `fragments` everything but this
round's fragment, otherwise nothing).  With `delay` it also adds what it has sent whose mean is under way, and moves
the model as the momentum alone would (`descent.base.stepped_by_momentum`).  A fragment's sums, step and codec are
those of a vector of its own (`coded_fragments`).  A ring costs each worker 2 (m - 1)/m d and has one model for all; a
round of the complete graph costs (m - 1) d, and its peers drift: so this is no gossip.

Codecs (`round_sums`, `coded_fragments`).  What a codec left out is the memory of the sender and takes its next value
when the round is behind the worker: a round that is done again has the same payload.  A linear codec makes a
`reduction` of fewer elements.  Other payloads are gathered (`PayloadGather`), by tables of moves that only send and
replace, and all workers decode them in the order of ranks.  A worker decodes a payload before it passes it on, so that
an invalid one stops at the first honest worker.

PowerSGD (`reduction`) is no codec of one vector: a round is two reductions by the same table, whose chunks
are numbered through, so that the machine sees one.  What was left out follows from the result of the round, which the
machine hands over; the order of every sum that all must make alike is fixed.
"""
