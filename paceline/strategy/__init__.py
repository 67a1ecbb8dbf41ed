"""How gradients travel: one folder per axis, one file per member."""
