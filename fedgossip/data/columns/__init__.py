"""Columns of tables: their types, and their encoding as features.

It imports `data` and `base`.  `table_schema` declares what all sites' tables have in common, `declarations` turns named
columns into features, the same at each site, and `table_schema` reads a file by an encoding: a category of three
words becomes three features, a number one on the common scale.  `declarations` are the rules that bring a site's cells
into the common form first, `table_schema` what a site should look at in its own table.
"""
