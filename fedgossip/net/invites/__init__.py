"""Invites: the line of text, discovery in a local network, and the admission of new members."""
