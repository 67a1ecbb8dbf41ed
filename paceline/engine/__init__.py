"""The path of gradients from autograd to the comm: arenas, dispatchers, and the engine that connects them."""
