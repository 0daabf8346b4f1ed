"""Augmentation as torchvision's, and the way back from a tensor to the photograph."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from dpp.data.image_records import Box, ImageRecord
from dpp.data.images import decode, open_image
from dpp.data.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    LARGEST_ANGLE,
    LARGEST_SHEAR,
    Augmentation,
    Geometry,
    augment,
    draw_augmentation,
    normalise,
    sampling_matrices,
    to_pixels,
)


def augmented(pixels: torch.Tensor, augmentation: Augmentation, aspect: float) -> torch.Tensor:
    return augment(pixels[None], sampling_matrices([augmentation], [aspect]))[0]


def test_augmentation_that_does_nothing_gives_the_pixels_back():
    pixels = torch.randint(0, 256, (3, 14, 14), dtype=torch.uint8)
    same = augmented(pixels, Augmentation(0.0, 0.0, False), aspect=1.7)
    torch.testing.assert_close(same, pixels.float(), atol=1e-3, rtol=0)
    mirrored = augmented(pixels, Augmentation(0.0, 0.0, True), aspect=1.7)
    torch.testing.assert_close(mirrored, pixels.flip(-1).float(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("size", [(320, 160), (150, 300), (256, 256)])
@pytest.mark.parametrize(
    ("angle", "shear"), [(25.0, 0.0), (0.0, 15.0), (-25.0, 15.0), (17.0, -9.0)]
)
def test_augmentation_equals_torchvision_on_the_photograph_then_resize(
    tmp_path, size, angle, shear
):
    path = save_slopes(tmp_path / "image.png", *size)
    turned = v2.functional.affine(
        v2.functional.to_image(open_image(path)).float(),
        angle,
        translate=[0, 0],
        scale=1.0,
        shear=[shear, 0.0],
        interpolation=InterpolationMode.BILINEAR,
    )
    expected = v2.functional.resize(v2.functional.horizontal_flip(turned), [96, 96])
    pixels = torch.tensor(decode(ImageRecord("a", path, 0), 96, crop_to_box=False)[0])

    def difference(augmentation, aspect):
        """Away from the edge, at which we sample across it and torchvision does not."""
        found = augmented(pixels, augmentation, aspect)
        grey = augmented(torch.full_like(pixels, 128), augmentation, aspect)
        edge = ((grey - 128).abs() > 0.1).float()
        away = torch.nn.functional.max_pool2d(edge, 5, 1, 2) == 0
        assert away.float().mean() > 0.5
        return (found - expected).abs()[away].max()

    aspect = size[0] / size[1]
    assert difference(Augmentation(angle, shear, True), aspect) < 2  # of 255
    for wrong in (Augmentation(-angle, -shear, True), Augmentation(angle, shear, False)):
        assert difference(wrong, aspect) > 20
    if aspect != 1:
        assert difference(Augmentation(angle, shear, True), 1.0) > 20


def save_slopes(path, width: int, height: int):
    """Long waves of three directions."""
    rows, columns = np.mgrid[0:height, 0:width]
    across, down = 4 * columns / width, 4 * rows / height
    waves = np.stack([np.sin(across), np.cos(down), np.sin(across + down)], axis=2)
    Image.fromarray((128 + 120 * waves).astype(np.uint8)).save(path)
    return path


def test_augmentation_ignores_the_aspect_only_where_it_should():
    pixels = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8)
    turned = Augmentation(20.0, 5.0, False)
    assert not torch.allclose(augmented(pixels, turned, 1.0), augmented(pixels, turned, 2.0))


def test_augmentation_is_drawn_within_row_32_and_depends_on_every_argument():
    drawn = [draw_augmentation(1, 2, index) for index in range(2000)]
    angles, shears, flips = np.array(drawn).T
    assert np.abs(angles).max() <= LARGEST_ANGLE and np.abs(shears).max() <= LARGEST_SHEAR
    assert angles.max() > 24 and angles.min() < -24 and shears.max() > 14 and shears.min() < -14
    assert abs(flips.mean() - 0.5) < 0.05 and abs(angles.mean()) < 1.5
    assert draw_augmentation(1, 2, 3) == draw_augmentation(1, 2, 3)
    assert (
        len({draw_augmentation(*key) for key in ((1, 2, 3), (0, 2, 3), (1, 0, 3), (1, 2, 0))}) == 4
    )


def test_normalise_uses_imagenets_mean_and_deviation_and_is_undone():
    pixels = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    expected = v2.Compose(
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    )(pixels)
    torch.testing.assert_close(normalise(pixels), expected)
    assert torch.equal(to_pixels(normalise(pixels)), pixels)


@pytest.mark.parametrize("crop_to_box", [False, True])
@pytest.mark.parametrize(("row", "column"), [(40, 100), (90, 31), (62, 150)])
def test_geometry_leads_from_a_bright_cell_back_to_the_bright_spot(
    tmp_path, crop_to_box, row, column
):
    pixels = np.zeros((120, 200, 3), dtype=np.uint8)
    pixels[row - 2 : row + 3, column - 2 : column + 3] = 255
    path = tmp_path / "spot.png"
    Image.fromarray(pixels).save(path)
    record = ImageRecord("a", path, 0, Box(20.5, 22.0, 171.0, 300.0))
    tensor, image_size = decode(record, 112, crop_to_box)
    geometry = Geometry.of(record, image_size, 112, crop_to_box)

    light = tensor[0].astype(float)
    rows, columns = np.mgrid[0:112, 0:112] + 0.5
    centre = np.array([(light * rows).sum(), (light * columns).sum()]) / light.sum()
    spot = np.array([row + 0.5, column + 0.5])  # the centre of a pixel of the photograph
    np.testing.assert_allclose(geometry.tensor_to_image(centre), spot, atol=0.3)
    np.testing.assert_allclose(geometry.image_to_tensor(spot), centre, atol=0.3)

    cells = light.reshape(14, 8, 14, 8).mean(axis=(1, 3))
    brightest = np.unravel_index(cells.argmax(), cells.shape)
    box = geometry.cell_box(brightest, (14, 14))
    assert box.left - 2 <= column + 0.5 <= box.right + 2
    assert box.top - 2 <= row + 0.5 <= box.bottom + 2
    found = geometry.cell_to_image(brightest, (14, 14))
    np.testing.assert_allclose(found, [(box.top + box.bottom) / 2, (box.left + box.right) / 2])


def test_geometry_puts_a_cell_at_its_centre():
    geometry = Geometry(Box(10, 20, 210, 120), size=224)
    np.testing.assert_allclose(geometry.cell_to_tensor([0, 0], (14, 14)), [8, 8])
    np.testing.assert_allclose(geometry.cell_to_tensor([13, 6.5], (14, 14)), [216, 112])
    np.testing.assert_allclose(geometry.cell_to_tensor([0, 0], (7, 14)), [16, 8])
    np.testing.assert_allclose(geometry.cell_to_image([6.5, 6.5], (14, 14)), [70, 110])
    np.testing.assert_allclose(
        geometry.tensor_to_image([[0, 0], [224, 224]]), [[20, 10], [120, 210]]
    )
    assert geometry.aspect == 2.0


def test_geometry_round_trips():
    geometry = Geometry(Box(3, 5, 97, 48), size=64)
    places = np.random.default_rng(0).uniform(-2, 9, (5, 3, 2))
    cells = (7, 9)
    tensor = geometry.cell_to_tensor(places, cells)
    np.testing.assert_allclose(geometry.tensor_to_cell(tensor, cells), places)
    image = geometry.cell_to_image(places, cells)
    np.testing.assert_allclose(geometry.image_to_cell(image, cells), places)
    np.testing.assert_allclose(geometry.image_to_tensor(image), tensor)


RESNET = (0.5, 8.5, 24.5, 40.5, 56.5, 64.5)  # six cells of 16 pixels on three of 32


def test_geometry_puts_a_place_where_it_looks():
    geometry = Geometry(Box(10, 20, 106, 68), 96, RESNET)
    found = geometry.cell_to_tensor([[0, 1], [2.5, 4.5], [-1, 6]], (6, 6))
    np.testing.assert_allclose(found, [[0.5, 8.5], [32.5, 60.5], [-15.5, 80.5]])
    box = geometry.cell_box((0, 3), (6, 6))  # as large as any, also at the edge
    np.testing.assert_allclose(box, [10 + 32.5, 20 - 3.75, 10 + 48.5, 20 + 4.25])


def test_geometry_that_knows_the_looks_round_trips():
    geometry = Geometry(Box(3, 5, 97, 48), 96, RESNET)
    places = np.random.default_rng(0).uniform(-2, 8, (5, 3, 2))
    image = geometry.cell_to_image(places, (6, 6))
    np.testing.assert_allclose(geometry.image_to_cell(image, (6, 6)), places)


def test_geometry_without_looks_is_that_of_cells_that_look_below():
    below = tuple((cell + 0.5) * 16 for cell in range(6))
    region, places = Box(3, 5, 97, 48), np.random.default_rng(0).uniform(-2, 8, (7, 2))
    plain, knowing = Geometry(region, 96), Geometry(region, 96, below)
    np.testing.assert_allclose(
        knowing.cell_to_image(places, (6, 6)), plain.cell_to_image(places, (6, 6))
    )
    np.testing.assert_allclose(
        knowing.image_to_cell(places, (6, 6)), plain.image_to_cell(places, (6, 6))
    )


def test_geometry_refuses_a_map_of_another_size():
    with pytest.raises(ValueError, match="6 rows and columns"):
        Geometry(Box(0, 0, 96, 96), 96, RESNET).cell_to_tensor([0, 0], (7, 7))
