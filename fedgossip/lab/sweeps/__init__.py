"""Many runs of one experiment: a grid of keys and seeds, each cell an ordinary run directory: `fedgossip sweep`."""
