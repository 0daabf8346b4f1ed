"""The README's first picture: a trained prototype at rest and moved, where moving matters most."""

from typing import NamedTuple

import numpy as np

from dpp.analysis import Network, find_origin, following_study, part_following
from dpp.analysis.figure_data import apply_prototype, check_deformable
from dpp.analysis.offset_effect import by_need_of_moving
from dpp.data.image_records import ImageRecord
from dpp.explanations import Match, Sighting
from dpp.figures.marked_pictures import mark
from dpp.figures.moving_figures import Panel
from dpp.runs import Run, load_splits


class NeededMove(NamedTuple):
    """One prototype on its source, and on a test image at rest and moved."""

    prototype: int
    image: ImageRecord  # the test image
    true_parts: tuple[str, ...]  # that each part lands on most often on training images
    panels: dict[str, Panel]  # by title
    lost: float  # similarity, when the parts are held at rest
    shares: dict[str, float]  # of this network's parts on their true part, all test images


def find(run: Run, near: float = following_study.NEAR) -> NeededMove:
    """The test image that needs moving parts most, of all, and its class's most similar prototype.

    Chosen because moving matters most there (`offset_effect.by_need_of_moving`): it shows what the
    network can do, not what it usually does; `shares` say that.

    Args:
        run: with predicted offsets, on data with marked parts.
        near: how far a part may be from a true part that it lies on, as a share of the side.
    """
    network, splits = Network.of(run), load_splits(run.experiment, run.source)
    within = near * len(network.cell_centres)
    image = by_need_of_moving(network, splits.test, len(splits.test))[0]
    picture = network.picture(image)
    scores = network.inspect(picture.tensor[None]).scores[0]
    own = check_deformable(network).prototypes.classes == image.label
    prototype = int(scores.masked_fill(~own, -np.inf).argmax())
    followed = part_following.follow(network, splits.projection, splits.test, within=within)
    chosen = followed[(followed.prototype == prototype) & (followed.kind == "moved")]
    names = tuple(chosen.sort_values("part")["true part"])
    source = find_origin(network, prototype)
    origin = network.records[source.image]
    moved, held = (
        apply_prototype(network, picture, prototype, rigid=rigid).match for rigid in (False, True)
    )
    seen = {
        "the prototype, on its source": (origin, source),
        f"parts held at rest, similarity {held.similarity:.2f}": (image, held),
        f"parts moved, similarity {moved.similarity:.2f}": (image, moved),
    }
    panels = {title: panel_of(network, *one, names, within) for title, one in seen.items()}
    shares = dict(part_following.summarise(followed).share)
    return NeededMove(prototype, image, names, panels, moved.similarity - held.similarity, shares)


def panel_of(
    network: Network,
    record: ImageRecord,
    seen: Match | Sighting,
    names: tuple[str, ...],
    within: float,
) -> Panel:
    """An image with a prototype's parts, and where the true part of each of them is.

    Args:
        names: of the parts' true parts; of a pair, the one nearer to the part counts.
        within: cells from its true part at which a part still lies on it.
    """
    cells = (len(network.cell_centres),) * 2
    geometry, _ = network.geometry(record)
    places, on = [], []
    for part, name in zip(seen.parts, names, strict=True):
        marks = part_following.true_places(network, record, name)
        apart = np.linalg.norm(geometry.image_to_cell(marks, cells) - part.place, axis=1)
        nearest = int(apart.argmin()) if len(apart) else None
        places.append((np.nan, np.nan) if nearest is None else tuple(marks[nearest]))
        on.append(nearest is not None and bool(apart[nearest] <= within))
    return Panel(mark(network.picture(record).pixels, seen), np.array(places), tuple(on))
