"""The record of a run: its schema, its events, its file, and the secrets taken out of it."""
