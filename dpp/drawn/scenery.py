"""What surrounds a drawn animal: a blurred background, twigs and leaves, and what hides it."""

import random

from PIL import Image, ImageDraw, ImageFilter

from dpp.drawn.drawing import Canvas, Colour, Frame, darker, jitter, lighter, mix
from dpp.drawn.layers import in_layer

# Each place: the colours at the top and the bottom of the backdrop, and of what is out of focus.
PLACES = {
    "wood": ((126, 152, 104), (58, 84, 52), ((96, 130, 70), (150, 176, 108), (62, 78, 50))),
    "sky": ((150, 190, 222), (214, 226, 226), ((236, 240, 240), (176, 204, 220), (120, 150, 110))),
    "autumn": ((204, 170, 112), (122, 82, 54), ((206, 128, 58), (226, 186, 96), (110, 66, 48))),
    "shore": (
        (178, 196, 196),
        (148, 136, 108),
        ((196, 188, 160), (120, 140, 140), (226, 222, 206)),
    ),
    "dusk": ((132, 120, 146), (76, 66, 84), ((176, 140, 142), (92, 84, 112), (206, 176, 160))),
    "meadow": ((176, 200, 170), (96, 132, 64), ((150, 180, 90), (214, 206, 112), (186, 120, 150))),
}
LEAVES = ((92, 134, 62), (128, 160, 70), (66, 106, 66), (196, 140, 62), (176, 86, 56))
BERRIES = ((196, 52, 48), (234, 176, 58), (52, 54, 84), (236, 232, 220))
BARK = ((98, 78, 62), (124, 104, 84), (74, 62, 56), (142, 124, 106))

LEAF = ((0, 0), (0.28, 0.17), (0.66, 0.15), (1, 0), (0.66, -0.13), (0.28, -0.16))


