"""From a file to 8-bit RGB pixels, whatever the file holds."""

import math
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from dpp.data.image_records import Box, ImageRecord, check_file
from dpp.system.errors import UserError

DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
ORIENTATION = 0x0112  # the EXIF tag
SIDEWAYS = (5, 6, 7, 8)  # its values that exchange width and height


def open_image(path: Path, upright: bool = False) -> Image.Image:
    """Decodes a file completely.

    Grayscale, palette, CMYK and 16-bit images become 8-bit RGB; transparency is put on white.

    Args:
        path: the file.
        upright: turn the image as its EXIF tag says.

    Returns:
        An RGB image.
    """
    check_file(path)
    try:
        with Image.open(path) as image:
            image.load()
            return to_rgb(ImageOps.exif_transpose(image) if upright else image)
    except DAMAGE as error:
        unknown = isinstance(error, UnidentifiedImageError)
        why = "it is of no known image format, whatever its ending" if unknown else error
        raise UserError(
            f"image {path} cannot be decoded ({why}): copy or extract it again, or remove it"
        ) from error


def to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode == "F":
        raise ValueError("its pixels are 32-bit floats: save it with 8 bits")
    if image.mode.startswith("I"):  # Pillow's own conversion would cut values off at 255
        values = np.asarray(image).astype(np.float64)
        scale = 257 if image.mode != "I" or values.max() > 255 else 1
        image = Image.fromarray((values / scale).round().clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image)
    return image.convert("RGB")


def clip_box(box: Box, width: int, height: int) -> Box | None:
    """The whole pixels that a box touches inside its image; None if there are none."""
    left, top = max(math.floor(box.left), 0), max(math.floor(box.top), 0)
    right, bottom = min(math.ceil(box.right), width), min(math.ceil(box.bottom), height)
    return Box(left, top, right, bottom) if left < right and top < bottom else None


def region_of(record: ImageRecord, width: int, height: int, crop_to_box: bool) -> Box:
    """The part of a record's image that a network sees, in whole pixels."""
    if not crop_to_box:
        return Box(0, 0, width, height)
    if record.box is None:
        raise UserError(
            f"image {record.path} has no box, which crop_to_box needs: install the data set's "
            "annotations, or use full images"
        )
    region = clip_box(record.box, width, height)
    if region is None:
        raise UserError(
            f"image {record.path} is {width} by {height} and its box {tuple(record.box)} is "
            f"outside: correct the box or remove the image"
        )
    return region


def decode(record: ImageRecord, size: int, crop_to_box: bool) -> tuple[np.ndarray, tuple[int, int]]:
    """A record's pixels, cropped if asked, resized to a square; the aspect ratio is not kept.

    Returns:
        The pixels, (3, size, size) uint8, and the width and height of the original image.
    """
    image = open_image(record.path, record.upright)
    width, height = image.size
    return squeeze(image, region_of(record, width, height, crop_to_box), size), (width, height)


def squeeze(image: Image.Image, region: Box, size: int) -> np.ndarray:
    """A region of an image resized to a square, (3, size, size) uint8."""
    square = image.crop(tuple(region)).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(square).transpose(2, 0, 1)


def image_size(record: ImageRecord) -> tuple[int, int]:
    """Width and height of a record's image, without decoding its pixels."""
    check_file(record.path)
    try:
        with Image.open(record.path) as image:
            turned = record.upright and image.getexif().get(ORIENTATION, 1) in SIDEWAYS
            return image.size[::-1] if turned else image.size
    except DAMAGE as error:
        raise UserError(
            f"image {record.path} cannot be decoded ({error}): copy or extract it again"
        ) from error
