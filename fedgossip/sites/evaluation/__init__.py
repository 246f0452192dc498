"""The evaluation of one model on all sites' examples, by secure sums."""
