"""Plans of gossip runs."""
