"""Numbers and the platform: vectors, random streams, errors, limits, decoding, files, locks, signals; numpy only.

It imports nothing of fedgossip.  `vectors.ordered_mix` owns the order of summation, `seeds.stream` every random
number, `errors` the family of errors with their exit codes, `decoding` all bytes from outside, `outside_files` all
files from outside.
"""
