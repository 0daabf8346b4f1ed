"""The drawing engine of PoseBirds and PoseDogs: frames, shapes, a canvas, light and PNG files.

The same seed gives the same bytes on any machine, and the same scene at any size. Randomness is
Python's own generator, angles go through `math`, coordinates are rounded to whole pixels of a
canvas `SUPERSAMPLE` times finer than the image before anything is drawn, pixels are only ever
handled as integers, and a PNG is stored without compression, because compressors differ in what
they write.
"""

import math
import random
import struct
import zlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SUPERSAMPLE = 4
CURVE_STEPS = 5  # points that a smooth curve gets for each of its control points
CIRCLE = [(math.cos(math.tau * i / 24), math.sin(math.tau * i / 24)) for i in range(24)]

Point = tuple[float, float]
Colour = tuple[int, int, int]


def outline(text: str) -> tuple[Point, ...]:
    """Points from `x,y x,y …`, so that a shape is one line of a specification."""
    return tuple(tuple(float(value) for value in pair.split(",")) for pair in text.split())


class Frame(NamedTuple):
    """A joint: where its origin lies in the image and where its two axes point.

    Animals live in frames whose x axis points forward and whose y axis points up; the image's unit
    is its own side, and its y axis points down.
    """

    x: float
    y: float
    forward: Point
    up: Point

    @classmethod
    def camera(cls, x: float, y: float, scale: float, facing: int) -> "Frame":
        """The outermost frame: `facing` is 1 for an animal that looks right, −1 for left."""
        return cls(x, y, (scale * facing, 0.0), (0.0, -scale))

    def place(self, point: Point) -> Point:
        """Where a point of this frame lies in the image."""
        px, py = point
        return (
            self.x + px * self.forward[0] + py * self.up[0],
            self.y + px * self.forward[1] + py * self.up[1],
        )

    def joint(
        self, at: Point, degrees: float = 0.0, scale: float = 1.0, stretch: float = 1.0
    ) -> "Frame":
        """A frame hinged at a point of this one, turned counter-clockwise for one looking right.

        Args:
            stretch: factor along the new frame's x axis; −1 mirrors it.
        """
        cosine = math.cos(math.radians(degrees)) * scale
        sine = math.sin(math.radians(degrees)) * scale
        (fx, fy), (ux, uy) = self.forward, self.up
        forward = (stretch * (cosine * fx + sine * ux), stretch * (cosine * fy + sine * uy))
        return Frame(*self.place(at), forward, (cosine * ux - sine * fx, cosine * uy - sine * fy))

    def at(self, place: Point) -> "Frame":
        """This frame, moved to a place of the image."""
        return self._replace(x=place[0], y=place[1])

    @property
    def unit(self) -> float:
        """The length in the image of one unit of this frame, measured along its y axis."""
        return math.hypot(*self.up)


def _curve_weights() -> list[tuple[float, float, float, float]]:
    weights = []
    for step in range(CURVE_STEPS):
        t = step / CURVE_STEPS
        weights.append(
            (
                ((2 - t) * t - 1) * t / 2,
                ((3 * t - 5) * t * t + 2) / 2,
                ((4 - 3 * t) * t + 1) * t / 2,
                (t - 1) * t * t / 2,
            )
        )
    return weights


CURVE_WEIGHTS = _curve_weights()


def smooth(points: Sequence[Point]) -> list[Point]:
    """A closed Catmull-Rom curve through the points."""
    curve = []
    for i, (bx, by) in enumerate(points):
        ax, ay = points[i - 1]
        cx, cy = points[(i + 1) % len(points)]
        dx, dy = points[(i + 2) % len(points)]
        for a, b, c, d in CURVE_WEIGHTS:
            curve.append((a * ax + b * bx + c * cx + d * dx, a * ay + b * by + c * cy + d * dy))
    return curve


def mix(first: Colour, second: Colour, percent: int) -> Colour:
    """The first colour with `percent` of the second in it."""
    return tuple(
        (a * (100 - percent) + b * percent) // 100 for a, b in zip(first, second, strict=True)
    )


def darker(colour: Colour, percent: int) -> Colour:
    return mix(colour, (12, 10, 18), percent)


def lighter(colour: Colour, percent: int) -> Colour:
    return mix(colour, (255, 252, 240), percent)


