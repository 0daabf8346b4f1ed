"""Collapse of prototypes: against a slow, obvious version, and cases counted by hand."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from test_runs import tiny
from tiny_analysis import KINDS, ask_projected, make_data

from dpp import explanations, runs
from dpp.analysis import audit
from dpp.analysis.collapse import group_places, measure_collapse, network_collapse
from dpp.extensions.distinct_projection import share_place
from dpp.training.projection import Origin

pytestmark = pytest.mark.usefixtures("one_thread")


def origin(number: int, image: str, centre: tuple[int, int], parts: int = 4) -> Origin:
    return Origin(number, 0, image, "", 0.9, (8, 8), centre, ((0.0, 0.0),) * parts)


def slow_groups(origins: list[Origin], spacing: int) -> list[list[int]]:
    """Places by loops over rows and columns alone."""
    firsts, groups = [], []
    for one in origins:
        for place, first in enumerate(firsts):
            rows = abs(first.centre[0] - one.centre[0])
            columns = abs(first.centre[1] - one.centre[1])
            if first.image == one.image and rows < spacing and columns < spacing:
                groups[place].append(one.prototype)
                break
        else:
            firsts.append(one)
            groups.append([one.prototype])
    return groups


def slow_cosines(vectors: np.ndarray) -> list[float]:
    found = []
    for one, other in combinations(vectors.reshape(len(vectors), -1).tolist(), 2):
        product = sum(a * b for a, b in zip(one, other, strict=True))
        lengths = [math.sqrt(sum(a * a for a in each)) for each in (one, other)]
        found.append(product / lengths[0] / lengths[1])
    return found


@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_collapse_is_what_loops_count(kernel, seed):
    random = np.random.default_rng(seed)
    origins = [
        origin(number, str(random.integers(2)), tuple(random.integers(4, size=2)), kernel**2)
        for number in range(12)
    ]
    vectors = random.normal(size=(12, 3, kernel, kernel))
    found = measure_collapse(origins, torch.from_numpy(vectors), 5)
    expected = slow_groups(origins, 2 if kernel == 2 else 1)
    assert [list(place) for place in found.places] == expected
    assert found.duplicates == 12 - len(expected)
    assert found.images == len({one.image for one in origins})
    cosines = slow_cosines(vectors)
    assert found.mean_cosine == pytest.approx(sum(cosines) / len(cosines))
    assert found.largest_cosine == pytest.approx(max(cosines))
    assert (found.label, found.prototypes) == (5, 12)


def test_all_equal_prototypes_are_one():
    origins = [origin(number, "a", (3, 3)) for number in (7, 8, 9)]
    found = measure_collapse(origins, torch.ones(3, 4, 2, 2))
    assert (found.images, found.places, found.duplicates) == (1, ((7, 8, 9),), 2)
    assert found.mean_cosine == found.largest_cosine == pytest.approx(1)


def test_all_different_prototypes_stay_apart():
    origins = [origin(number, str(number), (3, 3)) for number in range(3)]
    found = measure_collapse(origins, torch.eye(3))
    assert (found.images, found.places, found.duplicates) == (3, ((0,), (1,), (2,)), 0)
    assert found.mean_cosine == found.largest_cosine == 0


def test_one_prototype_has_no_pairs():
    found = measure_collapse([origin(4, "a", (0, 0))], torch.ones(1, 5))
    assert found.mean_cosine is found.largest_cosine is None
    assert found.places == ((4,),) and found.duplicates == 0


def test_parts_of_an_even_kernel_are_two_cells():
    next_to = [origin(0, "a", (0, 0)), origin(1, "a", (1, 1)), origin(2, "a", (2, 0))]
    assert group_places(next_to) == ((0, 1), (2,))
    cells = [origin(0, "a", (0, 0), 9), origin(1, "a", (0, 1), 9), origin(2, "a", (0, 0), 9)]
    assert group_places(cells) == ((0, 2), (1,))


def test_place_is_shared_within_rows_and_columns():
    near = share_place([(0, 0), (1, 1), (1, 2), (-1, 0)], (0, 0), 2)
    assert near.tolist() == [True, True, False, True]


@pytest.mark.parametrize("kind", KINDS)
def test_network_is_measured_class_by_class(kind, tmp_path):
    network = ask_projected(make_data(tmp_path / "cub"), kind)
    found = network_collapse(network)
    assert [one.label for one in found] == [0, 1, 2]
    vectors = network.model.prototypes.vectors.detach()
    if kind == "protopnet":
        for one in found:
            pair = vectors[2 * one.label : 2 * one.label + 2].numpy()
            assert one.mean_cosine == pytest.approx(slow_cosines(pair)[0], abs=1e-6)
    origins = list(network.origins.values())
    for one in found:
        own = [each for each in origins if each.label == one.label]
        assert one.prototypes == 2 and one.places == group_places(own)


def test_tree_is_measured_as_a_whole(tmp_path):
    short = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0, "project_after": (1,)}
    experiment = tiny(model="prototree", **short)
    run = runs.run(experiment, root=tmp_path, device="cpu", progress=False)
    found = audit.audit(run)
    (one,) = found.collapse
    assert one.label is None and one.prototypes == found.prototypes
    assert sorted(sum(one.places, ())) == sorted(origin["prototype"] for origin in run.origins)
    assert found.shared_places.count == one.duplicates
    explanations.write(tmp_path / "audit.json", found)
    assert explanations.read(tmp_path / "audit.json") == found


def test_audit_file_of_an_earlier_version_is_read(tmp_path):
    share = {"count": 1, "of": 2}
    old = {"kind": "Audit", "run": "old", "prototypes": 2, "accuracies": [], "duplicates": []}
    old |= {"source_images": 1, "most_from_one_image": 2, "off_image": share}
    old |= {"on_background": share, "parts": {"near": share, "chance": share}}
    explanations.files.write_json(tmp_path / "old.json", old)
    read = explanations.read(tmp_path / "old.json")
    assert read.collapse == () and read.shared_places.value is None
