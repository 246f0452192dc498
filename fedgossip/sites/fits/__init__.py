"""Statistical models of all sites' tables, fitted by secure sums."""
