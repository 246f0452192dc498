"""The tensors of a user's training loop: its model as a vector, terms added to its gradients, its random states.

It imports `one_model` and torch; `drivers.loops` calls it.  `parameters` reads and writes the model as one vector,
`terms` adds to the gradients, `global_state` swaps process-wide state.
"""
