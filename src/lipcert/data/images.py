"""Image files to uint8 arrays, by Pillow: the size is checked before pixels are decoded; gray or color only.

JPEG decoders differ by a gray value here and there, so images that come as JPEG have no checksum of ours.
"""

from __future__ import annotations

import io
import os
import re
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from lipcert.data.files import LARGEST_ARRAY, Files, check_size

GRAY = ("1", "L", "LA")
COLOR = ("RGB", "RGBA", "P", "CMYK", "YCbCr")
LARGEST_IMAGE = 1 << 26  # pixels
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF")  # for some others Pillow starts programs
UNREADABLE = (
    *(OSError, ValueError, TypeError, OverflowError, SyntaxError, EOFError, zlib.error, struct.error),
    *(Image.DecompressionBombError, Image.DecompressionBombWarning),
)
TURNS = dict(enumerate(map(Image.Transpose, (0, 3, 1, 5, 4, 6, 2)), start=2))  # by orientation, as EXIF counts them
AHEAD = 32  # images that are decoded at a time
FILTERS = Lock()  # the filters of warnings belong to the whole process


def decode(
    data: bytes,
    name: str,
    *,
    size: tuple[int, int] | None = None,
    gray: bool = False,
    shown: bool = False,
) -> NDArray[np.uint8]:  # (C, H, W), C = 1 or 3
    """Decode one image to 8 bits a channel; transparency is dropped, palettes are resolved.

    Args:
        data: the content of an image file.
        name: what errors call it.
        size: the height and width to resize to; the middle is cut out where the proportions differ.
        gray: make colors gray.
        shown: take what a viewer shows, turned as the file says; refuse an image that has more than that.
    """
    try:
        with _open(data) as image:
            if image.width * image.height > LARGEST_IMAGE:
                raise ValueError(f"{image.width}×{image.height} pixels, more than {LARGEST_IMAGE:,}")
            if image.mode not in GRAY + COLOR:
                raise ValueError(f"pixels of kind {image.mode}")
            gray = gray or image.mode in GRAY
            if size:
                image.draft(None, (2 * size[1], 2 * size[0]))  # a JPEG need not be decoded in full
            plain = (_as_shown(image) if shown else image).convert("L" if gray else "RGB")
            pixels = np.asarray(ImageOps.fit(plain, size[::-1], Image.Resampling.BICUBIC) if size else plain)
    except UNREADABLE as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{name}: expected an 8-bit image; got one that cannot be read ({reason}). Fetch or convert it again."
        ) from error
    return pixels[None] if gray else pixels.transpose(2, 0, 1)


def _as_shown(image: Any) -> Image.Image:
    """The image turned as it says; ValueError for what three opaque bytes a pixel would leave out."""
    whites = [tile[3][1] for tile in image.tile if tile[0].startswith("ppm") and image.mode == "RGB"]
    if re.search(r";16[BLN]", str(image.tile)) or max(whites, default=0) > 255:
        raise ValueError("16 bits a channel")
    if image.format != "MPO" and getattr(image, "is_animated", False):  # MPO: a photograph and its small copies
        raise ValueError("several images in one file")
    image.load()  # TIFF images turn themselves
    turn = TURNS.get(image.getexif().get(0x0112, 1))
    image = image if turn is None else image.transpose(turn)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if image.getextrema()[3] != (255, 255):
            raise ValueError("transparent pixels: put it on a background")
    return image


def _open(data: bytes) -> Image.Image:
    try:
        with FILTERS, warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning):
            return Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:  # its own message names a memory address
        raise ValueError("no known image format") from None


def decode_resized(
    files: Files, names: Sequence[str], size: tuple[int, int], *, gray: bool
) -> Iterator[NDArray[np.uint8]]:
    """Decode and resize the named images in their order, several at a time."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(names), AHEAD):
            part = names[start : start + AHEAD]
            places = (f"{files.path}: {name}" for name in part)
            yield from pool.map(partial(decode, size=size, gray=gray), map(files.read, part), places)


def decode_all(files: Files, names: Sequence[str]) -> NDArray[np.uint8]:
    """Decode images of one size to (N, C, H, W); gray ones among colored ones become colored."""
    result = np.empty((0, 0, 0, 0), np.uint8)
    for row, name in enumerate(names):
        data = files.read(name)
        pixels = decode(data, f"{files.path}: {name}")
        if row == 0:  # all images have one size, and no photograph grows by more than RATIO
            expected, packed = len(names) * pixels.size, len(names) * max(len(data), 64)
            check_size(files.path, expected, packed, largest=LARGEST_ARRAY)
            result = np.empty((len(names), *pixels.shape), np.uint8)
        if pixels.shape[1:] != result.shape[2:]:
            (height, width), found = result.shape[2:], "×".join(map(str, pixels.shape[1:]))
            raise ValueError(
                f"{files.path}: {name}: expected {height}×{width} pixels like the first image; got {found}. "
                "Resize all images to one size: lipcert data prepare does."
            )
        if len(pixels) > result.shape[1]:
            check_size(files.path, 3 * result.size, largest=LARGEST_ARRAY)
            result = np.repeat(result, 3, axis=1)
        result[row] = pixels
    return result