def backdrop(size: int, rng: random.Random) -> Image.Image:
    """A gradient with shapes out of focus, in the colours of one of the `PLACES`."""
    top, bottom, shapes = PLACES[rng.choice(sorted(PLACES))]
    top, bottom = jitter(top, rng, 18), jitter(bottom, rng, 18)
    picture = Image.new("RGB", (size, size))
    draw = ImageDraw.Draw(picture)
    for y in range(size):
        draw.line((0, y, size, y), fill=mix(top, bottom, 100 * y // size))
    for _ in range(rng.randint(9, 15)):
        x, y = (int(size * rng.random()) for _ in range(2))
        width = 1 + int(size * rng.uniform(0.05, 0.17))
        height = width * rng.randint(60, 140) // 100
        colour = mix(jitter(rng.choice(shapes), rng, 20), mix(top, bottom, 50), rng.randint(0, 55))
        draw.ellipse((x - width, y - height, x + width, y + height), fill=colour)
    for _ in range(rng.randint(1, 3)):
        ends = [int(size * rng.uniform(-0.25, 1.25)) for _ in range(4)]
        width = 1 + int(size * rng.uniform(0.025, 0.07))
        draw.line(ends, fill=mix(rng.choice(BARK), top, 35), width=width)
    blur = 1 + int(size * rng.uniform(0.025, 0.055))
    return picture.filter(ImageFilter.BoxBlur(blur))


def leaf(canvas: Canvas, frame: Frame, colour: Colour, height: int | None = 50) -> None:
    """A leaf of length 1 along the frame's x axis, with its midrib."""
    canvas.blob(frame, LEAF, colour, height)
    canvas.limb(frame, ((0, 0), (0.9, 0)), (0.03, 0.008), darker(colour, 25))


def twig(canvas: Canvas, rng: random.Random, start, degrees: float, length: float) -> None:
    """A thin branch with a few leaves or berries, from a place in units of the image's side."""
    bark = jitter(rng.choice(BARK), rng, 14)
    frame = Frame.camera(*start, length, 1).joint((0, 0), degrees)
    bend = rng.uniform(-0.15, 0.15)
    canvas.limb(frame, ((0, 0), (0.5, bend), (1, bend / 2)), (0.028, 0.02, 0.01), bark, 40)
    colour = jitter(rng.choice(LEAVES), rng, 16)
    berry = jitter(rng.choice(BERRIES), rng, 12)
    for _ in range(rng.randint(2, 5)):
        along = rng.uniform(0.2, 1)
        place = (along, bend * (1 - abs(1 - 2 * along)) + bend / 2 * max(0, 2 * along - 1))
        if rng.random() < 0.25:
            canvas.disc(frame, (place[0], place[1] - 0.05), 0.045, berry, 55)
        else:
            side = rng.choice((-1, 1)) * rng.uniform(25, 75)
            leaf(canvas, frame.joint(place, side, rng.uniform(0.16, 0.32)), colour)


def clutter(canvas: Canvas, rng: random.Random) -> None:
    """Twigs in focus behind the animal, growing in from the image's sides; each is a layer."""
    for number in range(rng.randint(1, 3)):
        from_left = rng.random() < 0.5
        start = (-0.05 if from_left else 1.05, rng.uniform(0, 1))
        degrees = rng.uniform(-40, 40) + (0 if from_left else 180)
        with canvas.layer(f"twig {number + 1}"):
            twig(canvas, rng, start, degrees, rng.uniform(0.35, 0.8))


@in_layer("perch")
def perch(canvas: Canvas, rng: random.Random, feet) -> None:
    """A branch across the image, under the feet.

    Args:
        feet: the place where the branch's upper side passes, in units of the image's side.
    """
    bark = jitter(rng.choice(BARK), rng, 14)
    frame = Frame.camera(*feet, 1.0, 1).joint((0, 0), rng.uniform(-14, 14))
    thickness = rng.uniform(0.018, 0.034)
    left, right = rng.uniform(-0.02, 0.06), rng.uniform(-0.02, 0.06)
    ends = ((-1.3, left - thickness), (0, -thickness), (1.3, right - thickness))
    canvas.limb(frame, ends, (thickness * 1.2, thickness, thickness * 0.7), bark, 70)
    for _ in range(rng.randint(2, 5)):
        x = rng.uniform(-0.6, 0.6)
        knot = ((x, -thickness * 0.6), (x + 0.07, -thickness * 0.6))
        canvas.limb(frame, knot, (0.006, 0.003), darker(bark, 30))
    for _ in range(rng.randint(0, 2)):
        colour = jitter(rng.choice(LEAVES), rng, 16)
        place = (rng.uniform(-0.6, 0.6), -thickness * 1.5)
        leaf(canvas, frame.joint(place, rng.uniform(-130, -50), rng.uniform(0.08, 0.15)), colour)


def ground(canvas: Canvas, rng: random.Random, feet_row: float) -> None:
    """Grass or sand from just above the feet downwards, in units of the image's side."""
    soil = jitter(rng.choice(((112, 140, 74), (168, 150, 112), (132, 122, 92))), rng, 16)
    rise = rng.uniform(-0.03, 0.03)
    top = feet_row - 0.07
    field = ((-0.1, top + rise), (1.1, top - rise), (1.1, 1.1), (-0.1, 1.1))
    canvas.polygon(field, soil, 0)  # height 0 also levels the relief of what it hides
    for _ in range(rng.randint(22, 34)):
        x, y = rng.uniform(0, 1), rng.uniform(top + 0.03, 1.05)
        blade(canvas, rng, (x, y), rng.uniform(0.03, 0.07), mix(soil, (70, 92, 50), 45))


def blade(canvas: Canvas, rng: random.Random, root, length: float, colour: Colour) -> None:
    """One blade of grass."""
    x, y = root
    lean = rng.uniform(-0.5, 0.5) * length
    width = 0.12 * length
    canvas.polygon(
        ((x - width, y), (x + lean, y - length), (x + width, y)), jitter(colour, rng, 14), 30
    )


@in_layer("cover")
def occlude(canvas: Canvas, rng: random.Random, centre, reach: float, chance: float) -> None:
    """Sometimes puts a leafy twig or single leaves between the animal and the viewer.

    Args:
        centre: the animal's middle; `reach` how far from it something may lie; both in image units.
    """
    canvas.cover_from_here()
    if rng.random() >= chance:
        return
    x = centre[0] + rng.uniform(-reach, reach)
    y = centre[1] + rng.uniform(-reach, reach)
    if rng.random() < 0.5:
        degrees = rng.uniform(0, 360)
        frame = Frame.camera(x, y, 1, 1).joint((0, 0), degrees)
        twig(canvas, rng, frame.place((-0.35, 0)), degrees, rng.uniform(0.5, 0.8))
        return
    colour = lighter(jitter(rng.choice(LEAVES), rng, 16), 8)
    for _ in range(rng.randint(1, 3)):
        place = (x + rng.uniform(-0.08, 0.08), y + rng.uniform(-0.08, 0.08))
        degrees = rng.uniform(0, 360)
        frame = Frame.camera(*place, rng.uniform(0.16, 0.28), 1).joint((0, 0), degrees)
        leaf(canvas, frame, colour, 150)
