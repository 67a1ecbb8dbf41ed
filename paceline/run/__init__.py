"""The description of a run, the named strategies, and which combinations are refused."""
