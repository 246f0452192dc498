"""Columns of tables: their types, and their encoding as features.

It imports `data` and `base`.  `table_schema` declares the common form of all sites' tables, reads a file by an
encoding, and lists cells for a site to check; `declarations` are the rules that convert cells to the common form.
"""
