"""From pixels to a network's input, augmented or not, and back from its coordinates to pixels.

Coordinates here are (row, column), measured from the top left corner: the first tensor pixel covers
the square from 0 to 1 and has its centre at 0.5. Latent coordinates alone count centres: cell
(0, 0) means the centre of the first cell, as the offsets of a prototype's parts do.

A map covers the tensor with its cells, but the centre of a cell's receptive field need not be under
the cell: padding and strides displace it, by nearly a cell in a ResNet
(`dpp.backbones.backbone.Backbone.cell_centres`). A geometry that is given these centres uses them;
one that is not uses the cells' own middles.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional
from torchvision.transforms import v2

from dpp.data.image_records import Box, ImageRecord
from dpp.data.images import region_of

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LARGEST_ANGLE = 25.0  # degrees, as the released code has it
LARGEST_SHEAR = 15.0  # degrees, along the rows
CHUNK = 150_000  # values that are augmented at a time: fresh large buffers cost page faults


class Augmentation(NamedTuple):
    """A random affine map about the image's centre, then perhaps a mirror image."""

    angle: float  # degrees, clockwise
    shear: float  # degrees
    flip: bool


def draw_augmentation(seed: int, epoch: int, index: int) -> Augmentation:
    """The augmentation of one image in one epoch: a function of its arguments and nothing else."""
    angle, shear, flip = np.random.default_rng((seed, epoch, index)).random(3)
    return Augmentation(
        angle=float(2 * angle - 1) * LARGEST_ANGLE,
        shear=float(2 * shear - 1) * LARGEST_SHEAR,
        flip=bool(flip < 0.5),
    )


def choose_view(seed: int, epoch: int, image: int, views: int) -> int:
    """Which of an image's views, counted from 1, an epoch shows.

    Each view comes once in so many epochs, in an order of the image's own that is drawn anew each
    time: a function of its arguments and nothing else.
    """
    turn, place = divmod(epoch, views)
    return 1 + int(np.random.default_rng((seed, turn, image)).permutation(views)[place])


