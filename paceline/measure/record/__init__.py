"""The record of a run: its schema (record.py, parts in figures.py), events, file, and removal of secrets."""
