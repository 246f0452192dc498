"""Workers that hold one model and add their gradients by a collective."""
