"""Image files to uint8 arrays, by Pillow: the size is checked before pixels are decoded; grey or colour only.

JPEG decoders differ by a grey value here and there, so images that come as JPEG have no checksum of ours.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from lipcert.data.files import LARGEST_ARRAY, check_size

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
GRAY = ("1", "L", "LA")
COLOR = ("RGB", "RGBA", "P", "CMYK", "YCbCr")
LARGEST_IMAGE = 1 << 26  # pixels
FORMATS = (
    "PNG",
    "JPEG",
    "BMP",
    "WEBP",
    "PPM",
    "TIFF",
    "GIF",
)  # Pillow knows others, for some of which it starts programs
UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    zlib.error,
    struct.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


def decode(data: bytes, name: str) -> NDArray[np.uint8]:  # (C, H, W), C = 1 or 3
    """One image, 8 bits a channel; transparency is dropped, palettes are resolved."""
    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning), _open(data) as image:
            if image.width * image.height > LARGEST_IMAGE:
                raise ValueError(f"{image.width}×{image.height} pixels, more than {LARGEST_IMAGE:,}")
            if image.mode not in GRAY + COLOR:
                raise ValueError(f"pixels of kind {image.mode}")
            gray = image.mode in GRAY
            pixels = np.asarray(image.convert("L" if gray else "RGB"))
    except UNREADABLE as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{name}: expected an 8-bit image; got one that cannot be read ({reason}). Fetch or convert it again."
        ) from error
    return pixels[None] if gray else pixels.transpose(2, 0, 1)


def _open(data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:  # its own message names a memory address
        raise ValueError("no known image format") from None


def decode_all(names: Iterable[str], count: int, read: Callable[[str], bytes], where: str) -> NDArray[np.uint8]:
    """Images of one size, (N, C, H, W); grey ones among coloured ones become coloured."""
    result = np.empty((0, 0, 0, 0), np.uint8)
    for row, name in enumerate(names):
        data = read(name)
        pixels = decode(data, f"{where}: {name}")
        if row == 0:  # all images have one size, and no photograph grows by more than that
            check_size(where, count * pixels.size, count * max(len(data), 64), largest=LARGEST_ARRAY)
            result = np.empty((count, *pixels.shape), np.uint8)
        if pixels.shape[1:] != result.shape[2:]:
            height, width = result.shape[2:]
            raise ValueError(
                f"{where}: {name}: expected {height}×{width} pixels like the first image; got "
                f"{pixels.shape[1]}×{pixels.shape[2]}. Resize all images to one size first."
            )
        if len(pixels) > result.shape[1]:
            check_size(where, 3 * result.size, largest=LARGEST_ARRAY)
            result = np.repeat(result, 3, axis=1)
        result[row] = pixels
    return result
