"""One client trained by several processes together."""
