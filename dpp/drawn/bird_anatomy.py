"""How a bird of PoseBirds is built: the specification of the data set's classes and poses.

A class is a word of eight attributes, five values each. A bird is a tree of joints: body, neck and
head, beak, wing, tail and two legs, each with its own angle. Lengths are in units of the body's
length; every frame's x axis points forward (or along the limb) and its y axis up.
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
from dpp.drawn.layers import in_layer
from dpp.drawn.species import Word

ATTRIBUTES = {
    "beak shape": ("cone", "slender", "hooked", "heavy", "curved"),
    "beak colour": ("black", "yellow", "red", "ivory", "blue"),
    "crown": ("plain", "cap", "crest", "brow", "mask"),
    "back": ("slate", "brown", "olive", "charcoal", "rufous"),
    "breast pattern": ("plain", "bib", "band", "spots", "streaks"),
    "breast colour": ("white", "buff", "yellow", "orange", "grey"),
    "wing": ("plain", "bar", "bars", "spots", "patch"),
    "tail": ("square", "long", "forked", "fan", "banded"),
}
# What the values are called in the names of classes; the beak's shape gives the noun.
ADJECTIVES = (
    (),
    ("Black_billed", "Gold_billed", "Red_billed", "Ivory_billed", "Blue_billed"),
    ("", "Capped", "Crested", "Browed", "Masked"),
    ("Slate", "Brown", "Olive", "Sooty", "Rufous"),
    ("", "Bibbed", "Collared", "Spotted", "Streaked"),
    ("White_breasted", "Buff_breasted", "Yellow_breasted", "Orange_breasted", "Grey_breasted"),
    ("", "Bar_winged", "Double_barred", "Spot_winged", "Patch_winged"),
    ("", "Long_tailed", "Fork_tailed", "Fan_tailed", "Band_tailed"),
)
NOUNS = ("Finch", "Warbler", "Shrike", "Barbet", "Sunbird")

# CUB-200-2011's fifteen parts, in its order.
PARTS = (
    *("back", "beak", "belly", "breast", "crown", "forehead", "left eye", "left leg"),
    *("left wing", "nape", "right eye", "right leg", "right wing", "tail", "throat"),
)

BEAK_COLOURS = ((44, 42, 46), (240, 188, 52), (206, 62, 46), (232, 216, 186), (96, 134, 172))
BACK_COLOURS = ((92, 122, 162), (136, 104, 76), (128, 142, 68), (74, 74, 84), (172, 92, 56))
BREAST_COLOURS = ((240, 238, 230), (222, 190, 142), (238, 206, 76), (224, 134, 62), (172, 174, 184))
LEG_COLOURS = ((92, 78, 74), (176, 112, 84), (70, 72, 84))
PALE = (246, 242, 228)
INK = (38, 34, 40)

BODY = outline(
    "-.53,.03 -.42,-.15 -.15,-.30 .15,-.32 .40,-.21 .50,.02 .40,.22 .10,.27 -.22,.21 -.44,.12"
)
UNDERSIDE = outline(
    "-.44,-.11 -.15,-.28 .15,-.30 .38,-.20 .48,.01 .42,.15 .28,.02 .05,-.09 -.20,-.11"
)
BAND = outline(".47,.13 .51,.03 .47,-.09 .34,-.15 .20,-.12 .24,-.03 .36,-.03 .42,.06")
BREAST_MARKS = outline(
    ".40,.05 .43,-.06 .33,-.03 .36,-.15 .24,-.10 .25,-.22 .13,-.16 .09,-.25 0,-.19 -.10,-.24"
)
HEAD = outline("-.22,0 -.17,-.14 0,-.20 .15,-.14 .22,0 .17,.13 .02,.20 -.15,.15")
CHEEK = outline(".19,-.08 .05,-.07 -.08,-.10 -.06,-.18 .02,-.195 .14,-.145")
CAP = outline("-.22,.04 0,.075 .21,.05 .17,.135 .02,.205 -.155,.155")
CREST = outline(".16,.12 .03,.19 -.12,.24 -.33,.42 -.28,.22 -.19,.06")
MASK = outline(".22,.03 .08,.10 -.08,.06 -.20,.01 -.08,-.01 .10,-.03")
BROW = outline(".20,.05 .08,.125 -.17,.085")
EYE = (0.085, 0.045)
BODY_PARTS = {"back": (0.12, 0.22), "breast": (0.38, -0.06), "belly": (0.05, -0.24)}
HEAD_PARTS = {
    "crown": (0, 0.16),
    "forehead": (0.165, 0.09),
    "nape": (-0.18, -0.02),
    "throat": (0.08, -0.15),
}
# Of each beak: the upper half, the lower half, and a place on the upper one near its tip.
BEAKS = (
    (outline("0,.10 .09,.075 .19,0 0,0"), outline("0,0 .16,0 0,-.07"), (0.12, 0.025)),
    (outline("0,.05 .20,.038 .34,0 0,0"), outline("0,0 .32,0 0,-.035"), (0.19, 0.018)),
    (
        outline("0,.09 .13,.085 .21,.02 .20,-.07 .16,-.01 0,0"),
        outline("0,0 .15,-.01 0,-.06"),
        (0.16, 0.025),
    ),
    (
        outline("0,.11 .16,.115 .31,.06 .36,-.02 .28,0 0,0"),
        outline("0,0 .30,-.01 .20,-.06 0,-.075"),
        (0.28, 0.03),
    ),
    (
        outline("0,.05 .16,.035 .30,-.05 .37,-.16 .25,-.06 .12,-.005 0,0"),
        outline("0,0 .12,-.005 .25,-.07 .31,-.12 .20,-.07 0,-.035"),
        (0.22, -0.024),
    ),
)
FEATHER = outline("0,.03 .50,.065 .88,.05 1,0 .86,-.045 .40,-.05 0,-.03")
COVERTS = outline(".06,.02 0,.10 -.08,.02 -.04,-.10 .12,-.16 .34,-.12 .42,-.02 .26,.06")
WING_PATCH = outline(".24,-.13 .46,-.11 .52,-.02 .36,.03 .24,-.02")
WING_SPOTS = outline(".10,-.10 .24,-.11 .07,0 .20,-.03 .33,-.04 .44,-.10 .50,0")
# Of each tail: its length, its feathers' width, and their angles in the order of drawing.
TAILS = {
    "square": (0.50, 1.6, (-7, 7, 0)),
    "long": (0.86, 1.0, (-4, 4, 0)),
    "forked": (0.66, 1.6, (-15, 15)),
    "fan": (0.50, 1.6, (-34, 34, -20, 20, -7, 7)),
    "banded": (0.54, 1.6, (-9, 9, 0)),
}


class Pose(NamedTuple):
    """The angles of one bird's joints, in degrees."""

    left: bool  # looks left rather than right
    back: bool  # looks over its shoulder
    turn: float  # how much the body's length is foreshortened, as a factor
    tilt: float
    neck: float
    head: float
    gape: float
    wing: float  # 0 folded, 1 raised
    tail: float
    hip: float
    knee: float

    @classmethod
    def draw(cls, rng: random.Random, strength: float) -> "Pose":
        """One pose; an equal generator and another strength bend the same bird more or less."""
        stray = [strength * swing(rng) for _ in range(6)]
        chances = [rng.random() for _ in range(5)]
        return cls(
            left=chances[0] < 0.5 * min(1, strength),
            back=chances[1] < 0.12 * strength,
            turn=1 - 0.3 * min(1.3, strength) * chances[2],
            tilt=28 + 42 * stray[0],
            neck=62 + 34 * stray[1],
            head=2 + 34 * stray[2],
            gape=max(0, strength * (chances[3] - 0.55) * 50),
            wing=min(1, max(0, strength * (chances[4] - 0.45) * 1.8)),
            tail=8 + 36 * stray[3],
            hip=22 * stray[4],
            knee=24 * stray[5],
        )


