"""Measured traffic and times of links."""
