"""The controls of explanations against what they are by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_analysis import ask, make_data, make_model

from dpp.analysis import audit, locality, reason, trust
from dpp.data.batches import batches, make_loader, make_splits
from dpp.explanations import ClassScore, Match
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path / "cub")


def test_decisions_are_those_of_the_reasoning(data):
    network = ask(make_model("deformable"), data)
    found = trust.decisions(network, data.splits.test)
    for record in data.splits.test.records:
        row, two = found.loc[record.id], reason(network, network.picture(record))
        best, second = two.classes
        similar = max(match.similarity for match in best.matches)
        assert row.predicted == two.predicted and row.correct == (two.predicted == record.label)
        assert row.similarity == pytest.approx(similar, abs=1e-4)
        assert row.margin == pytest.approx(best.score - second.score, abs=1e-3)
        assert (row.lead > 0) == row.correct
        assert row.probability == pytest.approx(best.probability, abs=1e-4)


def test_pairs_are_ranked_and_ties_count_half():
    found = pd.DataFrame({"correct": [True, True, False], "x": [2.0, 1.0, 1.0]})
    assert trust.ranks_correct_first(found, "x") == 0.75
    assert np.isnan(trust.ranks_correct_first(found[found.correct], "x"))


def test_equal_prototypes_are_one_reason_with_the_sum_of_their_points():
    rows = [(4, 0.9, 2.0), (7, 0.8, 3.0), (9, 0.9, 1.5)]
    matches = [Match(n, 0, (0, 0), s, w, s * w, ()) for n, s, w in rows]
    sheet = trust.distinct_reasons(ClassScore(0, "a", 0, 1, tuple(matches), 0), [(4, 9)])
    assert list(sheet.prototypes) == ["4 = 9", "7"]
    assert list(sheet.connection) == [3.5, 3.0]
    assert list(sheet.points) == pytest.approx([0.9 * 3.5, 2.4])


def test_strongest_reason_of_each_class_is_in_its_row(data):
    network = ask(make_model("dilated"), data)
    scores = reason(network, network.picture(data.splits.test.records[0])).classes
    found = trust.strongest_reasons(scores, ())
    assert list(found.index) == [one.name for one in scores]
    assert list(found.points) == [one.matches[0].points for one in scores]
    assert list(found["distinct reasons"]) == [len(one.matches) for one in scores]


def test_similarities_are_those_of_the_decisions(data):
    network = ask(make_model("dilated"), data)
    (row,) = trust.compare_similarities({"tiny": network}, data.splits.test).itertuples(index=False)
    found = trust.decisions(network, data.splits.test)
    assert row.accuracy == found.correct.mean()


def test_part_placement_counts_what_the_audit_counts(data):
    network = ask(make_model("dilated"), data)
    test = data.splits.test
    found = trust.part_placement(network, test)
    share = audit.part_share(network, batches(make_loader(test, 4)), test.records)
    assert found.near.mean() == pytest.approx(share.near.value)
    assert found.chance.mean() == pytest.approx(share.chance.value)
    assert found.elsewhere.between(0, 1).all()


def test_part_placement_needs_marks(data):
    test = data.splits.test
    test.records = tuple(replace(record, parts=None) for record in test.records)
    with pytest.raises(UserError, match="marked parts"):
        trust.part_placement(ask(make_model("dilated"), data), test)


def test_mirrored_twice_is_the_picture(data):
    network = ask(make_model("dilated"), data)
    picture = network.picture(data.splits.test.records[0])
    once, twice = trust.mirror(picture), trust.mirror(trust.mirror(picture))
    assert (once.pixels[:, 0] == picture.pixels[:, -1]).all()
    assert (twice.pixels == picture.pixels).all() and (twice.tensor == picture.tensor).all()
    assert twice.geometry == picture.geometry


def test_masks_are_squares_around_the_centres():
    (mask,) = trust.part_masks(np.array([[[2.0, 3.0]]]), 8, 2.0)
    assert mask.nonzero().tolist() == [[1, 2], [1, 3], [2, 2], [2, 3]]


def test_hidden_parts_cost_nothing_where_nothing_is_hidden(data):
    found = trust.hide_parts(ask(make_model("dilated"), data), data.splits.test)
    assert found.lost["nothing"] == found.pixels["nothing"] == 0
    shown = found.pixels["the boxes of its parts"] + found.pixels["all but the boxes of its parts"]
    assert shown == pytest.approx(1)
    assert found.lost["all but the boxes of its parts"] != 0


def test_noise_has_no_class_and_shuffled_images_keep_theirs(data):
    found = trust.without_animals(ask(make_model("dilated"), data), data.splits.test)
    assert np.isnan(found.accuracy["noise"]) and found.accuracy[:2].between(0, 1).all()
    assert found.probability.between(0, 1).all()


def test_cosines_of_cells_that_are_all_alike_are_1(data):
    network = ask(make_model("dilated"), data)
    network.model.backbone.forward = lambda images: torch.ones(len(images), 6, 4, 4)
    found = locality.cell_cosines(network, data.splits.test)
    assert list(found.index) == ["1 cell apart", "2 cells apart", "3 cells apart", "another image"]
    assert found.to_numpy() == pytest.approx(1)


def test_cosine_to_another_image_is_the_mean_over_pairs(data):
    network, test = ask(make_model("dilated"), data), data.splits.test
    z = network.inspect(test.batch([(0, index) for index in range(len(test))]).images).z
    z = torch.nn.functional.normalize(z, dim=1)
    pairs = [(z[a] * z[b]).sum(dim=0).mean() for a in range(len(z)) for b in range(a)]
    found = locality.cell_cosines(network, test)
    assert found["another image"] == pytest.approx(float(sum(pairs)) / len(pairs), abs=1e-5)


def test_pixel_reach_grows_with_the_square(data):
    found = locality.pixel_reach(ask(make_model("dilated"), data), data.splits.test, images=2)
    inside = found[["1 x 1 cells", "3 x 3 cells", "5 x 5 cells"]]
    assert inside.is_monotonic_increasing and inside.between(0, 1 + 1e-6).all()
    assert 0 < found["any pixel"] <= 1


def test_untrained_network_has_origins_that_can_be_audited(data):
    experiment = make_experiment("smoke", kernel_size=2)
    images = make_splits(data.source, experiment.image_size, keep="memory").projection
    run = SimpleNamespace(experiment=experiment, source=data.source)
    network = trust.project_untrained(run, images)
    assert set(network.origins) == set(network.prototypes.tolist())
    labels = {record.id: record.label for record in images.records}
    assert all(labels[one.image] == one.label for one in network.origins.values())


def test_reasons_needed_are_those_that_switching_off_needs(data):
    network = ask(make_model("dilated"), data)
    found = trust.reasons_needed(network, data.splits.test)
    weight = network.model.last_layer.weight
    for record in data.splits.test.records:
        picture = network.picture(record)
        one = reason(network, picture).classes[0]
        scores = network.inspect(picture.tensor[None]).scores[0].clone()
        needed = 1
        for match in one.matches:
            scores[match.prototype] = 0
            if int((weight @ scores).argmax()) != one.label:
                break
            needed += 1
        assert found["switched off"][record.id] == needed
    assert found["made average"].between(1, 3).all()
