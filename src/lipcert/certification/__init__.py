"""From margins to radii."""
