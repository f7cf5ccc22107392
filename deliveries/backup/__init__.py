"""Backups: every row of the database in one file, which either database takes."""
