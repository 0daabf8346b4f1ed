"""How a dog of PoseDogs is built: the specification of the data set's classes and poses.

A class is a word of eight attributes, five values each. A dog is a tree of joints: body, neck and
head, jaw, ears, tail and four legs of two or three segments, each with its own angle. Lengths are
in units of the trunk's length; every frame's x axis points forward (or along the limb), y up.
"""

import random
from typing import NamedTuple

from dpp.drawn.drawing import (
    Canvas,
    Colour,
    Frame,
    Point,
    darker,
    jitter,
    lighter,
    mix,
    outline,
    swing,
)
from dpp.drawn.species import Word

ATTRIBUTES = {
    "ears": ("pricked", "floppy", "button", "long", "bat"),
    "muzzle": ("short", "long", "square", "bearded", "tapered"),
    "coat": ("sandy", "red", "chocolate", "grey", "cream"),
    "pattern": ("plain", "saddle", "patches", "spots", "brindle"),
    "marking": ("white", "black", "amber", "blue", "silver"),
    "face": ("plain", "mask", "blaze", "brows", "eyepatch"),
    "legs": ("plain", "short", "long", "socks", "fringed"),
    "tail": ("curled", "straight", "plume", "docked", "sickle"),
}
# What the values are called in the names of classes; the muzzle gives the noun.
ADJECTIVES = (
    ("Prick_eared", "Drop_eared", "Button_eared", "Long_eared", "Bat_eared"),
    (),
    ("Sandy", "Red", "Chocolate", "Grey", "Cream"),
    ("", "Saddled", "Piebald", "Spotted", "Brindled"),
    ("White_chested", "Black_chested", "Amber_chested", "Blue_chested", "Silver_chested"),
    ("", "Masked", "Blazed", "Browed", "Patch_eyed"),
    ("", "Short_legged", "Long_legged", "Socked", "Fringed"),
    ("Curl_tailed", "", "Plume_tailed", "Bob_tailed", "Sickle_tailed"),
)
NOUNS = ("Pug", "Hound", "Mastiff", "Schnauzer", "Collie")

COATS = ((214, 164, 84), (140, 58, 38), (82, 58, 48), (132, 138, 150), (240, 230, 208))
MARKINGS = ((250, 248, 244), (36, 32, 38), (238, 134, 36), (52, 82, 146), (192, 206, 220))
NOSE = (36, 30, 32)
TONGUE = (224, 122, 124)

