"""Numbers and the platform: vectors, random streams, errors, limits, decoding, files, locks, signals.  numpy only."""
