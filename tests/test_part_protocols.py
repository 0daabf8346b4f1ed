"""FunnyBirds' protocols: against loops, and for classifiers whose answers are known."""

import itertools
import zlib

import numpy as np
import pytest
from scipy.stats import spearmanr

from dpp.drawn.individuals import BIRD, OBJECTS, REMOVABLE, SHOWN, shown_by
from dpp.drawn.species import kinds
from dpp.evaluation import part_protocols as protocols
from dpp.evaluation.class_parts import (
    TELLING,
    find_partial_rivals,
    find_rivals,
    minimal_sufficient_sets,
)
from dpp.evaluation.part_protocols import REMOVED, THINGS, THRESHOLDS, Question

WORDS = kinds(10, base=False)
MANY = kinds(40, base=False)
# Beaks differ, tails and heads are the same, the rest tells some classes apart.
BEAKS = [(i, i, 0, 0, i % 2, 0, i % 2, 0) for i in range(4)]


def say(classifier, words):
    """`ask` for a function from the parts that are seen, {part: values}, to scores."""
    labels = np.repeat(np.arange(len(words)), 3)

    def ask(questions):
        answers = []
        for bird, without, kind in questions:
            word = kind or words[labels[bird]]
            seen = {part: shown_by(word, part) for part in BIRD if part not in without}
            answers.append(classifier(seen, words, frozenset(OBJECTS) - without))
        return np.array(answers, float)

    return ask, labels


def look_at_beak(seen, words, objects):
    """Scores for the class that has this beak; without a beak, for one that is not a bird."""
    scores = [float(seen.get("beak") == shown_by(word, "beak")) for word in words]
    return [*scores, 0.5]


def count_parts(seen, words, objects):
    """In how many attributes of visible parts a class agrees."""
    return [
        sum(a == b for p in seen for a, b in zip(seen[p], shown_by(word, p), strict=True))
        for word in words
    ]


def guess(seen, words, objects):
    """Scores without sense that depend on all that is seen."""
    key = zlib.crc32(repr((sorted(seen.items()), sorted(objects))).encode())
    return np.random.default_rng(key).normal(size=len(words))


def point_at(*parts, total=1.0):
    """Explains every class by the same parts."""

    def explain(labels):
        importances = np.zeros((len(labels), len(THINGS)))
        importances[:, [THINGS.index(part) for part in parts]] = total / len(parts)
        return importances, np.full(len(labels), total)

    return explain


def point_anywhere(seed):
    """Explains each class of a bird by importances of its own, some below zero."""

    def explain(labels):
        rows = [
            np.random.default_rng((seed, n, c)).normal(0.1, 0.3, len(THINGS))
            for n, c in pairs(labels)
        ]
        return np.stack(rows), np.ones(len(labels))

    def pairs(labels):
        return enumerate(labels.tolist())

    return explain


def run(classifier, explain, words, seen=None):
    ask, labels = say(classifier, words)
    seen = np.ones((len(labels), len(OBJECTS)), bool) if seen is None else seen
    effects = protocols.find_effects(ask, labels, words, seen, seed=0)
    return effects, protocols.examine(ask, explain, effects, words)


# Which parts tell classes apart.


@pytest.mark.parametrize("label", range(len(WORDS)))
def test_minimal_sufficient_sets_are_those_of_a_search_through_all_sets(label):
    def tells(parts):
        return all(
            any(shown_by(word, p) != shown_by(WORDS[label], p) for p in parts)
            for number, word in enumerate(WORDS)
            if number != label
        )

    every = [
        frozenset(parts)
        for size in range(len(TELLING) + 1)
        for parts in itertools.combinations(TELLING, size)
    ]
    sufficient = [parts for parts in every if tells(parts)]
    minimal = {one for one in sufficient if not any(other < one for other in sufficient)}
    assert set(minimal_sufficient_sets(WORDS, label)) == minimal


def test_minimal_sufficient_sets_of_classes_with_beaks_of_their_own():
    assert minimal_sufficient_sets(BEAKS, 0) == [frozenset({"beak"})]


