"""The real CUB subset, which is never committed, through the real reader."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpp import data
from dpp.data.batches import make_loader, make_splits
from dpp.data.image_records import images_per_class
from dpp.data.images import clip_box, open_image
from dpp.data.transforms import to_pixels
from dpp.system.paths import ROOT

REALDATA = Path(os.environ.get("DPP_REALDATA") or ROOT.parent / "shared" / "realdata")
CUB = REALDATA / "CUB_200_2011"
pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(
        not CUB.is_dir(), reason=f"no CUB subset at {CUB}: set DPP_REALDATA to the folder above it"
    ),
]


@pytest.fixture(scope="module")
def source():
    return data.read_cub(CUB)


def test_real_cub_has_its_classes_and_split(source):
    assert source.counts() == (1185, 600, 585)
    assert len(source.class_names) == 20 and len(source.part_names) == 15
    assert images_per_class(source.train, 20).tolist() == [30] * 20
    assert {len(record.parts) for record in source.records} == {15}


def test_real_boxes_lie_in_the_image_and_hold_the_visible_parts(source):
    inside = visible = 0
    for record in source.records[::10]:
        image = open_image(record.path)
        box = clip_box(record.box, *image.size)
        assert box is not None
        for part in record.parts:
            visible += part.visible
            inside += part.visible and (
                box.left - 1 <= part.x <= box.right + 1 and box.top - 1 <= part.y <= box.bottom + 1
            )
    assert visible > 1000 and inside / visible > 0.98


@pytest.mark.parametrize("crop_to_box", [False, True])
def test_real_parts_are_where_the_geometry_says(source, tmp_path, crop_to_box):
    """A patch around a bird's eye, cut from the tensor and from the photograph, is the same."""
    few = replace(source, train=source.train[:60], test=source.test[:2])
    splits = make_splits(few, 224, crop_to_box=crop_to_box, folder=tmp_path)
    eye = source.part_names.index("right eye")
    likeness = []
    for index, record in enumerate(splits.projection.records):
        part = record.parts[eye]
        geometry = splits.projection.geometry(index)
        corner = np.array(geometry.image_to_tensor([part.y, part.x])).astype(int) - 6
        if not part.visible or corner.min() < 0 or corner.max() > 224 - 13:
            continue
        patch = splits.projection[index].images[:, corner[0] :, corner[1] :][:, :13, :13]
        top, left = geometry.tensor_to_image(corner)
        bottom, right = geometry.tensor_to_image(corner + 13)
        photograph = open_image(record.path).resize((13, 13), 2, (left, top, right, bottom))
        pair = to_pixels(patch).float().mean(0).numpy(), np.asarray(photograph).mean(axis=2)
        likeness.append(np.corrcoef(pair[0].ravel(), pair[1].ravel())[0, 1])
    assert len(likeness) > 10 and min(likeness) > 0.98


def test_real_images_make_batches(source, tmp_path):
    few = replace(source, train=source.train[:60], test=source.test[:20])
    splits = make_splits(few, 64, folder=tmp_path)
    assert [len(part) for part in splits] == [54, 54, 6, 20]
    images = torch.cat([batch.images for batch in make_loader(splits.train, 16, workers=2)])
    assert images.shape == (54, 3, 64, 64) and 0.5 < images.std() < 2
