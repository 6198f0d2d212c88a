"""Certified networks as files for other programs, compared with the proof after they are written."""