def jitter(colour: Colour, rng: random.Random, amount: int) -> Colour:
    """The colour of one individual: brightness and each channel drawn around the kind's colour."""
    brightness = rng.randint(-amount, amount)
    return tuple(
        min(255, max(0, value + brightness + rng.randint(-amount, amount) // 2)) for value in colour
    )


def swing(rng: random.Random) -> float:
    """A number in [−1, 1], more often near 0: the mean of two uniform ones."""
    return rng.random() + rng.random() - 1


class Canvas:
    """A picture, its relief (the height of what is drawn, for the shading) and what lies in front.

    Args:
        size: side of the finished image in pixels.
        backdrop: what to draw on, `size` pixels wide.
    """

    def __init__(self, size: int, backdrop: Image.Image):
        self.size = size
        self.side = size * SUPERSAMPLE
        self.picture = backdrop.resize((self.side, self.side), Image.Resampling.NEAREST)
        self.relief = Image.new("L", (self.side, self.side), 0)
        self.cover = Image.new("L", (self.side, self.side), 0)  # 255 where an occluder lies
        self.box: list[int] | None = None  # what has been drawn since `measure`: x0, y0, x1, y1
        self._parts: dict[str, tuple[Point, int]] = {}
        self._draw = ImageDraw.Draw(self.picture)
        self._draw_relief = ImageDraw.Draw(self.relief)
        self._draw_cover = ImageDraw.Draw(self.cover)
        self._covering = False

    def measure(self) -> None:
        """Starts to keep the box around everything that is drawn with a height."""
        self.box = [self.side, self.side, 0, 0]

    def take_box(self) -> tuple[float, float, float, float]:
        """Ends `measure`: left, top, right and bottom in pixels, clipped to the image."""
        left, top, right, bottom = (min(self.side, max(0, edge)) for edge in self.box)
        self.box = None
        return tuple(edge / SUPERSAMPLE for edge in (left, top, right, bottom))

    def cover_from_here(self) -> None:
        """What is drawn from now on hides the animal."""
        self._covering = True

    def layer(self, name: str):
        """A context: what is drawn in it is a layer, of which `dpp.drawn.layers` takes notice."""
        return nullcontext()

    def polygon(self, points: Iterable[Point], colour: Colour, height: int | None = None) -> None:
        """Fills a polygon; its points are in units of the image's side.

        Args:
            height: how far it stands out, 0 to 255; None for a marking painted on what is there.
        """
        side = self.side
        corners = [(round(x * side), round(y * side)) for x, y in points]
        self._draw.polygon(corners, colour)
        if height is not None:
            self._draw_relief.polygon(corners, height)
            if self.box is not None:
                across, down = zip(*corners, strict=True)
                left, top, right, bottom = self.box
                self.box = [
                    min(left, *across),
                    min(top, *down),
                    max(right, *across),
                    max(bottom, *down),
                ]
        if self._covering:
            self._draw_cover.polygon(corners, 255)

    def shape(self, frame: Frame, points: Iterable[Point], colour: Colour, height=None) -> None:
        """A polygon with corners."""
        self.polygon([frame.place(point) for point in points], colour, height)

    def blob(self, frame: Frame, points: Iterable[Point], colour: Colour, height=None) -> None:
        """A smooth closed shape through the points."""
        self.polygon(smooth([frame.place(point) for point in points]), colour, height)

    def disc(self, frame: Frame, centre: Point, radius: float, colour: Colour, height=None) -> None:
        x, y = frame.place(centre)
        radius *= frame.unit
        self.polygon([(x + radius * c, y + radius * s) for c, s in CIRCLE], colour, height)

    def limb(
        self,
        frame: Frame,
        ends: Sequence[Point],
        radii: Sequence[float],
        colour: Colour,
        height=None,
    ) -> None:
        """A chain of discs with straight sides between neighbours: legs, necks, twigs, tails."""
        places = [frame.place(end) for end in ends]
        widths = [radius * frame.unit for radius in radii]
        for i in range(len(places) - 1):
            self.polygon(
                _capsule(places[i], widths[i], places[i + 1], widths[i + 1]), colour, height
            )

    def note_part(self, name: str, place: Point) -> None:
        """Remembers where a part that has just been drawn lies, in units of the image's side."""
        self._parts[name] = (place, self._height(place))

    def visible_parts(self) -> dict[str, Point]:
        """The parts inside the image that nothing has been drawn over, in pixels of the image.

        A part counts as drawn over where the relief has changed since it was noted.
        """
        return {
            name: (place[0] * self.size, place[1] * self.size)
            for name, (place, height) in self._parts.items()
            if height >= 0 and self._height(place) == height and not self._is_covered(place)
        }

    def _pixel(self, place: Point) -> tuple[int, int]:
        return math.floor(place[0] * self.side), math.floor(place[1] * self.side)

    def _height(self, place: Point) -> int:
        """The relief at a place; −1 outside the image."""
        x, y = self._pixel(place)
        inside = 0 <= x < self.side and 0 <= y < self.side
        return self.relief.getpixel((x, y)) if inside else -1

    def _is_covered(self, place: Point) -> bool:
        return self.cover.getpixel(self._pixel(place)) > 0


def _capsule(a: Point, a_radius: float, b: Point, b_radius: float) -> list[Point]:
    """The outline of two discs and the band between them."""
    (ax, ay), (bx, by) = a, b
    distance = math.hypot(bx - ax, by - ay)
    if distance <= abs(a_radius - b_radius) + 1e-9:
        (x, y), radius = (a, a_radius) if a_radius > b_radius else (b, b_radius)
        return [(x + radius * c, y + radius * s) for c, s in CIRCLE]
    heading = math.atan2(by - ay, bx - ax)
    opening = math.acos((a_radius - b_radius) / distance)  # where the common tangents touch
    outline = []
    for (x, y), radius, start, stop in (
        (a, a_radius, heading + opening, heading + math.tau - opening),
        (b, b_radius, heading - opening, heading + opening),
    ):
        for i in range(9):
            angle = start + (stop - start) * i / 8
            outline.append((x + radius * math.cos(angle), y + radius * math.sin(angle)))
    return outline


def finish(canvas: Canvas, rng: random.Random) -> np.ndarray:
    """Shades the relief, lights the scene and adds grain; all of it in whole numbers.

    Returns:
        (size, size, 3), uint8.
    """
    size = canvas.size
    pixels = np.asarray(canvas.picture.reduce(SUPERSAMPLE)).astype(np.int32)
    heights = canvas.relief.reduce(SUPERSAMPLE)
    solid = np.minimum(np.asarray(heights).astype(np.int32) * 6, 256)  # 256 where something stands
    relief = heights.filter(ImageFilter.BoxBlur(max(1, size // 40)))
    relief = np.pad(np.asarray(relief).astype(np.int32), size // 32 + 1, mode="edge")

    # The sun is above, to the left or to the right: slopes that face it are bright.
    reach = size // 32 + 1
    sun = round(rng.uniform(-reach, reach))
    towards = relief[:size, reach - sun : reach - sun + size]
    away = relief[2 * reach :, reach + sun : reach + sun + size]
    slope = np.clip((away - towards) * rng.randint(70, 110) // 100, -95, 70)
    shade = 256 + (slope * solid >> 8)

    # Light falls off along one direction; clouds of shadow lie over all.
    steps = np.arange(size, dtype=np.int32) * 256 // size - 128
    across, down = rng.randint(-70, 70), rng.randint(-70, 40)
    light = 256 + (across * steps[None, :] + down * steps[:, None]) // 128
    light = light * (256 - _shadows(size, rng)) >> 8
    exposure = rng.randint(215, 285)
    tint = [exposure + rng.randint(-16, 16) for _ in range(3)]
    pixels = pixels * (shade * light >> 8)[..., None] >> 8
    pixels = pixels * np.array(tint, dtype=np.int32) >> 8

    strength = rng.randint(1, 9)
    grain = np.frombuffer(rng.randbytes(size * size), np.uint8).reshape(size, size, 1)
    pixels += (grain.astype(np.int32) - 128) * strength // 128
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _shadows(size: int, rng: random.Random) -> np.ndarray:
    """Soft patches of shade, 0 to about 110 of 256: (size, size)."""
    mask = Image.new("L", (size, size), 0)
    draw = ImageDraw.Draw(mask)
    for _ in range(rng.randint(0, 3)):
        x, y = (int(size * rng.random()) for _ in range(2))
        width, height = (int(size * rng.uniform(0.12, 0.33)) for _ in range(2))
        draw.ellipse((x - width, y - height, x + width, y + height), fill=rng.randint(40, 110))
    return np.asarray(mask.filter(ImageFilter.BoxBlur(max(1, size // 14)))).astype(np.int32)


def png_bytes(pixels: np.ndarray) -> bytes:
    """A PNG file of stored (not compressed) blocks: every library reads it, no library shapes it.

    Args:
        pixels: (height, width, 3), uint8.
    """
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row starts with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    raw = rows.tobytes()
    stream = b"\x78\x01"
    for start in range(0, len(raw), 65535):
        block = raw[start : start + 65535]
        last = start + 65535 >= len(raw)
        stream += struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF) + block
    stream += struct.pack(">I", zlib.adler32(raw))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", stream), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
