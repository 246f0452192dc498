"""Research: sweeps, comparisons, costs, advice, published numbers, small devices.  Imports the core; the core never
imports it.
"""
