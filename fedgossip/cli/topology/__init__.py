"""Commands about graphs."""