class Plumage(NamedTuple):
    """The shapes of a class in the colours of one individual."""

    beak: int
    crown: str
    breast: str
    wing: str
    tail: str
    beak_colour: Colour
    back_colour: Colour
    breast_colour: Colour
    pale: Colour
    ink: Colour
    legs: Colour

    @classmethod
    def draw(cls, kind: Word, rng: random.Random) -> "Plumage":
        return cls(
            beak=kind[0],
            crown=ATTRIBUTES["crown"][kind[2]],
            breast=ATTRIBUTES["breast pattern"][kind[4]],
            wing=ATTRIBUTES["wing"][kind[6]],
            tail=ATTRIBUTES["tail"][kind[7]],
            beak_colour=jitter(BEAK_COLOURS[kind[1]], rng, 16),
            back_colour=jitter(BACK_COLOURS[kind[3]], rng, 18),
            breast_colour=jitter(BREAST_COLOURS[kind[5]], rng, 14),
            pale=jitter(PALE, rng, 8),
            ink=jitter(INK, rng, 10),
            legs=jitter(rng.choice(LEG_COLOURS), rng, 12),
        )

    @property
    def throat(self) -> Colour:
        return self.ink if self.breast == "bib" else self.breast_colour


def body_frame(camera: Frame, pose: Pose) -> Frame:
    return camera.joint((0, 0), pose.tilt, stretch=pose.turn)