def test_rivals_share_two_whole_parts_each_in_the_order_of_the_classes():
    parts = ["beak", "head", "breast", "wing", "tail"]
    for label, word in enumerate(MANY):
        shared = [{p for p in parts if shown_by(other, p) == shown_by(word, p)} for other in MANY]
        wanted = [
            (one, two)
            for one in range(len(MANY))
            for two in range(one + 1, len(MANY))
            if label not in (one, two)
            and len(shared[one]) == len(shared[two]) == 2
            and not shared[one] & shared[two]
        ]
        found = find_rivals(MANY, label)
        assert [pair.labels for pair in found] == wanted
        assert all(tuple(map(set, p.shared)) == tuple(shared[n] for n in p.labels) for p in found)
    assert any(find_rivals(MANY, label) for label in range(len(MANY)))
    assert not any(find_rivals(WORDS, label) for label in range(10))  # mini's: too few


def test_partial_rivals_share_parts_with_a_class_and_none_with_each_other():
    for label in range(len(WORDS)):
        for (one, two), (first, second) in find_partial_rivals(WORDS, label):
            assert len({one, two, label}) == 3 and first and second and not first & second
            for other, parts in ((one, first), (two, second)):
                for part in REMOVABLE:
                    pairs = zip(
                        shown_by(WORDS[other], part), shown_by(WORDS[label], part), strict=True
                    )
                    assert (part in parts) == any(a == b for a, b in pairs)
    assert all(find_partial_rivals(WORDS, label) for label in range(8))
    assert find_partial_rivals(WORDS[:1], 0) == []


# Known answers.


def test_explanation_that_names_what_the_classifier_looks_at_is_perfect():
    effects, found = run(look_at_beak, point_at("beak"), BEAKS)
    assert (effects.predicted == effects.labels).all()
    assert (protocols.background_counts(effects) == [0, len(OBJECTS)]).all()
    for values in found[:6]:
        np.testing.assert_allclose(values, 1)
    np.testing.assert_allclose(protocols.completeness(found), 1)


def test_explanation_that_points_elsewhere_is_worst():
    _, found = run(look_at_beak, point_at("tail"), BEAKS)
    for values in (found.synthetic, found.preservation, found.deletion):
        assert (values == 0).all()
    # One of five irrelevant parts and five objects is called important.
    np.testing.assert_allclose(found.distractibility, 1 - 1 / (len(REMOVED) - 1))
    drops, importances = [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0]
    np.testing.assert_allclose(found.single_deletion, 0.5 + 0.5 * spearmanr(drops, importances)[0])
    assert found.single_deletion.max() < 0.5


def test_explanation_of_everything_is_complete_and_distracted():
    _, found = run(look_at_beak, point_at(*THINGS), BEAKS)
    lowest = 0  # every thing has a twelfth of the total, above the lowest threshold
    assert (found.synthetic[lowest] == 1).all() and (found.preservation[lowest] == 1).all()
    assert (found.deletion[lowest] == 1).all() and (found.distractibility[lowest] == 0).all()
    assert np.isnan(found.single_deletion).all()  # all importances are equal


def test_explanation_by_chance_is_between_the_two():
    found = [run(look_at_beak, point_anywhere(seed), BEAKS)[1] for seed in range(20)]
    assert abs(np.nanmean([one.single_deletion for one in found]) - 0.5) < 0.05
    assert abs(np.nanmean([one.single_exchange for one in found]) - 0.5) < 0.05
    assert 0.1 < np.mean([protocols.completeness(one)[40] for one in found]) < 0.9


def agree(words, labels_of_birds, opposite=False, enough=any):
    """Explains a class by the parts that look like it, or by those that do not."""

    def explain(labels):
        rows = []
        for bird, label in enumerate(labels.tolist()):
            word, own = words[label], words[labels_of_birds[bird]]
            same = [
                enough(a == b for a, b in zip(shown_by(word, p), shown_by(own, p), strict=True))
                for p in BIRD
            ]
            rows.append(np.array(same + [False] * len(OBJECTS)) != opposite)
        return np.array(rows, float), np.full(len(labels), float(len(BIRD)))

    return explain


