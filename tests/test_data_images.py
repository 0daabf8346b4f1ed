"""From files to pixels: every kind of image becomes RGB, every damaged one is named."""

import io
import re
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_data import save_image
from torchvision.transforms import v2

from dpp.data.image_records import Box, ImageRecord
from dpp.data.images import clip_box, decode, open_image, region_of
from dpp.system.errors import UserError

GREY = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20


def saved(path, pixels, mode=None, **options):
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path, **options)
    return path


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "RGBA", "CMYK"])
def test_image_of_another_mode_becomes_rgb(tmp_path, mode):
    ending = "tif" if mode == "CMYK" else "png"
    image = open_image(saved(tmp_path / f"image.{ending}", GREY, mode))
    assert image.mode == "RGB" and image.size == (4, 3)
    if mode in ("L", "LA", "RGBA"):
        assert np.array_equal(np.asarray(image), GREY[..., None].repeat(3, axis=2))


def test_image_of_16_bits_keeps_its_range(tmp_path):
    path = saved(tmp_path / "deep.png", GREY.astype(np.uint16) * 257)
    with Image.open(path) as image:
        assert image.mode.startswith("I;16")  # Pillow's own conversion would saturate it
    assert np.array_equal(np.asarray(open_image(path))[..., 1], GREY)


def test_image_of_three_16_bit_channels_keeps_its_range(tmp_path):
    colour = np.stack([GREY, GREY[::-1], 255 - GREY], axis=2)
    rows = (colour.astype(">u2") * 257).reshape(3, -1)
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rows)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 4, 3, 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    ]
    path = tmp_path / "deep.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )
    )
    assert np.array_equal(np.asarray(open_image(path)), colour)


def test_image_of_32_bit_integers_is_scaled_only_if_it_must_be(tmp_path):
    for factor in (1, 257):
        path = saved(tmp_path / f"{factor}.tif", GREY.astype(np.int32) * factor)
        assert np.array_equal(np.asarray(open_image(path))[..., 0], GREY)


def test_image_of_floats_is_refused(tmp_path):
    path = saved(tmp_path / "float.tif", GREY.astype(np.float32))
    with pytest.raises(UserError, match="float.tif cannot be decoded .*save it with 8 bits"):
        open_image(path)


def test_transparent_pixels_become_white(tmp_path):
    pixels = np.zeros((2, 2, 4), dtype=np.uint8)
    pixels[0, 0] = (10, 20, 30, 255)
    image = np.asarray(open_image(saved(tmp_path / "glass.png", pixels)))
    assert image[0, 0].tolist() == [10, 20, 30]
    assert (image[1] == 255).all()
    palette = Image.fromarray(GREY).convert("P")
    shown = np.asarray(open_image(saved(tmp_path / "palette.png", palette, transparency=0)))
    assert (shown[0, 0] == 255).all()


def test_exif_rotation_is_followed_only_where_asked(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    path = saved(tmp_path / "turned.png", GREY, exif=exif)
    assert open_image(path).size == (4, 3)
    assert open_image(path, upright=True).size == (3, 4)
    pixels, size = decode(ImageRecord("a", path, 0, upright=True), 8, crop_to_box=False)
    assert pixels.shape == (3, 8, 8) and size == (3, 4)


@pytest.mark.parametrize("ending", ["jpg", "png", "gif"])
def test_truncated_image_is_named(tmp_path, ending):
    path = save_image(tmp_path / f"cut.{ending}", size=(200, 150))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=f"{re.escape(str(path))} cannot be decoded"):
        open_image(path)


def test_file_that_is_no_image_is_named(tmp_path):
    path = tmp_path / "text.jpg"
    path.write_text("this is not a picture")
    with pytest.raises(UserError, match="text.jpg cannot be decoded"):
        open_image(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="text.jpg is empty"):
        open_image(path)
    path.unlink()
    with pytest.raises(UserError, match="text.jpg is listed but cannot be read"):
        open_image(path)


def test_jpeg_is_named_wherever_it_is_cut(tmp_path):
    whole = io.BytesIO()
    Image.fromarray(GREY).save(whole, "jpeg")
    path = tmp_path / "cut.jpg"
    for length in range(len(whole.getvalue())):
        path.write_bytes(whole.getvalue()[:length])
        with pytest.raises(UserError, match="cut.jpg"):
            open_image(path)


@pytest.mark.parametrize(
    ("box", "clipped"),
    [
        (Box(-3, -0.5, 10.2, 5), Box(0, 0, 11, 5)),
        (Box(2.9, 3.1, 90, 90), Box(2, 3, 40, 30)),
        (Box(39.5, 29.5, 39.6, 29.6), Box(39, 29, 40, 30)),
        (Box(40, 3, 50, 9), None),
        (Box(5, 5, 5, 9), None),
    ],
)
def test_box_is_clipped_to_whole_pixels_of_the_image(box, clipped):
    assert clip_box(box, 40, 30) == clipped


def test_crop_shows_the_box_and_resizes_as_torchvision_does(tmp_path):
    path = save_image(tmp_path / "image.png")
    record = ImageRecord("a", path, 0, Box(4.5, 6.0, 30.2, 99.0))
    image = open_image(path)
    for crop_to_box, region in ((False, (0, 0, 30, 40)), (True, (6, 4, 24, 27))):
        expected = v2.functional.resized_crop(image, *region, size=[16, 16])
        pixels, size = decode(record, 16, crop_to_box)
        assert np.array_equal(pixels, v2.functional.pil_to_tensor(expected))
        assert size == (40, 30) and pixels.dtype == np.uint8
    assert not torch.equal(*(torch.tensor(decode(record, 16, crop)[0]) for crop in (False, True)))


def test_crop_without_a_usable_box_is_refused():
    record = ImageRecord("a", "bird.jpg", 0)
    with pytest.raises(UserError, match="bird.jpg has no box, which crop_to_box needs"):
        region_of(record, 40, 30, crop_to_box=True)
    record = ImageRecord("a", "bird.jpg", 0, Box(50, 0, 60, 10))
    with pytest.raises(UserError, match=r"bird.jpg is 40 by 30 and its box .* is outside"):
        region_of(record, 40, 30, crop_to_box=True)