BODY = outline(
    "-.51,.06 -.46,-.14 -.24,-.16 .05,-.21 .30,-.26 .49,-.13 .50,.08 .36,.21 .05,.17 -.30,.19"
)
SADDLE = outline("-.49,.08 -.38,-.03 -.10,-.05 .18,-.02 .33,.06 .34,.20 .05,.165 -.30,.185")
PATCHES = (
    outline("-.47,.05 -.40,-.08 -.26,-.06 -.24,.10 -.34,.17"),
    outline("-.06,.16 -.08,.02 .06,-.08 .18,.0 .20,.14"),
)
SPOTS = outline(
    "-.42,.08 -.30,.12 -.35,-.03 -.20,.04 -.14,.13 -.08,-.06 .02,.08 .05,-.10 .14,.0 .20,.12 "
    ".24,-.12 .32,.03 .40,-.08 -.24,-.10"
)
STRIPES = (-0.38, -0.28, -0.18, -0.08, 0.02, 0.12, 0.22, 0.32)
CHEST = outline(".34,-.25 .18,-.22 .24,-.08 .34,.06 .45,.17 .51,.02 .49,-.14")
HEAD = outline("-.18,0 -.14,-.13 .01,-.16 .14,-.11 .18,.01 .11,.13 -.06,.16")
HEAD_SIZE = 1.4
EYE = (0.075, 0.045)
MASK = outline(".16,-.10 .02,-.09 -.02,.03 .06,.10 .16,.07")
BLAZE = outline(".16,.03 .11,.075 .0,.135 -.02,.165 .08,.15 .17,.07")
EYEPATCH = outline(".15,.02 .06,-.04 -.02,.02 .01,.11 .09,.13")
EARS = {
    "pricked": outline("-.09,-.02 -.08,.10 -.03,.23 .05,.12 .08,-.01"),
    "floppy": outline(".05,.03 -.06,.05 -.13,-.04 -.16,-.17 -.09,-.24 -.02,-.17 .03,-.06"),
    "button": outline("-.09,-.02 -.07,.12 .04,.14 .14,.02 .12,-.05 .04,.02 .05,-.02"),
    "long": outline(".05,.03 -.07,.04 -.12,-.10 -.14,-.28 -.08,-.38 .0,-.31 .01,-.12"),
    "bat": outline("-.08,-.03 -.14,.12 -.10,.26 .0,.28 .08,.17 .07,-.01"),
}
# Of each muzzle: its length, and its radius at the stop and at the nose.
MUZZLES = {
    "short": (0.06, 0.105, 0.095),
    "long": (0.26, 0.085, 0.055),
    "square": (0.18, 0.10, 0.095),
    "bearded": (0.17, 0.09, 0.075),
    "tapered": (0.22, 0.085, 0.03),
}
BEARD = outline("-.08,-.03 .08,-.02 .10,-.12 .05,-.24 .0,-.16 -.05,-.20")
# Of each tail: how much each segment bends on, the segments' length, and the joints' radii.
TAILS = {
    "curled": (62, 0.115, (0.06, 0.06, 0.055, 0.05, 0.045, 0.03)),
    "straight": (3, 0.13, (0.045, 0.04, 0.035, 0.025, 0.012)),
    "plume": (14, 0.125, (0.045, 0.085, 0.11, 0.09, 0.03)),
    "docked": (0, 0.09, (0.055, 0.04)),
    "sickle": (27, 0.13, (0.05, 0.045, 0.04, 0.035, 0.02)),
}
LEG_LENGTHS = {"short": 0.62, "long": 1.2}
# Hind legs have three segments and front legs two: degrees, length, and the radii of their ends.
HIND = ((-78, 0.23, 0.15, 0.08), (-38, 0.19, 0.075, 0.045), (52, 0.19, 0.045, 0.042))
FRONT = ((-97, 0.24, 0.105, 0.06), (8, 0.29, 0.058, 0.045))


class Pose(NamedTuple):
    """The angles of one dog's joints, in degrees."""

    left: bool  # looks left rather than right
    back: bool  # looks over its shoulder
    turn: float  # how much the trunk's length is foreshortened, as a factor
    tilt: float
    neck: float
    head: float
    gape: float
    ear: float
    tail: float
    strides: tuple[float, ...]  # near hind, far hind, near front, far front
    bends: tuple[float, ...]  # of the joints below, in the same order

    @classmethod
    def draw(cls, rng: random.Random, strength: float) -> "Pose":
        """One pose; an equal generator and another strength bend the same dog more or less."""
        stray = [strength * swing(rng) for _ in range(13)]
        chances = [rng.random() for _ in range(4)]
        return cls(
            left=chances[0] < 0.5 * min(1, strength),
            back=chances[1] < 0.1 * strength,
            turn=1 - 0.28 * min(1.3, strength) * chances[2],
            tilt=1 + 20 * stray[0],
            neck=54 + 34 * stray[1],
            head=-4 + 30 * stray[2],
            gape=max(0, strength * (chances[3] - 0.5) * 50),
            ear=24 * stray[3],
            tail=12 + 46 * stray[4],
            strides=tuple(30 * angle for angle in stray[5:9]),
            bends=tuple(26 * angle for angle in stray[9:13]),
        )


class Coat(NamedTuple):
    """The shapes of a class in the colours of one individual."""

    ears: str
    muzzle: str
    pattern: str
    face: str
    legs: str
    tail: str
    colour: Colour
    marking: Colour

    @classmethod
    def draw(cls, kind: Word, rng: random.Random) -> "Coat":
        return cls(
            ears=ATTRIBUTES["ears"][kind[0]],
            muzzle=ATTRIBUTES["muzzle"][kind[1]],
            pattern=ATTRIBUTES["pattern"][kind[3]],
            face=ATTRIBUTES["face"][kind[5]],
            legs=ATTRIBUTES["legs"][kind[6]],
            tail=ATTRIBUTES["tail"][kind[7]],
            colour=jitter(COATS[kind[2]], rng, 12),
            marking=jitter(MARKINGS[kind[4]], rng, 10),
        )

    @property
    def leg_length(self) -> float:
        return LEG_LENGTHS.get(self.legs, 0.95)


