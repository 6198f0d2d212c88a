"""Data sets: a name to uint8 images, labels and checksums."""
