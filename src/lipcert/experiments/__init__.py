"""Experiments: many runs from one plan, at equal budget, that can be killed and continued."""
