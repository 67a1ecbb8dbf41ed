"""Checks that decide which combinations of members run and which are refused, with the reasons."""
