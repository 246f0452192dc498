"""One sealed TCP stream between two peers, for large vectors."""
