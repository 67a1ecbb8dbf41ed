"""Measurements of the network: collectives at several sizes, fits of links, and pairs that are slower than the rest."""