def draw_dog(canvas: Canvas, camera: Frame, coat: Coat, pose: Pose) -> None:
    """Draws one dog, from what is far to what is near, and notes its parts on the canvas."""
    body = camera.joint((0, 0), pose.tilt, stretch=pose.turn)
    draw_tail(canvas, body, coat, pose.tail)
    draw_leg(canvas, camera, body.place((-0.29, -0.02)), HIND, coat, pose, 1)
    draw_leg(canvas, camera, body.place((0.40, -0.08)), FRONT, coat, pose, 3)
    canvas.blob(body, BODY, coat.colour, 110)
    neck = camera.at(body.place((0.34, 0.05))).joint((0, 0), pose.neck)
    canvas.limb(neck, ((0, 0), (0.40, 0)), (0.17, 0.125), coat.colour, 112)
    canvas.blob(body, CHEST, coat.marking)
    draw_pattern(canvas, body, coat)
    canvas.note_part("back", body.place((0.05, 0.14)))
    canvas.note_part("chest", body.place((0.44, -0.04)))
    canvas.note_part("neck", neck.place((0.2, 0)))
    hind = draw_leg(canvas, camera, body.place((-0.37, -0.02)), HIND, coat, pose, 0)
    canvas.note_part("hind paw", hind)
    front = draw_leg(canvas, camera, body.place((0.32, -0.10)), FRONT, coat, pose, 2)
    canvas.note_part("front paw", front)
    head = camera.at(neck.place((0.44, 0)))
    head = head.joint((0, 0), pose.head, scale=HEAD_SIZE, stretch=-1 if pose.back else 1)
    draw_head(canvas, head, coat, pose)


def draw_tail(canvas: Canvas, body: Frame, coat: Coat, degrees: float) -> None:
    """A chain of segments; the part is noted at its tip."""
    bend, length, radii = TAILS[coat.tail]
    segment = body.joint((-0.46, 0.11), 150 - degrees)
    for i in range(len(radii) - 1):
        last = i == len(radii) - 2 and coat.tail != "docked"
        colour = coat.marking if last else darker(coat.colour, 8)
        canvas.limb(segment, ((0, 0), (length, 0)), radii[i : i + 2], colour, 80)
        segment = segment.joint((length, 0), -bend)
    canvas.note_part("tail", segment.place((0, 0)))


def draw_leg(canvas: Canvas, level: Frame, hip: Point, segments, coat, pose, number) -> Point:
    """A leg from the hip's place. Returns the paw's place.

    Args:
        segments: `HIND` or `FRONT`.
        number: 0 near hind, 1 far hind, 2 near front, 3 far front.
    """
    near = number % 2 == 0
    colour = coat.colour if near else darker(coat.colour, 32)
    sock = coat.marking if near else darker(coat.marking, 32)
    length = coat.leg_length
    angles = [pose.strides[number], pose.bends[number], -pose.bends[number]]
    frame = level.at(hip)
    for i, (degrees, reach, start, end) in enumerate(segments):
        frame = frame.joint((0, 0), degrees + angles[i])
        reach *= length
        lowest = i == len(segments) - 1
        if coat.legs == "fringed" and lowest:
            fringe = ((0, -0.03), (reach * 0.5, -0.11), (reach, -0.05), (reach, 0.03), (0, 0.03))
            canvas.blob(frame, fringe, lighter(colour, 18), 96)
        dressed = sock if coat.legs == "socks" and lowest else colour
        canvas.limb(frame, ((0, 0), (reach, 0)), (start, end), dressed, 118 if near else 70)
        frame = frame.joint((reach, 0))
    paw = frame.place((0, 0))
    toes = sock if coat.legs == "socks" else colour
    ends = ((0, -0.01), (0.075, -0.015))
    canvas.limb(level.at(paw), ends, (0.05, 0.044), toes, 120 if near else 72)
    return paw


