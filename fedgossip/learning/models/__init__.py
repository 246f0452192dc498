"""Models by name, a user's own, and saved models that predict."""
