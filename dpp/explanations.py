"""Explanations as data: what figures draw and files keep; neither networks nor pixels are in them.

Places are (row, column) of the latent map, in cells from the centre of the first one. Boxes are in
pixels of the original image, upright if it is a person's own; a part that has moved off the image
has a box outside it.
"""

from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

from dpp.data.image_records import Box
from dpp.system import files
from dpp.system.errors import UserError

TOLERANCE = 1e-5  # of a class score against the sum of its points, relative above 1


@dataclass(frozen=True)
class Part:
    """One part of a prototype on an image.

    Args:
        place: where it lies, (a' + m + offset, b' + n + offset).
        box: of the side of a cell, centred there.
        contribution: its share of the similarity (equation 7); None on the image that the
            prototype comes from, where no network was asked: each part equals what is under it.
    """

    place: tuple[float, float]
    box: Box
    contribution: float | None = None


@dataclass(frozen=True)
class Match:
    """A prototype on an image, where it is most similar.

    Args:
        prototype: its number in the network.
        label: its class.
        centre: row and column of the cell where it is centred, (a', b').
        similarity: the sum of the parts' contributions: a cosine of the paper's network (equation
            8), ProtoPNet's logarithm of a distance, TesNet's length of a projection, ProtoTree's
            exp(-distance).
        connection: to the class that is asked about; 0 in a tree, which has none.
        points: similarity times connection.
        parts: one for each part of the prototype; one in all if it is a single cell.
    """

    prototype: int
    label: int
    centre: tuple[int, int]
    similarity: float
    connection: float
    points: float
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class ClassScore:
    """Why an image has a class's score: "the points contributed by all prototypes within a class".

    The last layer also connects prototypes of other classes; stage 3 takes most of these
    connections to 0, not all.

    Args:
        label: the class.
        name: of the class.
        score: the network's logit.
        probability: its softmax.
        matches: of the class's own prototypes, most points first.
        others: the points of all other prototypes together.
    """

    label: int
    name: str
    score: float
    probability: float
    matches: tuple[Match, ...]
    others: float

    @property
    def total(self) -> float:
        """What the points come to: the score, up to rounding."""
        return sum(match.points for match in self.matches) + self.others

    @property
    def adds_up(self) -> bool:
        return abs(self.total - self.score) <= TOLERANCE * max(1, abs(self.score))


@dataclass(frozen=True)
class Reasoning:
    """Why an image was given its class (Figure 5).

    Args:
        image: its id in the data set, or its file.
        size: its width and height.
        cells: rows and columns of the map.
        run: the run's name.
        predicted: the class with the highest score.
        label: its true class, if that is known.
        classes: by default the predicted one, then the next.
    """

    image: str
    size: tuple[int, int]
    cells: tuple[int, int]
    run: str
    predicted: int
    label: int | None
    classes: tuple[ClassScore, ...]


@dataclass(frozen=True)
class Sighting:
    """A prototype on an image of the data set: where it comes from, or is found again.

    Args:
        prototype: its number.
        image: the data set's name for the image.
        label: the image's class.
        similarity: to the prototype; of the origin, to the prototype as it was before projection.
        size: the image's width and height.
        cells: rows and columns of the map.
        centre: the cell where it is centred.
        parts: as of a `Match`.
    """

    prototype: int
    image: str
    label: int
    similarity: float
    size: tuple[int, int]
    cells: tuple[int, int]
    centre: tuple[int, int]
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class LocalAnalysis:
    """The prototypes most similar to an image, over all classes, and where each comes from.

    The connections are those to the prototypes' own classes. `origins` has one for each match, and
    none at all if the network's prototypes were never projected.
    """

    image: str
    size: tuple[int, int]
    cells: tuple[int, int]
    run: str
    label: int | None
    matches: tuple[Match, ...]
    origins: tuple[Sighting, ...]


