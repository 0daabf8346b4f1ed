"""One part of one prototype on several birds, moved, at its mean offset and at rest: a picture."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpp import figures
from dpp.analysis import Network, following_study, part_following
from dpp.data.image_records import ImageRecord
from dpp.runs import Run

STYLES = {  # marker, face, edge
    "moved": ("o", figures.PART_COLOURS[4], "white"),
    "at mean": ("s", "none", figures.PART_COLOURS[1]),
    "at rest": ("D", "none", "white"),
    "true part": ("x", figures.PART_COLOURS[6], figures.PART_COLOURS[6]),
}


class Followed(NamedTuple):
    """Where one part lies on N images, row and column in pixels of the image's file."""

    prototype: int
    part: int
    true_part: str
    gained: float  # share of the images on which it lands on its true part, moved less at rest
    records: tuple[ImageRecord, ...]
    places: dict[str, np.ndarray]  # (N, 2), by state, and of the true part; NaN where hidden


def find(run: Run, count: int = 6, near: float = following_study.NEAR) -> Followed:
    """The part that gains most by moving, on the first test images of its class.

    Chosen because it is the best: it shows what following looks like, not how usual it is.

    Args:
        run: with predicted offsets, on data with marked parts.
        count: images that are shown.
        near: how far a part may be from a true part that it lands on, as a share of the side.
    """
    network, splits = Network.of(run), following_study.splits_of(run)
    within = near * len(network.cell_centres)
    given = (network, splits.projection, splits.test)
    keys = ["label", "prototype", "part"]
    shares = part_following.follow(*given, within=within).set_index([*keys, "kind"])
    gains = shares.share.unstack("kind")
    label, prototype, part = (gains["moved"] - gains["at rest"]).idxmax()
    name = shares["true part"][label, prototype, part, "moved"]
    same = part_following.held_at_mean(network, splits.projection)
    seen = part_following.land(network, splits.test)
    landings = {"moved": seen["moved"][label], "at rest": seen["at rest"][label]}
    landings["at mean"] = part_following.land(same, splits.test)["moved"][label]
    records = [one for one in splits.test.records if one.label == label][:count]
    number = int(np.flatnonzero(landings["moved"].prototypes == prototype)[0])
    cells = (len(network.cell_centres),) * 2
    places = {
        state: np.array(
            [
                network.geometry(record)[0].cell_to_image(place, cells)
                for record, place in zip(records, landing.places[:, number, part], strict=False)
            ]
        )
        for state, landing in landings.items()
    }
    places["true part"] = np.array(
        [_nearest_mark(*pair, name, network) for pair in zip(records, places["moved"], strict=True)]
    )
    gain = float((gains["moved"] - gains["at rest"]).max())
    return Followed(int(prototype), int(part), name, gain, tuple(records), places)


def _nearest_mark(record: ImageRecord, place: np.ndarray, name: str, network: Network):
    """(2,), row and column of the true part on an image; of a pair, the one nearer to a place."""
    own = part_following.true_places(network, record, name)
    return min(own, key=lambda mark: np.hypot(*(mark - place)), default=(np.nan, np.nan))


def draw(followed: Followed, network: Network) -> Figure:
    """The images side by side, with the part's places on each."""
    pictures = [network.picture(record).pixels for record in followed.records]
    figure, grid = figures.picture_grid(pictures, columns=3, side=2.1, colours=48)
    for place, axes in enumerate(grid):
        for state, (marker, face, edge) in STYLES.items():
            row, column = followed.places[state][place]
            axes.plot(column, row, marker, mfc=face, mec=edge, markersize=9, mew=1.8, clip_on=False)
    handles = [
        Line2D(
            [], [], linestyle="", marker=marker, mfc=face, mec="0.5" if edge == "white" else edge
        )
        for marker, face, edge in STYLES.values()
    ]
    style = {"loc": "outside lower center", "ncols": len(handles), "frameon": False}
    figure.legend(handles, list(STYLES), fontsize=8, **style)
    words = f"part {followed.part + 1} of prototype {followed.prototype}: {followed.true_part}"
    figure.suptitle(words, fontsize=9)
    return figure
