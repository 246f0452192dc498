"""Transfer of a model or a state to a peer that lacks it, in chunks that it requests."""
