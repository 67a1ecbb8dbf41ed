"""Networks to train, sources of their samples, and real or replayed compute."""
