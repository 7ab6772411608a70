"""A run directory: its settings, logs and checkpoints, and whether it may be resumed."""
