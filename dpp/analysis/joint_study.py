"""How parts answer when one joint of a drawn bird turns and all else stays."""

import functools
import itertools
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dpp.analysis.figure_data import check_deformable
from dpp.analysis.network import Network
from dpp.analysis.part_following import WITHIN
from dpp.data.image_records import Box
from dpp.data.transforms import Geometry, normalise
from dpp.drawn import posebirds
from dpp.drawn.species import kinds
from dpp.drawn.studio import generator
from dpp.system.errors import UserError

JOINTS = ("neck", "head", "tail")  # what turns alone: the perch stays where it is
ANGLES = (-30.0, 30.0)  # degrees
SPLIT = "joints"  # whose individuals are in no data set
KEPT = 2000  # drawings that are kept for other networks: 50 kB each at 64 pixels


class Turned(NamedTuple):
    """A bird as it is, and with one joint turned."""

    joint: str
    angle: float
    images: Tensor  # (2, 3, size, size): before and after
    parts: dict[str, np.ndarray]  # (2, 2), row and column in pixels, of those visible on both


@functools.lru_cache(maxsize=KEPT // 2)
def turn_joint(kind, index: int, size: int, pose: float, joint: str, angle: float) -> Turned:
    """Draws one individual of a class twice: the second time, one joint is turned."""
    drawings = [
        posebirds.draw_image(kind, generator("posebirds", 0, SPLIT, kind, index), size, pose, turn)
        for turn in (None, {joint: angle})
    ]
    pixels = np.stack([drawing.pixels for drawing in drawings]).transpose(0, 3, 1, 2)
    before, after = (drawing.parts for drawing in drawings)
    both = {name: np.array([before[name], after[name]])[:, ::-1] for name in before.keys() & after}
    return Turned(joint, angle, normalise(torch.from_numpy(pixels)), both)


@torch.no_grad()
def answer_to_joints(
    network: Network, *, birds: int = 10, pose: float = 1.0, within: float = WITHIN
) -> pd.DataFrame:
    """How far parts go when the true part that they lie on goes somewhere.

    Birds of each class are drawn, then each again for every joint of `JOINTS` and angle of
    `ANGLES`. A part counts if, on the bird as it was, the nearest true part is within reach and is
    one that the joint moves: that is the true part it should go with.

    Args:
        network: a Deformable ProtoPNet for PoseBirds.
        birds: of each class.
        pose: strength of the pose variation before the joint is turned.
        within: how far a part may be from the true part, in cells.

    Returns:
        A row for each such part: `joint`, `angle`, `label`, `bird`, `prototype`, `part`,
        `true part`; how far the true part went, `true down` and `true right`, and how far the part
        did, `down` and `right`, in cells.
    """
    model, names = check_deformable(network), network.source.class_names
    if list(names) != posebirds.class_names(len(names)):
        raise UserError(f"{network.source.name} is not PoseBirds: only its birds can be drawn anew")
    owners, rows = torch.tensor(network.labels), []
    view = Geometry(Box(0, 0, network.size, network.size), network.size, network.cell_centres)
    turns = list(itertools.product(range(birds), JOINTS, ANGLES))
    for label, kind in enumerate(kinds(len(names), base=False)):
        numbers = (owners == label).nonzero().flatten()
        drawn = [turn_joint(kind, bird, network.size, pose, *turn) for bird, *turn in turns]
        output = network.inspect(torch.cat([turned.images for turned in drawn]))
        cells = tuple(output.z.shape[2:])
        places = model.part_places(output, numbers).cpu().unflatten(0, (-1, 2))  # of each pair
        for (bird, joint, angle), turned, pair in zip(turns, drawn, places.numpy(), strict=True):
            about = {"joint": joint, "angle": angle, "label": label, "bird": bird}
            marks = {name: view.image_to_cell(place, cells) for name, place in turned.parts.items()}
            found = _answers(pair, marks, within)  # pair: (2, Q, parts, 2)
            rows += [about | {"prototype": int(numbers[q])} | row for q, row in found]
    return pd.DataFrame(rows)


def _answers(places: np.ndarray, marks: dict[str, np.ndarray], within: float):
    """For each part near a true part that moved: its prototype's index, and a row."""
    moved = {name: mark for name, mark in marks.items() if np.abs(mark[1] - mark[0]).max() > 1e-3}
    for number, part in np.ndindex(places.shape[1:3]):
        before, after = places[:, number, part]
        apart = {name: np.linalg.norm(mark[0] - before) for name, mark in marks.items()}
        nearest = min(apart, key=apart.get, default=None)
        if nearest not in moved or apart[nearest] > within:
            continue
        true, own = marks[nearest][1] - marks[nearest][0], after - before
        yield (
            number,
            {
                "part": part,
                "true part": nearest,
                "true down": true[0],
                "true right": true[1],
                "down": own[0],
                "right": own[1],
            },
        )


def slope_of(answers: pd.DataFrame) -> pd.Series:
    """How parts answer on the whole: the least-squares line through the origin.

    Returns:
        `slope`, 1 for parts that go where their true parts go, 0 for parts that stay; `R2`, the
        share of the parts' squared movement that the line explains; `true`, the median of how far
        true parts went, and `own` of how far the parts did, in cells; `count`.
    """
    if answers.empty:
        return pd.Series({"slope": np.nan, "R2": np.nan, "true": np.nan, "own": np.nan, "count": 0})
    true = answers[["true down", "true right"]].to_numpy(float).ravel()
    own = answers[["down", "right"]].to_numpy(float).ravel()
    slope = (true @ own) / (true @ true)
    left = own - slope * true
    lengths = (np.linalg.norm(one.reshape(-1, 2), axis=1) for one in (true, own))
    far, went = map(np.median, lengths)
    explained = 1 - (left @ left) / (own @ own) if own.any() else np.nan
    values = {"slope": slope, "R2": explained, "true": far, "own": went, "count": len(answers)}
    return pd.Series(values)
