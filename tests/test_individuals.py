"""The same bird drawn again: nothing but what is left out or exchanged may change."""

import numpy as np
import pytest
from PIL import Image, ImageFilter

from dpp.data.cub import read_cub
from dpp.drawn import individuals, posebirds
from dpp.drawn.bird_anatomy import ATTRIBUTES
from dpp.drawn.individuals import BIRD, OBJECTS, REMOVABLE, SHOWN, Individual
from dpp.drawn.species import distance, kinds
from dpp.system.errors import UserError

KINDS = kinds(6, base=False)
BIRDS = [Individual(kind, 0, "test", number, 48, 1.0) for number, kind in enumerate(KINDS)]
GOES_ALONG = {"head": ("breast",), "legs": ("breast",)}  # cheek and thighs


def grow(mask: np.ndarray, reach: int) -> np.ndarray:
    """Pixels (height, width) within so many rows and columns of those that are marked."""
    image = Image.fromarray(mask.astype(np.uint8) * 255)
    return np.asarray(image.filter(ImageFilter.MaxFilter(2 * reach + 1))) > 0


def changed(one, other) -> np.ndarray:
    return (one.pixels != other.pixels).any(axis=2)


@pytest.mark.parametrize("part", REMOVABLE + OBJECTS)
def test_nothing_changes_but_what_is_left_out_and_the_shades_at_its_rim(part):
    reach, seen = individuals.shade_reach(48), False
    for bird in BIRDS:
        masks = individuals.masks(bird)
        covered = sum(masks[name] for name in (part, *GOES_ALONG.get(part, ()))) > 0
        difference = changed(bird.draw(), bird.draw(without={part}))
        assert not (difference & ~grow(covered, reach)).any()
        seen |= bool(difference[masks[part] == 1].any())
    assert seen


def test_without_the_body_there_is_no_bird():
    assert individuals.masks(BIRDS[0], without={"body"})["bird"].max() == 0


def test_masks_share_each_pixel_and_show_what_is_left_out_as_nothing():
    for bird in BIRDS:
        masks = individuals.masks(bird)
        assert set(masks) == {*BIRD, *OBJECTS, "bird"}
        total = sum(masks[name] for name in BIRD + OBJECTS)
        assert total.max() <= 1 + 1e-6 and all(mask.min() >= 0 for mask in masks.values())
        np.testing.assert_allclose(masks["bird"], sum(masks[name] for name in BIRD), atol=1e-6)
        assert individuals.masks(bird, without={"wing"})["wing"].max() == 0


def test_masks_hold_the_places_of_visible_parts():
    owners = {"beak": "beak", "tail": "tail", "crown": "head", "left wing": "wing"}
    owners |= {"right wing": "wing", "breast": "breast", "left leg": "legs", "right leg": "legs"}
    for bird in BIRDS:
        masks = individuals.masks(bird)
        for name, (x, y) in bird.draw().parts.items():
            assert masks["bird"][int(y), int(x)] > 0
            if name in owners and name != "breast":  # which marks or the wing may hide
                assert masks[owners[name]][int(y), int(x)] > 0


def test_parts_that_are_left_out_are_not_noted():
    for bird in BIRDS:
        assert "beak" not in bird.draw(without={"beak"}).parts
        assert not {"crown", "forehead"} & bird.draw(without={"head"}).parts.keys()


@pytest.mark.parametrize("part", [part for part, shown in SHOWN.items() if shown])
def test_twin_differs_in_what_its_part_shows(part):
    bird = BIRDS[0]
    other = next(k for k in KINDS if individuals.shown_by(k, part) != shown(bird.kind, part))
    twin = individuals.exchange(bird.kind, other, part)
    assert shown(twin, part) == shown(other, part)
    assert all(shown(twin, name) == shown(bird.kind, name) for name in BIRD if name != part)
    assert 1 <= distance(twin, bird.kind) <= len(SHOWN[part])
    drawn, redrawn = bird.draw(), bird.draw(kind=twin)
    assert changed(drawn, redrawn).any()
    if part in ("breast", "wing"):  # whose shapes stay, so that the scene's light does too
        assert not (changed(drawn, redrawn) & (individuals.masks(bird)["bird"] == 0)).any()


def shown(kind, part):
    return individuals.shown_by(kind, part)


def test_parts_show_every_attribute_once():
    assert sorted(name for names in SHOWN.values() for name in names) == sorted(ATTRIBUTES)


def test_individual_of_a_record_has_the_pixels_of_its_file(tmp_path):
    folder = posebirds.make(tmp_path, classes=2, train_per_class=2, test_per_class=1, image_size=32)
    source = read_cub(folder)
    for record in source.records:
        bird = individuals.of_record(source.root, record.path, record.label)
        with Image.open(record.path) as image:
            np.testing.assert_array_equal(np.asarray(image), bird.draw().pixels)


def test_image_of_other_data_is_refused(tmp_path):
    with pytest.raises(UserError, match="not an image of PoseBirds"):
        individuals.of_record(tmp_path, tmp_path / "Bird_test_0001.png", 0)


def test_unknown_part_is_refused():
    with pytest.raises(UserError, match="no 'antlers' to leave out"):
        BIRDS[0].draw(without={"antlers"})
