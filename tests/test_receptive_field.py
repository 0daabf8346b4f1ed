"""Effective receptive fields of networks whose fields are known, and where boxes are put."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_analysis import Brightness, displaced_brightness, make_data, paint_spot, seek_light
from torch import nn

from dpp.analysis import receptive_field
from dpp.data.batches import ImageDataset
from dpp.data.cache import PixelStore
from dpp.data.image_records import Box
from dpp.data.transforms import Geometry

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def images():
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_field_of_cells_that_see_the_square_below_them_is_that_square(images):
    backbone = Brightness(16)
    found = receptive_field.effective_field(
        backbone, images, [(0, 0), (2, 1)], backbone.cell_centres(64)
    )
    assert found.down.tolist() == pytest.approx([8, 40])
    assert found.right.tolist() == pytest.approx([8, 24])
    # of 16 x 16 equal pixels, a square of side 12 is the first to hold a half, 16 nine tenths
    assert found.half.tolist() == [12, 12] and found.most.tolist() == [16, 16]
    away = found[[name for name in found if name.startswith("from")]]
    assert np.abs(away.to_numpy()).max() == pytest.approx(0, abs=1e-6)


def test_displaced_field_is_displaced(images):
    backbone = displaced_brightness()
    images = nn.functional.interpolate(images, 224)
    cells = receptive_field.inner_cells(14)
    found = receptive_field.effective_field(backbone, images, cells, backbone.cell_centres(224))
    assert found[["from field down", "from field right"]].abs().to_numpy().max() < 0.5
    displaced = found[["from cell down", "from cell right"]].mean()
    assert displaced.tolist() == pytest.approx([-1, -1], abs=0.3)


def test_weights_are_the_squared_jacobian_of_the_direction():
    """Of a backbone with three channels at one cell, against derivatives of each of them."""
    torch.manual_seed(0)
    backbone = nn.Conv2d(3, 3, 4).double()
    image = torch.rand(1, 3, 4, 4, dtype=torch.double)
    jacobian = torch.autograd.functional.jacobian(
        lambda one: nn.functional.normalize(backbone(one)[0, :, 0, 0], dim=0), image
    )
    expected = jacobian.square().sum(dim=(0, 1, 2))
    found = receptive_field.pixel_weights(backbone, image, (0, 0), probes=4000)
    torch.testing.assert_close(found, expected / expected.sum(), atol=4e-3, rtol=0.05)


def test_inner_cells_are_on_the_map_however_small_it_is():
    assert receptive_field.inner_cells(14, 3)[0] == (4, 4)
    for count in range(1, 9):
        assert all(
            0 <= place < count for cell in receptive_field.inner_cells(count) for place in cell
        )


def test_quantile_is_linear_within_a_pixel():
    assert receptive_field.weighted_quantile(np.array([1.0, 2.0, 1.0]), 0.5) == 1.5
    assert receptive_field.weighted_quantile(np.array([0.0, 4.0]), 0.25) == 1.25


def test_square_that_holds_a_share_is_the_smallest_of_all_tried():
    weights = np.random.default_rng(0).random((9, 9))
    middles = np.arange(9) + 0.5
    for share in (0.3, 0.5, 0.9):
        found = receptive_field.containing_side(weights, (4.5, 3.5), share)
        for side in range(1, 20, 2):
            inside = (np.abs(middles - 4.5) < side / 2)[:, None] & (
                np.abs(middles - 3.5) < side / 2
            )
            holds = weights[inside].sum() >= share * weights.sum()
            assert holds == (side >= found)


def test_placements_of_a_box_are_half_a_cell_and_the_layers_displacement_apart():
    view = Geometry(Box(0, 0, 64, 64), 64, tuple(8 * place + 1.0 for place in range(8)))
    where = {
        name: receptive_field.placed(view, name, 8).cell_to_image((3, 2.5), (8, 8)).tolist()
        for name in receptive_field.PLACEMENTS
    }
    assert where == {"receptive field": [25, 21], "paper": [24, 20], "cell": [28, 24]}


def test_errors_of_placements_are_distances_to_what_cells_see():
    """A cell of 8 pixels, whose layers look at (28, 20) of it and whose gradients at (28, 26)."""
    gaps = {"from field down": 0, "from field right": 6 / 8, "from cell down": 0}
    fields = pd.DataFrame([gaps | {"from cell right": 1 / 8}, gaps | {"from cell right": 3 / 8}])
    found = receptive_field.placement_errors(fields)
    assert found["receptive field"] == 0.75 and found["cell"] == 0.25
    assert found["paper"] == pytest.approx(np.hypot(0.5, 0.75))
    assert list(found.index) == list(receptive_field.PLACEMENTS)


def test_placement_below_the_cell_wins_where_cells_look_below_them(tmp_path):
    """Every beak is a bright spot on black, and the first class's prototype seeks light."""
    data = make_data(tmp_path / "cub", classes=2, train=2, test=3)
    bright = []
    for record in data.splits.test.records:
        if record.label == 0:
            beak = record.parts[0]._replace(x=20.0 + 3 * len(bright), y=15.0)
            spot = (int(beak.x), int(beak.y))
            paint_spot((40, 30), spot, (1, 1)).save(tmp_path / f"{record.id}.png")
            hidden = tuple(part._replace(visible=False) for part in record.parts[1:])
            path = tmp_path / f"{record.id}.png"
            bright.append(replace(record, path=path, parts=(beak, *hidden)))
    network = seek_light(data.source)
    store = PixelStore(bright, network.size, keep="memory")
    found = receptive_field.compare_placements(network, ImageDataset(bright, store))
    assert found.near["cell"] == found.near["receptive field"] == 1
    assert found.background.between(0, 1).all() and found.chance.between(0.001, 0.2).all()
    # beaks are a cell apart: near that of the next image, but not, from the last, of the first
    assert found.elsewhere["cell"] == pytest.approx(2 / 3)
    shifted = network.exchange(backbone=Shifted(16))
    found = receptive_field.compare_placements(shifted, ImageDataset(bright, store))
    assert found.near["receptive field"] == 1 and found.near["cell"] == 0


class Shifted(Brightness):
    """Looks two cells further down and right than it lies."""

    def forward(self, images):
        return super().forward(images.roll((-32, -32), dims=(2, 3)))

    def cell_centres(self, size):
        return tuple(place + 32 for place in super().cell_centres(size))
