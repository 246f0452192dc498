"""Transfer of a model or a state to a peer that lacks it, in chunks that it requests.

It imports `gossip` and `core`.  A peer asks which model a source has, and requests it chunk by chunk
(`state_transfer`): ModelQuery -> ModelInfo -> ChunkRequest -> ModelChunk.  After a broken link it goes on, perhaps
with another source.

Recovery (`state_transfer`).  A peer that restarts without a checkpoint asks its neighbours for their model before it
takes part: an untrained model that is mixed into theirs would set them back.  Where all are at the start, or none
offers a model within the `deadline`, it begins with the first model.  So do private peers, which give their models to
nobody, and window doubling.  Workers of a collective request the state of the descent in pieces (`state_transfer`).
"""
