"""Parameter servers: shards of a model, and the workers that pull and push them.

It imports `algorithms`, `allreduce` for pieces and clocks of chunks, `gossip` for what all machines share, and `core`.

A clock (`server`, `server_worker`).  `Train` with `gradient` -> `Trained` -> a ShardPush of each part to its server,
and a ShardPull for the next clock -> the server closes the clock when all present workers have pushed (`shard_clocks`:
one exact sum, one step), or steps on each push as it arrives -> Pulled -> with all shards `RoundDone`.  The answer to
a pull for clock c + 1 acknowledges the push of c: each worker has one push under way for a shard, and repeats it until
then.

Shards are the parts to which consistent hashing gives the same owner and the same copies: a shard moves as a whole.
With `replication` its owner sends the gradient of each step, of a table the rows and their keys, to the servers that
keep copies (`tenure_shards`); these make the same step, and the owner answers when all have it.

The manager (`server_manager`) announces by numbered tenures which servers are there, on disk first.  Messages of
another tenure are dropped, so an owner that is cut off answers nothing.  The next owner has everything that was
answered, and workers push to it again what was not: every push counts once.

Rows of a table (`row_parts`).  A model of millions of rows is at its servers alone, and they store the
rows that were touched.  `ChooseRows` -> `RowsChosen` by the task, a function of (seed, node, round) -> RowPull of
those rows -> `Train` at them -> RowPush of their gradient; the clocks are the same.  A list of keys is sent once and
then named by its digest.  The run is measured by the task's *watched* rows: to all drivers the model is their vector.
A step makes another table that shares all untouched rows with the old one (`algorithms.descent.rows`), so checkpoints
and readers keep theirs without a copy.  A row that was never touched is a function of (seed, row, column), made where
it is read.

Codecs (`model_parts`).  A shard is coded by itself, by one value at both ends.  A gradient is coded
when it is divided, so a repeated push is the same at whichever server; what was left out moves on with the clock.
"""
