"""The network as collectives see it: sweeps of sizes, fits, and pairs of ranks that are slower than the rest."""
