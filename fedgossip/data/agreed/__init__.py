"""Statistics of all sites' tables, by secure sums: columns, means, deviations, categories, and suppressed counts.

It imports `data`, `secure` and `core`.  The run of `sites.plans.statistics` is a federated run of two rounds
(`column_sums`): counts, sums and squares; then histograms, on edges computed from the first round, and categories.

Sessions have `ring_bits` 256: masks and sums carry from word to word (`secure.fixed_point`), so the sum is exact and
nothing else is disclosed; a client pins the width (`ExactSums`).  A number is the whole number nearest to x 2^64: mean
and deviation are the nearest doubles.

The schema follows from the common test file and [data.columns], never from a site's file; a site with another schema
replies `Refusal(SCHEMA)` (`Abstaining`).  All sites write the same agreed.json, which discloses no small count
(`suppression`); its hash is in a training's Hello.
"""
