"""Statistics of all sites' tables, by secure sums: columns, means, deviations, categories, and what of them is
suppressed.
"""
