"""Training of many simulated nodes at once, as rows of one array, with the bits of one model alone."""
