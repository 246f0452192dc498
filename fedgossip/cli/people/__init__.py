"""Commands by which people meet: invites, keys, relays."""
