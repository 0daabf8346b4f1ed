"""Hostile images, archives and names."""

import io
import os
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from lab import Lab, refused
from matplotlib import pyplot
from PIL import Image
from started import Broken
from tiny_data import write_folder

from dpp import data
from dpp.data.archives import unpack
from dpp.data.images import open_image
from dpp.figures import explanation_figures
from dpp.system.errors import UserError

FORMATS = ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]
NAMES = [b"$$", b"$x_{$", b"a\nb", b"\xff\xfe", b"x" * 250, b"<script>alert(1)</script>", b"-rf"]
NAMES += [
    "\u202eevil".encode(),
    "\u00e9\u0301".encode(),
    b"%s%n",
    b"\\frac{",
    b"a\tb",
    b" ",
    b"'\"",
]
OUTSIDE = Path(tempfile.gettempdir()) / "dpp_chaos_outside"
PLACES = ["../outside", str(OUTSIDE), "a/../../outside", "inside/file", "."]


def attack_images(lab: Lab) -> str:
    """A damaged image is refused in one line, or decoded."""
    path, buffer = lab.room() / "image.png", io.BytesIO()
    pixels = np.frombuffer(lab.chance.randbytes(3 * 20 * 30), np.uint8).reshape(20, 30, 3)
    Image.fromarray(pixels).save(buffer, lab.chance.choice(FORMATS))
    content = bytearray(buffer.getvalue())
    for _ in range(lab.chance.randrange(1, 12)):
        content[lab.chance.randrange(len(content))] = lab.chance.randrange(256)
    path.write_bytes(content[: lab.chance.choice([None, lab.chance.randrange(len(content))])])
    try:
        return f"decoded as {open_image(path, upright=True).mode}"
    except UserError as error:
        return refused(error)


def attack_archives(lab: Lab) -> str:
    """Nothing is unpacked outside the folder."""
    room = lab.room()
    path, folder = room / "archive.tar", room / "in" / "side"
    folder.mkdir(parents=True)
    with tarfile.open(path, "w") as archive:
        for _ in range(lab.chance.randrange(1, 6)):
            entry = tarfile.TarInfo(lab.chance.choice(PLACES))
            entry.type = lab.chance.choice(
                [
                    tarfile.REGTYPE,
                    tarfile.SYMTYPE,
                    tarfile.LNKTYPE,
                    tarfile.CHRTYPE,
                    tarfile.DIRTYPE,
                ]
            )
            entry.linkname = lab.chance.choice(["/etc/passwd", "../..", "inside/file"])
            entry.size = 3 if entry.type == tarfile.REGTYPE else 0
            archive.addfile(entry, io.BytesIO(b"abc"))
    if lab.chance.random() < 0.3:
        content = path.read_bytes()
        path.write_bytes(content[: lab.chance.randrange(len(content))])
    try:
        unpack(path, folder)
        outcome = "unpacked"
    except UserError as error:
        outcome = refused(error)
    outside = {entry.name for entry in room.rglob("*")} - {"archive.tar", "in", "side"}
    outside -= {entry.name for entry in folder.rglob("*")}
    links = [entry for entry in folder.rglob("*") if entry.is_symlink()]
    escaped = [link for link in links if not link.resolve().is_relative_to(folder.resolve())]
    if outside or escaped or OUTSIDE.exists():
        raise Broken(f"an archive wrote outside its folder: {outside or escaped}")
    return outcome


def attack_names(lab: Lab) -> str:
    """A name is refused in one line, or can be drawn."""
    root = write_folder(lab.room() / "mine")
    name = lab.chance.choice(NAMES)
    if lab.chance.random() < 0.5:
        name = lab.chance.randbytes(lab.chance.randrange(1, 30))
        name = name.replace(b"/", b"_").replace(b"\0", b"_")
    old = os.fsencode(root / "kind_1")
    try:
        os.rename(old, os.path.join(os.fsencode(root), name))
    except OSError:  # no such name can be given
        return "impossible"
    try:
        source = data.load(str(root))
    except UserError as error:
        return refused(error)
    figure = explanation_figures.confusion(
        np.eye(len(source.class_names), dtype=int), source.class_names
    )
    figure.savefig(io.BytesIO(), format="png")
    pyplot.close(figure)
    return "drawn"
