"""Statements of a plan that sites read, and their signed approvals."""
