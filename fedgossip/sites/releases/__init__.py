"""A model with all that a board needs to answer for it, as one signed file: made of a run, and checked anywhere."""
