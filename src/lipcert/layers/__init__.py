"""Layers with a Lipschitz constant: residual, affine, orthogonal, general, and what goes between them."""
