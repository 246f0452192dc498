"""A training loop of the user's own takes part in a run: `fedgossip.join`, `fedgossip launch`."""
