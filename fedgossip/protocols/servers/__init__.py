"""Parameter servers: shards of a model, and the workers that pull and push them.

It imports `algorithms`, `allreduce` for pieces and clocks of chunks, `gossip` for what all machines share, and `core`.

A clock (`server`, `server_worker`): `Train` with `gradient` -> `Trained` -> a ShardPush of each part to its server, and
a ShardPull for the next clock -> the server steps when all present workers have pushed, or on each push
(`shard_clocks`) -> Pulled -> with all shards `RoundDone`.  The answer to a pull for clock c + 1 acknowledges the push
of c, which is repeated until then.

Shards are the parts to which consistent hashing gives the same owner and copies.  With `replication` the owner sends
each step's gradient to the keepers of copies (`tenure_shards`), and answers when all have it.  The manager
(`server_manager`) announces the servers by numbered tenures; messages of another tenure are dropped, so an owner that
is cut off answers nothing, and the next owner has everything that was answered.

Rows of a table (`row_parts`): `ChooseRows` -> `RowsChosen`, a function of (seed, node, round) -> RowPull -> `Train` at
them -> RowPush.  Servers store the touched rows; an untouched one is a function of (seed, row, column).  The run is
measured by the task's *watched* rows: to all drivers the model is their vector.  A step makes another table that shares
all untouched rows (`algorithms.descent.rows`).
"""
