"""Drivers without sockets: virtual time for whole machines, and stacked arrays for the mathematics alone."""