@dataclass(frozen=True)
class Neighbours:
    """The images most similar to a prototype, most similar first."""

    prototype: int
    label: int
    train: tuple[Sighting, ...]
    test: tuple[Sighting, ...]


@dataclass(frozen=True)
class GlobalAnalysis:
    """The neighbours of every prototype."""

    run: str
    count: int
    prototypes: tuple[Neighbours, ...]


@dataclass(frozen=True)
class Step:
    """A decision on the way through a ProtoTree."""

    node: int  # also the number of its prototype
    similarity: float  # exp(-distance) to the nearest patch
    place: tuple[int, int]  # row and column of that patch
    box: Box
    branch: str  # "right": the image has it; "left": it has not
    probability: float  # of that branch


@dataclass(frozen=True)
class TreePath:
    """Why a ProtoTree says what it says of an image: the way to one leaf.

    Args:
        image, size, cells, run, label: as of a `Reasoning`.
        predicted: the class that the tree gives the image.
        steps: from the root.
        leaf: where they end.
        probability: of the path: the product of the steps'.
        distribution: of the leaf, over the classes.
    """

    image: str
    size: tuple[int, int]
    cells: tuple[int, int]
    run: str
    predicted: int
    label: int | None
    steps: tuple[Step, ...]
    leaf: int
    probability: float
    distribution: tuple[float, ...]


@dataclass(frozen=True)
class Share:
    """How many of some parts are so; `of` is 0 where the data set says nothing of it."""

    count: int
    of: int

    @property
    def value(self) -> float | None:
        return self.count / self.of if self.of else None


@dataclass(frozen=True)
class PartShare:
    """How many parts of prototypes lie within one cell of a marked, visible part of the animal."""

    near: Share
    chance: Share  # the same of all cells of the same images


@dataclass(frozen=True)
class Accuracy:
    """Of one split, around the last projection."""

    split: str
    before: float
    projected: float
    final: float  # after the last layer was optimised, too


@dataclass(frozen=True)
class Audit:
    """What is to be known about a run's prototypes.

    Args:
        run: its name.
        prototypes: how many.
        accuracies: of validation and test images, before and after projection.
        duplicates: groups of equal prototypes of one class, by their numbers.
        source_images: how many images the prototypes come from.
        most_from_one_image: the largest number of prototypes that share one.
        off_image: parts whose centre is outside what the network saw of the image.
        on_background: of the others, where there are boxes: parts outside the animal's box.
        parts: near parts of the animal; chance is over the cells of each prototype's image.
    """

    run: str
    prototypes: int
    accuracies: tuple[Accuracy, ...]
    duplicates: tuple[tuple[int, ...], ...]
    source_images: int
    most_from_one_image: int
    off_image: Share
    on_background: Share
    parts: PartShare


Explanation = Reasoning | LocalAnalysis | GlobalAnalysis | TreePath | Audit
KINDS = {kind.__name__: kind for kind in get_args(Explanation)}


def write(path: Path, explanation: Explanation) -> None:
    """Writes an explanation as JSON, with the name of its kind."""
    kind = type(explanation).__name__
    files.write_json(Path(path), {"kind": kind} | asdict(explanation))


def read(path: Path) -> Explanation:
    """Reads what `write` wrote."""
    content = files.read_json(Path(path))
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind not in KINDS:
        raise UserError(f"{path} holds no explanation: its kind is none of {', '.join(KINDS)}")
    try:
        return _build(KINDS[kind], content)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not a whole {kind}: {error!r}") from error


def _build(kind, value):
    """A value of the given kind from what JSON keeps of it."""
    inner = get_args(kind)
    if is_dataclass(kind):
        kinds = get_type_hints(kind)
        return kind(**{name: _build(kinds[name], value[name]) for name in kinds})
    if kind is Box:
        return Box(*value)
    if get_origin(kind) is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_build(one, item) for one, item in zip(kinds, value, strict=True))
    return value
