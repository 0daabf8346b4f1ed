"""Small pictures of classes, images and prototypes, and pictures in full, as files for the page."""

import io

import numpy as np
from PIL import Image, ImageDraw

from dpp.browser.session import Session
from dpp.data.images import open_image
from dpp.figures.marked_pictures import part_style

SIDE = 144  # pixels, of a thumbnail: shown at half of that on most screens
SMALL = 65_000  # pixels: smaller pictures lose nothing
ROOM = 0.35  # around the parts of a prototype, of the side that they take
KEPT = 2000  # thumbnails


class Thumbnails:
    """Thumbnails of what a session can choose, each made once.

    Args:
        session: whose runs and images they show.
    """

    def __init__(self, session: Session):
        self.session = session
        self._made: dict[tuple, bytes] = {}

    def get(self, key: list) -> bytes:
        """The file of one: ["class", run, label], ["prototype", run, number], ["image", run, id] or
        ["near", run, number, split, place] of a nearest image; any other is empty."""
        kept = tuple(key)
        if kept not in self._made:
            if len(self._made) >= KEPT:
                self._made.clear()
            image = self._draw(*kept)
            self._made[kept] = encode(np.asarray(image)) if image else b""
        return self._made[kept]

    def _draw(self, kind: str, run: str, what, *which) -> Image.Image | None:
        session = self.session
        if run not in session.runs:
            return None
        subject = session.open(run)
        if kind == "prototype" and (source := session.source(run, what)):
            return draw_prototype(*source)
        if kind == "near" and (found := session.neighbours_of(run, what)):
            split, place = which
            seen = getattr(found, split)[place]
            return draw_prototype(
                seen, subject.network.picture(subject.network.records[seen.image])
            )
        if kind == "image" and what == session.image_key:
            return square(Image.fromarray(session.picture(run).pixels))
        if kind == "image" and what in subject.network.records:
            record = subject.network.records[what]
            return square(open_image(record.path, record.upright))
        if kind == "class":
            records = (one for one in subject.train.records if one.label == what)
            if record := next(records, None):
                return square(open_image(record.path, record.upright))
        return None


def square(image: Image.Image, side: int = SIDE) -> Image.Image:
    """The middle square of an image, at most so large."""
    width, height = image.size
    half = min(width, height) / 2
    box = width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half
    return shrink(image, box, side)


def shrink(image: Image.Image, box: tuple[float, float, float, float], side: int) -> Image.Image:
    """A box of an image as a square of this side; small pictures are enlarged without blur."""
    enlarged = box[2] - box[0] < side
    how = Image.Resampling.NEAREST if enlarged else Image.Resampling.BOX
    return image.convert("RGB").resize((side, side), how, box)


def draw_prototype(seen, picture, side: int = SIDE) -> Image.Image:
    """The square of a prototype's source image around its parts, with their outlines."""
    boxes = np.array([part.box for part in seen.parts])
    low, high = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
    width, height = picture.size
    reach = min((high - low).max() * (1 + 2 * ROOM), width, height)
    corner = np.clip((low + high - reach) / 2, 0, np.array([width, height]) - reach)
    image = shrink(Image.fromarray(picture.pixels), (*corner, *(corner + reach)), side)
    canvas = ImageDraw.Draw(image)
    for place, box in enumerate(boxes):
        ends = (box.reshape(2, 2) - corner) * side / reach
        colour, _, halo = part_style(place)
        canvas.rectangle([*ends[0], *(ends[1] - 1)], outline=halo, width=4)
        canvas.rectangle([*ends[0], *(ends[1] - 1)], outline=colour, width=3)
    return image


def encode(pixels: np.ndarray) -> bytes:
    """A picture at its own resolution as a file: PNG if it is small, else JPEG."""
    content = io.BytesIO()
    if pixels.shape[0] * pixels.shape[1] <= SMALL:
        Image.fromarray(pixels).save(content, "PNG", compress_level=1)
    else:
        Image.fromarray(pixels).save(content, "JPEG", quality=92, subsampling=0)
    return content.getvalue()
