"""Graphs by name, by formula and from files."""
