"""The tensors of a user's own training loop: its model as a vector, terms added to its gradients, its random states.

It imports `one_model` and torch; `drivers.loops` calls it.  After `step()` of the user's thread `parameters` reads the
model as one vector and writes the mixed one in place; `terms` adds what a federated algorithm adds to the gradients;
`global_state` stores and restores what belongs to the whole process.
"""