@in_layer("body")
def draw_bird(canvas: Canvas, camera: Frame, plumage: Plumage, pose: Pose) -> None:
    """Draws one bird, from what is far to what is near, and notes its parts on the canvas."""
    body = body_frame(camera, pose)
    near, far = ("left", "right") if pose.left else ("right", "left")
    if pose.wing > 0.25:
        draw_wing(canvas, body, plumage, pose.wing, near=False)
    draw_tail(canvas, body, plumage, pose.tail)
    canvas.note_part(f"{far} leg", draw_leg(canvas, camera, plumage, pose, -1))
    canvas.note_part(f"{near} leg", draw_leg(canvas, camera, plumage, pose, 1))

    canvas.blob(body, BODY, plumage.back_colour, 110)
    neck = camera.at(body.place((0.26, 0.07))).joint((0, 0), pose.neck)
    canvas.limb(neck, ((0, 0), (0.38, 0)), (0.20, 0.17), plumage.back_colour, 112)
    head = camera.at(neck.place((0.38, 0)))
    head = head.joint((0, 0), pose.head, stretch=-1 if pose.back else 1)
    if not pose.back:
        ends = (body.place((0.35, -0.03)), head.place((0.07, -0.1)))
        radii = (0.15 * camera.unit, 0.1 * camera.unit)
        with canvas.layer("breast"):
            canvas.limb(Frame(0, 0, (1, 0), (0, 1)), ends, radii, plumage.throat, 112)
    draw_breast(canvas, body, plumage)
    for part, place in BODY_PARTS.items():
        canvas.note_part(part, body.place(place))
    draw_beak(canvas, head, plumage, pose.gape)
    draw_head(canvas, head, plumage, "left" if pose.left != pose.back else "right")
    canvas.note_part(f"{near} wing", draw_wing(canvas, body, plumage, pose.wing, near=True))


@in_layer("tail")
def draw_tail(canvas: Canvas, body: Frame, plumage: Plumage, degrees: float) -> None:
    """Feathers about the root; the part is noted on the one that is drawn last."""
    root = body.joint((-0.46, 0.03), 180 - degrees)
    length, width, angles = TAILS[plumage.tail]
    for i, angle in enumerate(angles):
        feather = root.joint((0, 0), angle, length)
        colour = darker(plumage.back_colour, 12 if i % 2 else 30)
        canvas.blob(feather, [(x, width * y) for x, y in FEATHER], colour, 70)
        if plumage.tail == "banded":
            for start in (0.45, 0.78):
                end = start + 0.13
                band = ((start, 0.11), (end, 0.11), (end, -0.09), (start, -0.09))
                canvas.shape(feather, band, plumage.pale)
    canvas.note_part("tail", feather.place((0.62, 0)))


def leg_frames(level: Frame, pose: Pose, side: int) -> tuple[Frame, Frame, Frame]:
    """Thigh, shin and foot of a leg, which stands upright whatever the body's tilt.

    Args:
        side: 1 for the near leg, −1 for the far one, which swings the other way.
    """
    hip = body_frame(level, pose).place((-0.10, -0.20) if side > 0 else (0, -0.22))
    thigh = level.at(hip).joint((0, 0), -90 + side * pose.hip)
    shin = thigh.joint((0.13, 0), -24 + pose.knee * 0.6)
    return thigh, shin, shin.joint((0.1, 0), 34 - pose.knee)


def near_foot(level: Frame, pose: Pose) -> Point:
    """Where the bird stands: what it perches on passes here."""
    return leg_frames(level, pose, 1)[2].place((0.15, -0.02))


@in_layer("legs")
def draw_leg(canvas: Canvas, level: Frame, plumage: Plumage, pose: Pose, side: int) -> Point:
    """Returns the foot's place."""
    thigh, shin, ankle = leg_frames(level, pose, side)
    colour = plumage.legs if side > 0 else darker(plumage.legs, 30)
    feathers = mix(plumage.breast_colour, plumage.back_colour, 30 if side > 0 else 60)
    with canvas.layer("breast"):
        canvas.limb(thigh, ((-0.05, 0), (0.14, 0)), (0.10, 0.035), feathers, 80)
    canvas.limb(shin, ((0, 0), (0.1, 0)), (0.026, 0.022), colour, 90)
    canvas.limb(ankle, ((0, 0), (0.15, 0)), (0.022, 0.02), colour, 90)
    foot = ankle.place((0.15, 0))
    for toe in ((0.12, -0.035), (0.08, -0.06), (-0.08, -0.045)):
        canvas.limb(level.at(foot), ((0, 0), toe), (0.022, 0.012), colour, 90)
    return foot


