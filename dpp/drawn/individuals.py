"""The same bird drawn again: without a part or an object around it, or with another's attributes.

    bird = individuals.of_record(source.root, record.path, record.label)
    bird.draw()                                  # the pixels of the record's file
    bird.draw(without={"beak", "twig 1"})        # the rest of them stays as it is
    bird.draw(kind=exchange(bird.kind, other, "tail"))  # its twin with another's tail
    individuals.masks(bird)["wing"]              # which pixels its wing covers

The generators of an individual and its scene do not depend on its attributes, and a part that is
left out is worked out all the same: nothing else changes but the shades at the rim of what was
left out, up to `shade_reach` pixels beyond it.

The parts are drawing layers. Back colour, which a bird has all over, belongs to the body, which is
always there. Everything in the breast's colour is the breast: underside, throat, cheek and thighs;
the cheek goes with the head too, and the thighs with the legs. Without its head, a bird still has
its neck, with the beak at its end, but neither crown nor eye.
"""

import json
import re
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpp.drawn import posebirds
from dpp.drawn.bird_anatomy import ATTRIBUTES
from dpp.drawn.layers import LayeredCanvas
from dpp.drawn.species import Word, kinds
from dpp.drawn.studio import STAMP, Drawing, generator
from dpp.system.errors import UserError

# What each part of the bird shows of its class, by the names in `ATTRIBUTES`.
SHOWN = {
    "beak": ("beak shape", "beak colour"),
    "head": ("crown",),
    "breast": ("breast pattern", "breast colour"),
    "wing": ("wing",),
    "tail": ("tail",),
    "legs": (),
    "body": ("back",),
}
BIRD = tuple(SHOWN)
REMOVABLE = BIRD[:-1]
OBJECTS = ("twig 1", "twig 2", "twig 3", "perch", "cover")  # around the bird, where there are any


class Individual(NamedTuple):
    """One bird in its scene: all that its picture depends on."""

    kind: Word
    seed: int
    split: str
    index: int
    size: int  # of the picture, in pixels
    pose: float

    def draw(self, without: Collection[str] = (), kind: Word | None = None) -> Drawing:
        """Its picture.

        Args:
            without: names from `REMOVABLE` and `OBJECTS`; `body` leaves no bird at all.
            kind: attributes instead of its own.
        """
        return self._draw(without, kind)[0]

    def _draw(self, without: Collection[str] = (), kind: Word | None = None):
        if unknown := set(without) - {*BIRD, *OBJECTS}:
            raise UserError(
                f"PoseBirds has no {min(unknown)!r} to leave out: choose from "
                f"{', '.join(BIRD + OBJECTS)}"
            )
        make_canvas = partial(LayeredCanvas, without=without)
        rng = generator("posebirds", self.seed, self.split, self.kind, self.index)
        return posebirds.draw_on(make_canvas, kind or self.kind, rng, self.size, self.pose)


def masks(bird: Individual, without: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Which pixels each part of a bird, and each object around it, covers.

    Args:
        bird: whose picture they are of.
        without: as of `Individual.draw`.

    Returns:
        (size, size) float32, the share of each pixel that is seen of it, from 0 to 1, for all of
        `BIRD` and of `OBJECTS`; and `bird`, the sum over `BIRD`.
    """
    _, canvas = bird._draw(without)
    found, nothing = canvas.masks(), np.zeros((bird.size, bird.size), np.float32)
    shares = {name: found.get(name, nothing) for name in BIRD + OBJECTS}
    return shares | {"bird": np.sum([shares[name] for name in BIRD], axis=0)}


def exchange(kind: Word, other: Word, part: str) -> Word:
    """A kind with all that another kind shows on one part."""
    changed = [list(ATTRIBUTES).index(name) for name in SHOWN[part]]
    return tuple(other[i] if i in changed else value for i, value in enumerate(kind))


def shown_by(kind: Word, part: str) -> Word:
    """A kind's values of the attributes that one part shows."""
    return tuple(kind[list(ATTRIBUTES).index(name)] for name in SHOWN[part])


def shade_reach(size: int) -> int:
    """How far beyond its rim a shape changes the shades of others, in pixels (`finish`)."""
    return max(1, size // 40) + size // 32 + 1


def is_drawn(root: Path | None) -> bool:
    """Whether a data set's folder holds PoseBirds."""
    return _stamp(root) is not None


def _stamp(root: Path | None) -> dict | None:
    """What PoseBirds' folder says of itself; None of another."""
    try:
        stamp = json.loads((Path(root) / STAMP).read_text(encoding="utf-8"))
        return stamp if stamp["name"] == "posebirds" else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def of_record(root: Path, path: Path, label: int) -> Individual:
    """The individual of an image of a drawn data set.

    Args:
        root: the data set's folder.
        path: of the image.
        label: its class, from 0.

    Raises:
        UserError: the folder does not hold PoseBirds.
    """
    stamp = _stamp(root)
    named = re.fullmatch(r".*_(train|test)_(\d+)\.png", Path(path).name)
    if stamp is None or named is None:
        raise UserError(f"{path} is not an image of PoseBirds: only its birds can be drawn again")
    kind = kinds(stamp["classes"], base=stamp["base"])[label]
    split, index = named[1], int(named[2]) - 1
    return Individual(kind, stamp["seed"], split, index, stamp["image_size"], stamp["pose"])
