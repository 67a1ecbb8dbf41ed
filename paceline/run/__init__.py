"""The description of a run, the names of strategies, and which combinations are refused."""
