"""One image at a time, as a network sees it and as it is: a record's, or a person's own."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpp.data.image_records import ImageRecord
from dpp.data.images import open_image, region_of, squeeze
from dpp.data.transforms import Geometry, normalise
from dpp.system.errors import UserError


@dataclass(frozen=True, eq=False)
class Picture:
    """An image as the network sees it, and as it is.

    Args:
        name: its id in the data set, or its file.
        tensor: (3, size, size), normalised.
        pixels: (height, width, 3) uint8, of the original.
        geometry: how the one lies in the other.
        label: its class, if that is known.
    """

    name: str
    tensor: Tensor
    pixels: np.ndarray
    geometry: Geometry
    label: int | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the original."""
        return self.pixels.shape[1], self.pixels.shape[0]


def load_picture(
    source: str | Path | ImageRecord,
    size: int,
    *,
    crop_to_box: bool = False,
    cell_centres: tuple[float, ...] | None = None,
) -> Picture:
    """Loads an image for a network.

    Args:
        source: a record; or a file, which is turned upright as its EXIF tag says, and taken whole.
        size: side of the square that the network sees.
        crop_to_box: show it what is in the record's box.
        cell_centres: where the network's cells look (`Backbone.cell_centres`).
    """
    if isinstance(source, ImageRecord):
        record, label = source, source.label
    else:
        path, label, crop_to_box = Path(source).expanduser(), None, False
        if not path.is_file():
            raise UserError(f"there is no image {path}")
        record = ImageRecord(str(source), path, -1, upright=True)
    image = open_image(record.path, record.upright)
    region = region_of(record, *image.size, crop_to_box)
    tensor = normalise(torch.from_numpy(squeeze(image, region, size).copy()))
    return Picture(
        record.id, tensor, np.asarray(image), Geometry(region, size, cell_centres), label
    )
