"""Kaplan-Meier curves."""
