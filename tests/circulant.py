"""Circular convolutions as explicit matrices."""

import itertools

import numpy as np


def circulant(kernel, image, dilation=(1, 1)):
    """The circular correlation with centre ⌊k/2⌋ as a matrix, entry by entry from its definition."""
    n, m, height, width = kernel.shape
    matrix = np.zeros((n, *image, m, *image))
    for y, x, a, b in itertools.product(*map(range, (*image, height, width))):
        row = (y + dilation[0] * (a - height // 2)) % image[0]
        column = (x + dilation[1] * (b - width // 2)) % image[1]
        matrix[:, y, x, :, row, column] += kernel[:, :, a, b]
    return matrix.reshape(n * image[0] * image[1], -1)