def test_target_sensitivity_is_1_for_the_parts_of_each_class_and_0_for_the_others():
    labels = np.repeat(np.arange(len(WORDS)), 3)
    for opposite in (False, True):
        _, found = run(count_parts, agree(WORDS, labels, opposite), WORDS)
        known = found.partial_sensitivity[~np.isnan(found.partial_sensitivity)]
        assert len(known) >= 24 and (known == (0 if opposite else 1)).all()
    labels = np.repeat(np.arange(len(MANY)), 3)
    for opposite in (False, True):
        _, found = run(count_parts, agree(MANY, labels, opposite, all), MANY)
        known = found.target_sensitivity[~np.isnan(found.target_sensitivity)]
        rivals = sum(bool(find_rivals(MANY, label)) for label in range(len(MANY)))
        assert len(known) == 3 * rivals > 0 and (known == (0 if opposite else 1)).all()


def test_target_sensitivity_is_0_for_an_explanation_that_does_not_know_the_class():
    _, found = run(count_parts, point_at("beak", "wing"), WORDS)
    assert np.nanmax(found.partial_sensitivity) == 0
    _, found = run(count_parts, point_at("beak", "wing"), MANY)
    assert np.nanmax(found.target_sensitivity) == 0


def test_only_the_first_rivals_are_tried_for_target_sensitivity():
    effects, _ = run(guess, point_at("beak"), MANY)
    for bird, pair in enumerate(effects.rivals):
        assert pair is None or pair == find_rivals(MANY, bird // 3)[0]
    tried = [bird for bird in range(3 * len(MANY)) if find_rivals(MANY, bird // 3)]
    assert 0 < sum(effects.rivals[bird] is not None for bird in tried) < len(tried)


def test_birds_without_proven_rivals_are_left_out():
    effects, found = run(look_at_beak, point_at("beak"), BEAKS)
    assert effects.rivals == effects.partial_rivals == [None] * 12
    assert np.isnan(found.target_sensitivity).all() and np.isnan(found.partial_sensitivity).all()


def test_classifier_that_looks_at_one_object_depends_on_it():
    def look_at_perch(seen, words, objects):
        right = "perch" in objects
        return [(10.0 if right else 9.4) * (seen["body"] == shown_by(w, "body")) for w in words]

    counts = protocols.background_counts(run(look_at_perch, point_at("body"), WORDS)[0])
    assert (counts == [1, len(OBJECTS)]).all()


# Against loops.


def slow_findings(ask, labels, words, seen, effects, explain):
    """What the original script does, image by image, with sets of names."""
    scores = {"synthetic": [], "preservation": [], "deletion": [], "distractibility": []}
    single = []
    for bird, label in enumerate(labels.tolist()):
        everyone = np.array(labels)
        whole = ask([Question(bird)])[0]
        own = dict(zip(THINGS, explain(everyone)[0][bird], strict=True))
        for_prediction = everyone.copy()
        for_prediction[bird] = whole.argmax()
        shown = dict(zip(THINGS, explain(for_prediction)[0][bird], strict=True))
        things = [*REMOVABLE, *(o for o, there in zip(OBJECTS, seen[bird], strict=True) if there)]
        drops = {t: whole[label] - ask([Question(bird, frozenset({t}))])[0][label] for t in things}
        irrelevant = {t for t in things if abs(drops[t]) < 0.05 * abs(whole[label]) or drops[t] < 0}
        rows = {name: [] for name in scores}
        for threshold in THRESHOLDS:
            important = {t for t in THINGS if own[t] > threshold}
            named = {t for t in REMOVABLE if shown[t] > threshold}
            best = max(len(s & important) / len(s) for s in minimal_sufficient_sets(words, label))
            rows["synthetic"].append(best if whole.argmax() == label else np.nan)
            kept = ask([Question(bird, frozenset(REMOVABLE) - named)])[0].argmax()
            rows["preservation"].append(float(kept == whole.argmax()))
            left = ask([Question(bird, frozenset(named))])[0].argmax()
            rows["deletion"].append(float(left != whole.argmax()))
            distracted = len(irrelevant & important) / len(irrelevant) if irrelevant else np.nan
            rows["distractibility"].append(1 - distracted)
        for name, row in rows.items():
            scores[name].append(row)
        pairs = [(drops[part], own[part]) for part in REMOVABLE]
        single.append(0.5 + 0.5 * spearmanr(*zip(*pairs, strict=True))[0])
    return {name: np.array(rows).T for name, rows in scores.items()} | {"single_deletion": single}


def test_protocols_are_those_of_loops_over_images_and_thresholds():
    words = WORDS[:6]
    ask, labels = say(guess, words)
    seen = np.random.default_rng(1).random((len(labels), len(OBJECTS))) < 0.6
    effects, found = run(guess, point_anywhere(3), words, seen)
    assert 0 < (effects.predicted == labels).sum() < len(labels)
    slow = slow_findings(ask, labels, words, seen, effects, point_anywhere(3))
    for name, values in slow.items():
        np.testing.assert_allclose(getattr(found, name), values, err_msg=name)
    relevant = protocols.background_counts(effects)
    assert (relevant[:, 1] == seen.sum(axis=1)).all()
    completeness = [
        (
            (
                np.nanmean(found.synthetic[t])
                + found.preservation[t].mean()
                + found.deletion[t].mean()
            )
            / 3
            + np.nanmean(found.distractibility[t])
        )
        / 2
        for t in range(len(THRESHOLDS))
    ]
    np.testing.assert_allclose(protocols.completeness(found), completeness)
    assert protocols.choose_threshold(found) == int(np.argmax(completeness))


def test_exchange_gives_one_part_of_another_species():
    asked = []
    ask, labels = say(count_parts, WORDS)

    def remember(questions):
        asked.extend(questions)
        return ask(questions)

    seen = np.ones((len(labels), len(OBJECTS)), bool)
    effects = protocols.find_effects(remember, labels, WORDS, seen, seed=0)
    twins = [question for question in asked if question.kind]
    assert len(twins) == len(labels) * len(TELLING)
    for bird, without, kind in twins:
        own = WORDS[labels[bird]]
        changed = [part for part in BIRD if shown_by(kind, part) != shown_by(own, part)]
        assert len(changed) == 1 and not without
        assert shown_by(kind, changed[0]) in {shown_by(word, changed[0]) for word in WORDS}
    drops = effects.score[:, None] - effects.exchanged
    assert ((drops >= 1) & (drops <= [len(SHOWN[part]) for part in TELLING])).all()


def test_drops_that_differ_by_noise_are_equal():
    noisy, clean = [[1, 1e-6, -1e-6, 2e-6, 0, np.nan]], [[1, 0, 0, 0, 0, np.nan]]
    importances = np.array([[5.0, 1, 2, 3, 4, 9]])
    wanted = 0.5 + 0.5 * spearmanr(clean[0][:5], importances[0, :5])[0]
    for drops in (noisy, clean):
        found = protocols.rank_agreement(np.array(drops), importances)
        np.testing.assert_allclose(found, [wanted])


def test_rivals_that_noise_tells_apart_are_not_proven():
    def nearly_blind(seen, words, objects):
        return 1e-7 * np.array(count_parts(seen, words, objects))

    effects, _ = run(nearly_blind, point_at("beak"), WORDS)
    assert effects.partial_rivals == [None] * 30
    effects, _ = run(count_parts, point_at("beak"), WORDS)
    assert sum(pair is not None for pair in effects.partial_rivals) >= 24


def test_thresholds_are_those_of_the_paper():
    assert len(THRESHOLDS) == 80 and THRESHOLDS[0] == 0.01 and THRESHOLDS[-1] == 0.5
