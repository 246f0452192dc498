"""Drivers without sockets: whole machines in virtual time, and the mathematics alone on stacked arrays."""
