"""Numbers and the platform: vectors, random streams, errors, limits, decoding, files, locks, signals; numpy only.

It imports nothing from fedgossip.  `vectors.ordered_mix` owns the order of summation, `seeds.stream` every random
number, `errors` the errors with exit codes, `decoding` all bytes and `outside_files` all files from outside.
"""