@in_layer("wing")
def draw_wing(canvas: Canvas, body: Frame, plumage: Plumage, raised: float, near: bool) -> Point:
    """Feathers fanned about the shoulder, coverts, and the pattern. Returns the coverts' middle."""
    hinge, lift = ((0.20, 0.07), 78) if near else ((0.27, 0.12), 98)
    shoulder = body.joint(hinge, 186 - lift * raised)
    # The wing's y axis points to its leading edge: up when it is folded.
    shoulder = shoulder._replace(up=(-shoulder.up[0], -shoulder.up[1]))
    coat = darker(plumage.back_colour, 14 if near else 38)
    spread = 11 + 52 * raised
    for i in range(6):
        share = i / 5
        vane = shoulder.joint((0.02, 0), -3 - spread * (1 - share), 0.52 + 0.26 * share)
        colour = darker(coat, 34 if i % 2 else 20)
        canvas.blob(vane, [(x, 1.25 * y) for x, y in FEATHER], colour, 130)
    coverts = shoulder.joint((0, 0), -spread * 0.3)
    canvas.blob(coverts, [(x, y * (0.95 + 0.5 * raised)) for x, y in COVERTS], coat, 170)
    if near and plumage.wing in ("bar", "bars"):
        for start in (0.30, 0.14) if plumage.wing == "bars" else (0.27,):
            bar = ((start, -0.16 - 0.05 * raised), (start + 0.05, -0.04), (start + 0.02, 0.055))
            canvas.limb(coverts, bar, (0.028, 0.034, 0.022), plumage.pale)
    elif near and plumage.wing == "spots":
        for spot in WING_SPOTS:
            canvas.disc(coverts, spot, 0.03, plumage.pale)
    elif near and plumage.wing == "patch":
        canvas.blob(coverts, WING_PATCH, plumage.pale)
    return coverts.place((0.25, -0.03))


@in_layer("breast")
def draw_breast(canvas: Canvas, body: Frame, plumage: Plumage) -> None:
    """The underside and the marks on it."""
    canvas.blob(body, UNDERSIDE, plumage.breast_colour)
    marks = darker(mix(plumage.breast_colour, (96, 62, 40), 50), 45)
    if plumage.breast == "bib":
        canvas.disc(body, (0.38, 0.05), 0.11, plumage.ink)
    elif plumage.breast == "band":
        canvas.blob(body, BAND, plumage.ink)
    elif plumage.breast == "spots":
        for mark in BREAST_MARKS:
            canvas.disc(body, mark, 0.026, marks)
    elif plumage.breast == "streaks":
        for x, y in BREAST_MARKS:
            canvas.limb(body, ((x + 0.02, y + 0.03), (x - 0.05, y - 0.03)), (0.018, 0.008), marks)


@in_layer("beak")
def draw_beak(canvas: Canvas, head: Frame, plumage: Plumage, gape: float) -> None:
    upper, lower, tip = BEAKS[plumage.beak]
    canvas.shape(head.joint((0.17, -0.01), -gape), lower, darker(plumage.beak_colour, 25), 90)
    mouth = head.joint((0.17, -0.02), gape * 0.4)
    canvas.shape(mouth, upper, plumage.beak_colour, 108)
    canvas.note_part("beak", mouth.place(tip))


@in_layer("head")
def draw_head(canvas: Canvas, head: Frame, plumage: Plumage, side: str) -> None:
    """Skull, crown and the eye that is seen, on the left or right side."""
    if plumage.crown == "crest":
        canvas.blob(head, CREST, darker(plumage.back_colour, 25), 120)
    canvas.blob(head, HEAD, plumage.back_colour, 132)
    with canvas.layer("breast"):
        canvas.blob(head, CHEEK, plumage.throat)
    if plumage.crown == "cap":
        canvas.blob(head, CAP, plumage.ink)
    elif plumage.crown == "mask":
        canvas.blob(head, MASK, plumage.ink)
    elif plumage.crown == "brow":
        canvas.limb(head, BROW, (0.016, 0.028, 0.018), plumage.pale)
    canvas.disc(head, EYE, 0.05, lighter(plumage.back_colour, 35))
    canvas.disc(head, EYE, 0.04, (24, 20, 22))
    canvas.disc(head, (EYE[0] + 0.013, EYE[1] + 0.015), 0.013, (250, 250, 250))
    for part, place in HEAD_PARTS.items():
        canvas.note_part(part, head.place(place))
    canvas.note_part(f"{side} eye", head.place(EYE))
