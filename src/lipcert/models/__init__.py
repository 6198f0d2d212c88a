"""Architectures: a spec without torch, the presets, and the network built from them."""
