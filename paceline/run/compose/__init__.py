"""Checks of combinations: which run, which are refused, and why."""
