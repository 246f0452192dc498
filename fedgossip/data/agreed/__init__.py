"""Statistics of all sites' tables, by secure sums: columns, means, deviations, categories, and what is suppressed.

It imports `data`, `secure` and `core`.  The run of `sites.plans.fits` is a federated run of two rounds.  Its
vector is sums of whole numbers, a float64 for each 32-bit word, which starts with zeros and to which each round adds
(`column_sums`, `statistics_task`).  First counts, sums and squares; then, on edges that follow from these, histograms
and categories.

Sessions have `ring_bits` 256 in place of 32: masks and sums carry from word to word (`secure.fixed_point`), so the sum
of the numbers is exact and nothing else is disclosed; the width is in the descriptor, and a client pins it
(`ExactSums`).  A number is the whole number nearest to x 2^64, so sums of squares lose nothing, and mean and deviation
are the nearest doubles.  Under a budget of records each site adds noise first (`column_sums`).

The schema follows from the common test file and [data.columns], never from a site's file; a site that does not fit
answers `Refusal(SCHEMA)` (`Abstaining`).  All sites make the same agreed.json of the last vector, with nothing from
which a small count follows (`suppression`); its hash is in the Hello of a training.
"""
