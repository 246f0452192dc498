"""Columns of tables: their types, and their encoding as features.

It imports `data` and `base`.  `table_schema` declares what all sites' tables share, reads a file by an encoding, and
lists what a site should check; `declarations` are the rules that bring cells into the common form.
"""
