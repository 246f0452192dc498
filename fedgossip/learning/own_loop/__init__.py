"""The tensors of a user's own training loop: its model as a vector, terms added to its gradients, its random states."""
