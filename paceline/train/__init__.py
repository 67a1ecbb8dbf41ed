"""Training: the step, evaluation, loss scaling."""
