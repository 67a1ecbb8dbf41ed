"""Which combinations run, which are refused, and why."""
