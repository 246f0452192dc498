"""Columns of tables: their types, and their encoding as features."""
