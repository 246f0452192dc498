"""Transfer of a model or a state to a peer that lacks it, in chunks that it requests.

It imports `gossip` and `core`.  A peer asks which model a source has, and requests it chunk by chunk
(`state_transfer`): ModelQuery -> ModelInfo -> ChunkRequest -> ModelChunk.

A peer that restarts without a checkpoint first fetches a neighbour's model (`Recovering`), except private peers, which
give theirs to nobody, and window doubling.  Workers of a collective request the descent's state in pieces.
"""
