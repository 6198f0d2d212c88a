"""Certifiers that are not "margin divided by a constant", and ``certify``, which chooses one by name."""
