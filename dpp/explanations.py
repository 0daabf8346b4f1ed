"""Explanations as data, for figures and JSON files: no networks, no pixels.

Places are (row, column) in the latent map, in cells from the centre of the first one. Boxes are in
pixels of the original image, after its EXIF rotation; a part that has moved off the image has a box
outside it.
"""

from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

from dpp.data.image_records import Box
from dpp.system import files
from dpp.system.errors import UserError

TOLERANCE = 1e-5  # between a class score and the sum of its points; relative above 1


@dataclass(frozen=True)
class Part:
    """One part of a prototype on an image.

    Args:
        place: row and column, (a' + m + offset, b' + n + offset).
        box: as large as a cell, centred there.
        contribution: its share of the similarity (equation 7); None on the prototype's source
            image, where no network was run: each part equals the feature under it.
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
        connection: to the explained class; 0 in a tree, which has none.
        points: similarity times connection.
        parts: of the prototype; a single one if it has the size of a cell.
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

    The last layer also connects prototypes of other classes; stage 3 reduces most of these
    connections to 0, but not all.

    Args:
        label: the class.
        name: of the class.
        score: the network's logit.
        probability: its softmax.
        matches: of the class's own prototypes, most points first.
        others: the points of all other prototypes together.
        largest_others: those of other classes that give or take most points, largest amount first.
    """

    label: int
    name: str
    score: float
    probability: float
    matches: tuple[Match, ...]
    others: float
    largest_others: tuple[Match, ...] = ()

    @property
    def total(self) -> float:
        """The sum of all points: the score, up to rounding."""
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
        warning: if the image is far from the training images; otherwise empty.
    """

    image: str
    size: tuple[int, int]
    cells: tuple[int, int]
    run: str
    predicted: int
    label: int | None
    classes: tuple[ClassScore, ...]
    warning: str = ""


@dataclass(frozen=True)
class Sighting:
    """A prototype on an image of the data set: its source image or a similar one.

    Args:
        prototype: its number.
        image: the data set's name for the image.
        label: the image's class.
        similarity: to the prototype; of the source, to the prototype before projection.
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
    """The prototypes most similar to an image, over all classes, and their source images.

    The connections are those to the prototypes' own classes. `origins` has one entry for each
    match, or is empty if the network's prototypes were not projected.
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
    """A decision on the path through a ProtoTree."""

    node: int  # also the number of its prototype
    similarity: float  # exp(-distance) to the nearest patch
    place: tuple[int, int]  # row and column of that patch
    box: Box
    branch: str  # "right" if the prototype is present in the image, "left" if it is absent
    probability: float  # of that branch


@dataclass(frozen=True)
class TreePath:
    """Why a ProtoTree gives an image its class: the path to one leaf.

    Args:
        image, size, cells, run, label, warning: as of a `Reasoning`.
        predicted: the class with the highest probability.
        steps: decisions, from the root.
        leaf: at the end of the path.
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
    warning: str = ""


@dataclass(frozen=True)
class Share:
    """A count out of a total; `of` is 0 if the data set has no such annotation."""

    count: int
    of: int

    @property
    def value(self) -> float | None:
        return self.count / self.of if self.of else None


@dataclass(frozen=True)
class PartShare:
    """How many parts of prototypes lie within one cell of a marked, visible part of the animal."""

    near: Share
    chance: Share  # the same for all cells of the same images


@dataclass(frozen=True)
class Accuracy:
    """The accuracy on one split, before and after the last projection."""

    split: str
    before: float
    projected: float
    final: float  # after the last layer was optimised


@dataclass(frozen=True)
class Collapse:
    """How far the prototypes of one class have become one.

    Two of them share a place if they come from the same image and their centres there are less
    than a part apart, in rows and in columns; a prototype is compared with the first of each place.

    Args:
        label: the class; None for all prototypes of a tree, which belong to no class.
        prototypes: how many have a source image.
        images: how many distinct source images they have.
        places: the prototypes at each place, by their numbers.
        mean_cosine: of all pairs of them; None if there is only one.
        largest_cosine: of all pairs.
    """

    label: int | None
    prototypes: int
    images: int
    places: tuple[tuple[int, ...], ...]
    mean_cosine: float | None
    largest_cosine: float | None

    @property
    def duplicates(self) -> int:
        """How many prototypes share the place of an earlier one."""
        return self.prototypes - len(self.places)


@dataclass(frozen=True)
class Audit:
    """Checks of a run's prototypes.

    Args:
        run: its name.
        prototypes: how many.
        accuracies: of validation and test images, before and after projection.
        duplicates: groups of equal prototypes of one class, by their numbers.
        source_images: the number of distinct source images.
        most_from_one_image: the largest number of prototypes with the same source image.
        off_image: parts whose centre is outside the image as the network sees it.
        on_background: parts on the image but outside the animal's box, if boxes are annotated.
        parts: parts near a marked part of the animal; chance is over the cells of the images.
        collapse: of each class that has prototypes; empty in files of earlier versions.
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
    collapse: tuple[Collapse, ...] = ()

    @property
    def shared_places(self) -> Share:
        """Prototypes at the place of an earlier one of their class."""
        projected = sum(one.prototypes for one in self.collapse)
        return Share(sum(one.duplicates for one in self.collapse), projected)


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
        raise UserError(f"{path} is not an explanation: its kind is none of {', '.join(KINDS)}")
    try:
        return _build(KINDS[kind], content)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not a complete {kind}: {error!r}") from error


def _build(kind, value):
    """A value of the given type from its JSON form."""
    inner = get_args(kind)
    if is_dataclass(kind):
        kinds = get_type_hints(kind)
        return kind(**{name: _build(kinds[name], value[name]) for name in kinds if name in value})
    if kind is Box:
        return Box(*value)
    if get_origin(kind) is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_build(one, item) for one, item in zip(kinds, value, strict=True))
    return value
