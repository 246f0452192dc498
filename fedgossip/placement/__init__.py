"""Which server has which elements of a model: consistent hashing, as pure functions of who is there."""
