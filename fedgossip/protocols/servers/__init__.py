"""Parameter servers: shards of a model, and the workers that pull and push them.

It imports `algorithms`, `allreduce` for pieces and clocks of chunks, `gossip` for the base of all machines, and `core`.

A clock (`server`, `server_worker`): `Train` with `gradient` -> `Trained` -> a ShardPush of each part to its server, and
a ShardPull for the next clock -> the server steps when all present workers have pushed, or on each push
(`shard_clocks`) -> Pulled -> with all shards `RoundDone`.  The answer to a pull for clock c + 1 acknowledges the push
of c, which is repeated until then.

A shard is the set of elements with the same owner and copies by consistent hashing.  With `replication` the owner sends
each step's gradient to the keepers of copies (`tenure_shards`), and answers when all have acknowledged it.  The manager
(`server_manager`) announces the servers by numbered tenures; messages of another tenure are dropped.  So an owner that
is cut off answers nothing, and the next owner has all answered state.

Rows of a table (`row_parts`): `ChooseRows` -> `RowsChosen`, a function of (seed, node, round) -> RowPull -> `Train` at
them -> RowPush.  Servers store the touched rows; an untouched one is a function of (seed, row, column).  The run
measures the task's *watched* rows: for drivers the model is their vector.  A step makes another table that shares all
untouched rows (`algorithms.descent.rows`).
"""
