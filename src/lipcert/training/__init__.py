"""Training: a config, a loop that can be interrupted anywhere, and checkpoints that are never garbage."""
