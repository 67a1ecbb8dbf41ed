"""Training: the step, evaluation, checkpoints, loss scaling, and the entry points of a rank."""
