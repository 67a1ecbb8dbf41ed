"""From autograd to the wire: arenas, the pure dispatcher, and what binds them."""