def draw_pattern(canvas: Canvas, body: Frame, coat: Coat) -> None:
    """What the trunk's coat wears."""
    if coat.pattern == "saddle":
        canvas.blob(body, SADDLE, coat.marking)
    elif coat.pattern == "patches":
        for patch in PATCHES:
            canvas.blob(body, patch, coat.marking)
    elif coat.pattern == "spots":
        for spot in SPOTS:
            canvas.disc(body, spot, 0.046, coat.marking)
    elif coat.pattern == "brindle":
        for x in STRIPES:
            stripe = ((x - 0.02, 0.13), (x + 0.02, 0.02), (x - 0.01, -0.12))
            canvas.limb(body, stripe, (0.02, 0.032, 0.014), coat.marking)


def draw_ear(canvas: Canvas, head: Frame, at: Point, coat: Coat, degrees: float, far: bool) -> None:
    ear = head.joint(at, degrees)
    shade = darker(coat.colour, 45 if far else 24)
    canvas.blob(ear, EARS[coat.ears], shade, 100 if far else 165)
    if coat.ears in ("pricked", "bat") and not far:
        inner = [(0.55 * x, 0.6 * y + 0.03) for x, y in EARS[coat.ears]]
        canvas.blob(ear, inner, mix(shade, (216, 150, 140), 55))


def draw_head(canvas: Canvas, head: Frame, coat: Coat, pose: Pose) -> None:
    """Ears, jaw, skull, muzzle, face and eye."""
    length, stop, nose = MUZZLES[coat.muzzle]
    draw_ear(canvas, head, (0.02, 0.11), coat, pose.ear * 0.6 - 8, far=True)
    jaw = head.joint((0.08, -0.07), -pose.gape)
    reach = length + 0.03
    canvas.limb(jaw, ((0, -0.01), (reach, 0)), (0.055, nose * 0.6), darker(coat.colour, 30), 100)
    if pose.gape > 6:
        canvas.limb(jaw, ((0.04, 0.035), (reach + 0.02, 0.02)), (0.03, 0.028), TONGUE)
    canvas.blob(head, HEAD, coat.colour, 130)
    snout = head.joint((0.09, -0.03), -4)
    pale = coat.marking if coat.face == "mask" else lighter(coat.colour, 22)
    canvas.limb(snout, ((0.02, 0), (length, 0)), (stop, nose), pale, 142)
    if coat.face == "mask":
        canvas.blob(head, MASK, coat.marking)
    elif coat.face == "blaze":
        canvas.blob(head, BLAZE, coat.marking)
        canvas.limb(snout, ((0.03, stop * 0.75), (length, nose * 0.7)), (0.03, 0.022), coat.marking)
    elif coat.face == "eyepatch":
        canvas.blob(head, EYEPATCH, coat.marking)
    elif coat.face == "brows":
        canvas.disc(head, (EYE[0] + 0.01, EYE[1] + 0.06), 0.032, coat.marking)
        canvas.disc(head, (-0.02, -0.08), 0.045, coat.marking)
    if coat.muzzle == "bearded":
        beard = head.joint((0.09 + length, -0.07), -pose.gape * 0.5)
        canvas.blob(beard, BEARD, lighter(coat.colour, 40), 140)
        canvas.limb(head, ((0.06, 0.09), (0.17, 0.085)), (0.02, 0.03), lighter(coat.colour, 40))
    tip = (length + nose * 0.72, nose * 0.42)
    canvas.disc(snout, tip, 0.042, NOSE, 150)
    canvas.note_part("nose", snout.place(tip))
    canvas.disc(head, EYE, 0.036, mix(coat.colour, (60, 40, 30), 60))
    canvas.disc(head, EYE, 0.029, (26, 18, 18))
    canvas.disc(head, (EYE[0] + 0.01, EYE[1] + 0.011), 0.01, (250, 250, 250))
    canvas.note_part("eye", head.place(EYE))
    draw_ear(canvas, head, (-0.07, 0.10), coat, pose.ear, far=False)
    canvas.note_part("ear", head.place((-0.08, 0.10)))