def image_number(id: str) -> int:
    """A number for an image's id, the same on every machine, to seed what is drawn for it."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], "little")


def sampling_matrices(
    augmentations: Sequence[Augmentation], aspects: Sequence[float]
) -> torch.Tensor:
    """Maps coordinates of the augmented square to those of the original square.

    The affine map applies in the image's own proportions, before it was squeezed to a square: it
    rotates the photograph, as if affine map, flip and resize followed each other. Resizing first
    only saves work, and allows the resized image to be cached.

    Args:
        augmentations: N of them.
        aspects: width over height of what was squeezed to a square, N of them.

    Returns:
        (N, 2, 2), for (x, y) between -1 and 1 from the square's centre.
    """
    angle, shear, flip = np.array(augmentations, dtype=np.float64).T
    angle, slope = np.radians(angle), np.tan(np.radians(shear))
    aspect = np.asarray(aspects, dtype=np.float64)
    # The inverse of rotation times shear, whose determinant is 1.
    inverse = np.empty((len(angle), 2, 2))
    inverse[:, 0, 0] = np.cos(angle) - np.sin(angle) * slope
    inverse[:, 0, 1] = (np.sin(angle) + np.cos(angle) * slope) / aspect
    inverse[:, 1, 0] = -np.sin(angle) * aspect
    inverse[:, 1, 1] = np.cos(angle)
    inverse[:, :, 0] *= np.where(flip, -1, 1)[:, None]
    return torch.from_numpy(inverse.astype(np.float32))


def augment(pixels: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Resamples images through the matrices of `sampling_matrices`; black outside the image.

    Bicubic, since bilinear sampling blurs: batch norm would learn the statistics of blurred images,
    which those of small un-augmented images are not.

    Args:
        pixels: (N, 3, size, size) uint8.
        matrices: (N, 2, 2).

    Returns:
        (N, 3, size, size) float32, between 0 and 255.
    """
    augmented = torch.empty(pixels.shape)
    few = max(1, CHUNK // pixels[0].numel())
    for chunk in (slice(first, first + few) for first in range(0, len(pixels), few)):
        theta = functional.pad(matrices[chunk], (0, 1))  # (few, 2, 3), no translation
        shape = list(pixels[chunk].shape)
        grid = functional.affine_grid(theta, shape, align_corners=False)
        augmented[chunk] = functional.grid_sample(
            pixels[chunk].float(), grid, mode="bicubic", align_corners=False
        )
    return augmented.clamp_(0, 255)


def normalise(pixels: torch.Tensor, in_place: bool = False) -> torch.Tensor:
    """What a network takes, from pixels between 0 and 255: ImageNet's mean and deviation.

    Args:
        pixels: (..., 3, H, W), uint8 or float.
        in_place: write over pixels that are float already.
    """
    fresh = not pixels.is_floating_point()
    mean, std = ([255 * value for value in values] for values in (IMAGENET_MEAN, IMAGENET_STD))
    return v2.functional.normalize(pixels.float(), mean, std, inplace=in_place or fresh)


def to_pixels(tensor: torch.Tensor) -> torch.Tensor:
    """Undoes `normalise`, for figures: (..., 3, H, W) float to uint8."""
    shape = (3, 1, 1)
    mean, std = (torch.tensor(v).view(shape).to(tensor) for v in (IMAGENET_MEAN, IMAGENET_STD))
    return ((tensor * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class Geometry:
    """How an un-augmented tensor lies in the image that it came from.

    Args:
        region: the part of the original image that was resized, in its pixels.
        size: side of the tensor.
        cell_centres: of the receptive fields of each row or column of cells, in the tensor, from
            the first to the last; None if they are the middles of the cells themselves.

    """

    region: Box
    size: int
    cell_centres: tuple[float, ...] | None = None

    @classmethod
    def of(
        cls,
        record: ImageRecord,
        image_size: tuple[int, int],
        size: int,
        crop_to_box: bool = False,
        cell_centres: tuple[float, ...] | None = None,
    ) -> "Geometry":
        """The geometry of a record whose image has this width and height."""
        return cls(region_of(record, *image_size, crop_to_box), size, cell_centres)

    @property
    def aspect(self) -> float:
        """Width over height of the region."""
        left, top, right, bottom = self.region
        return (right - left) / (bottom - top)

    def cell_to_tensor(self, places: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
        """Latent places, whole or fractional, (..., 2), of a map of `cells` rows and columns."""
        places = np.asarray(places, dtype=float)
        pace = self.size / np.asarray(cells)
        if self.cell_centres is None:
            return (places + 0.5) * pace
        return follow(places, np.arange(len(self.cell_centres)), self._check_centres(cells), pace)

    def tensor_to_cell(self, places: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
        places = np.asarray(places, dtype=float)
        pace = np.asarray(cells) / self.size
        if self.cell_centres is None:
            return places * pace - 0.5
        return follow(places, self._check_centres(cells), np.arange(len(self.cell_centres)), pace)

    def tensor_to_image(self, places: np.ndarray) -> np.ndarray:
        """Tensor places (..., 2) as rows and columns of the original image."""
        return np.asarray(places, dtype=float) * self._scale() + self._corner()

    def image_to_tensor(self, places: np.ndarray) -> np.ndarray:
        return (np.asarray(places, dtype=float) - self._corner()) / self._scale()

    def cell_to_image(self, places: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
        return self.tensor_to_image(self.cell_to_tensor(places, cells))

    def image_to_cell(self, places: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
        return self.tensor_to_cell(self.image_to_tensor(places), cells)

    def cell_box(self, place: tuple[float, float], cells: tuple[int, int]) -> Box:
        """The rectangle of the original image, of a cell's sides, around where a place looks."""
        return Box(*self.cell_boxes(place, cells).tolist())

    def cell_boxes(self, places: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
        """Left, top, right and bottom, (..., 4), of such rectangles at places (..., 2)."""
        centres = self.cell_to_image(places, cells)
        half = self._scale() * self.size / np.asarray(cells) / 2
        return np.concatenate([(centres - half)[..., ::-1], (centres + half)[..., ::-1]], axis=-1)

    def _check_centres(self, cells: tuple[int, int]) -> np.ndarray:
        if tuple(cells) != (len(self.cell_centres),) * 2:
            raise ValueError(
                f"a map of {len(self.cell_centres)} rows and columns has no {cells} cells"
            )
        return np.asarray(self.cell_centres)

    def _corner(self) -> np.ndarray:
        return np.array([self.region.top, self.region.left])

    def _scale(self) -> np.ndarray:
        left, top, right, bottom = self.region
        return np.array([bottom - top, right - left]) / self.size


def follow(values: np.ndarray, start: np.ndarray, end: np.ndarray, pace: np.ndarray) -> np.ndarray:
    """Maps a rising sequence onto another, linear in between; beyond their ends at a given pace."""
    inside = values.clip(start[0], start[-1])
    return np.interp(inside, start, end) + (values - inside) * pace
