"""Frames of audits, counted by hand."""

from dpp.analysis import audit_tables
from dpp.explanations import Audit, GlobalAnalysis, Neighbours, PartShare, Share, Sighting


def seen(prototype, label):
    return Sighting(prototype, "1", label, 0.9, (4, 4), (2, 2), (0, 0), ())


def test_strangers_are_images_of_other_classes():
    first = Neighbours(0, 0, (), (seen(0, 1), seen(0, 0), seen(0, 1)))
    second = Neighbours(1, 1, (seen(1, 0),), (seen(1, 1), seen(1, 2)))
    found = audit_tables.find_strangers(GlobalAnalysis("run", 3, (first, second)), "abc")
    assert found.to_numpy().tolist() == [[0, "a", "b", 2], [1, "b", "c", 1]]


def test_there_may_be_no_strangers():
    pure = Neighbours(0, 0, (), (seen(0, 0),))
    assert audit_tables.find_strangers(GlobalAnalysis("run", 1, (pure,)), "a").empty


def test_copies_are_all_but_the_first_of_equal_prototypes():
    half, none = Share(1, 2), Share(0, 0)
    groups = ((0, 1, 2), (4, 5))
    found = audit_tables.compare_audits(
        {"run": Audit("run", 6, (), groups, 1, 6, half, none, PartShare(half, half))}
    )
    assert found.copies["run"] == 0.5 and found["parts off the image"]["run"] == 0.5
    assert found["parts on the background"].isna().all()
    distinct = audit_tables.count_distinct([0, 0, 0, 0, 1, 1], groups, ["a", "b", "c"])
    assert distinct.distinct.tolist() == [2, 1, 0]
    assert distinct.equal.tolist() == ["0 = 1 = 2", "4 = 5", "none"]
