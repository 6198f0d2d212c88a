"""Frozen networks: what runs, what is proved about it, and the certificates that follow."""
