"""FunnyBirds' protocols, from a classifier's scores and its explanations' part importances.

Hesse, Schaub-Meyer and Roth, "FunnyBirds: A Synthetic Vision Dataset for a Part-Based Analysis of
Explainable AI Methods", ICCV 2023. Each protocol is a function of arrays; nothing here draws a
bird or runs a network (`dpp.evaluation.interventions` does). As there, controlled synthetic data
check, distractibility and single deletion explain an image's own class, preservation and deletion
check the predicted one.

What PoseBirds differs in from FunnyBirds:
- Parts are beak, head, breast, wing, tail and legs, which can be removed, and the body, which
  cannot. Legs show nothing of the class; beak and breast show two attributes each.
- Objects in the background are twigs, the perch, and what lies in front of the bird.
- Target sensitivity is FunnyBirds': of the classes that share exactly two parts with an image's
  class, the first two that do not share the same parts; the image is left out if one of their
  scores does not lose more without what it shares than without what the other does. PoseBirds'
  classes are at least three attributes apart, so that among few of them there are no such two: of
  10 classes none has them, of 20 four, of 200 all. (Where there are none, the original script takes
  the last two that it looked at.)
- `target sensitivity, partly shared` is not in FunnyBirds: it is enough that a part shows one
  attribute of the class, and that there is one such part; of all pairs, the first is taken whose
  scores depend on what is shared. So it can be measured with few classes.
- `single exchange` is not in FunnyBirds: parts are not removed but exchanged for another species'.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from dpp.drawn.individuals import BIRD, OBJECTS, REMOVABLE, exchange, shown_by
from dpp.drawn.species import Word
from dpp.evaluation.class_parts import (
    TELLING,
    Rivals,
    find_partial_rivals,
    find_rivals,
    minimal_sufficient_sets,
)

THRESHOLDS = np.linspace(0.01, 0.5, 80)
RELEVANT = 0.05  # a removal is relevant if it takes this share of the score or more
NOISE = 1e-4  # of a score: which pictures share a batch changes it by less
THINGS = BIRD + OBJECTS  # what has an importance, in this order
REMOVED = REMOVABLE + OBJECTS  # what is removed on its own, in this order


class Question(NamedTuple):
    """A picture that a classifier is asked about: a bird without something, or as another kind."""

    bird: int
    without: frozenset[str] = frozenset()
    kind: Word | None = None


Ask = Callable[[Sequence[Question]], np.ndarray]  # scores (questions, classes)
Explain = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Effects(NamedTuple):
    """What interventions on N birds do to a classifier's scores; no explanation is needed.

    Args:
        labels: (N,), the birds' classes.
        predicted: (N,), of the whole birds.
        score: (N,), of a whole bird's own class.
        removed: (N, `REMOVED`), the same without one part or object; NaN where there is none.
        exchanged: (N, `TELLING`), the same with one part as another species has it; NaN if all
            species have the same.
        rivals: for target sensitivity; None for a bird for which there are none, or whose rivals'
            scores do not depend on the parts that they share with it.
        partial_rivals: the same with parts that are partly shared.
    """

    labels: np.ndarray
    predicted: np.ndarray
    score: np.ndarray
    removed: np.ndarray
    exchanged: np.ndarray
    rivals: list[Rivals | None]
    partial_rivals: list[Rivals | None]


class Findings(NamedTuple):
    """The values of N birds, NaN where a protocol leaves a bird out; T is for all thresholds."""

    synthetic: np.ndarray  # (T, N), controlled synthetic data check
    preservation: np.ndarray  # (T, N)
    deletion: np.ndarray  # (T, N)
    distractibility: np.ndarray  # (T, N)
    single_deletion: np.ndarray  # (N,)
    single_exchange: np.ndarray  # (N,)
    target_sensitivity: np.ndarray  # (N,)
    partial_sensitivity: np.ndarray  # (N,), with parts that are partly shared


def find_effects(
    ask: Ask, labels: np.ndarray, words: Sequence[Word], seen: np.ndarray, seed: int
) -> Effects:
    """Asks a classifier about all interventions that no explanation chooses.

    Args:
        ask: the classifier.
        labels: (N,), of the birds.
        words: the attributes of each class.
        seen: (N, `OBJECTS`), which objects are in the pictures.
        seed: of which species gives its part in an exchange.
    """
    birds = range(len(labels))
    whole = ask([Question(bird) for bird in birds])
    removed = np.full((len(labels), len(REMOVED)), np.nan)
    removed[:, : len(REMOVABLE)] = 0
    removed[:, len(REMOVABLE) :][seen] = 0
    where = np.argwhere(~np.isnan(removed))
    asked = [Question(int(bird), frozenset({REMOVED[thing]})) for bird, thing in where]
    removed[tuple(where.T)] = ask(asked)[np.arange(len(asked)), labels[where[:, 0]]]

    random, twins = np.random.default_rng(seed), {}
    for bird, (place, part) in itertools.product(birds, enumerate(TELLING)):
        own = words[labels[bird]]
        others = [word for word in words if shown_by(word, part) != shown_by(own, part)]
        if others:
            twins[bird, place] = exchange(own, others[random.integers(len(others))], part)
    exchanged = np.full((len(labels), len(TELLING)), np.nan)
    answers = ask([Question(bird, kind=twin) for (bird, _), twin in twins.items()])
    for (bird, place), answer in zip(twins, answers, strict=True):
        exchanged[bird, place] = answer[labels[bird]]

    classes, score = set(labels.tolist()), whole[np.arange(len(labels)), labels]
    first = {label: find_rivals(words, label)[:1] for label in classes}
    partial = {label: find_partial_rivals(words, label) for label in classes}
    rivals = (_proven_rivals(ask, labels, candidates) for candidates in (first, partial))
    return Effects(labels, whole.argmax(axis=1), score, removed, exchanged, *rivals)


def _proven_rivals(
    ask: Ask, labels: np.ndarray, candidates: Mapping[int, Sequence[Rivals]]
) -> list[Rivals | None]:
    """Of each bird, the first of its class's candidates that each lose more without what they share
    than without what the other does."""
    asked = [
        Question(bird, parts)
        for bird, label in enumerate(labels.tolist())
        for parts in dict.fromkeys(one for pair in candidates[label] for one in pair.shared)
    ]
    answers = dict(zip(asked, ask(asked), strict=True)) if asked else {}

    def proven(bird: int, pair: Rivals) -> bool:
        one, two = pair.labels
        first, second = (answers[Question(bird, parts)] for parts in pair.shared)
        return second[one] - first[one] > NOISE and first[two] - second[two] > NOISE

    return [
        next((pair for pair in candidates[label] if proven(bird, pair)), None)
        for bird, label in enumerate(labels.tolist())
    ]


def is_relevant(effects: Effects) -> np.ndarray:
    """(N, `REMOVED`): whether a removal takes 5 % of the score's size or more; a rise does not."""
    drop = effects.score[:, None] - effects.removed
    return (drop >= RELEVANT * np.abs(effects.score)[:, None]) & (drop > 0)


def background_counts(effects: Effects) -> np.ndarray:
    """(N, 2): how many objects are relevant, and how many there are, of each bird."""
    objects = slice(len(REMOVABLE), None)
    known = ~np.isnan(effects.removed[:, objects])
    return np.stack([is_relevant(effects)[:, objects].sum(axis=1), known.sum(axis=1)], axis=1)


def important(importances: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """(T, N, `THINGS`): what has more than a threshold's share of an explanation's total."""
    return importances > THRESHOLDS[:, None, None] * totals[:, None]


def rank_agreement(drops: np.ndarray, importances: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each row (N, things), from 0 to 1; NaN if a row is constant.

    Things whose drop is NaN are left out; drops that differ by less than `NOISE` are equal.
    """
    values = np.full(len(drops), np.nan)
    for row, (drop, importance) in enumerate(zip(drops, importances, strict=True)):
        known = ~np.isnan(drop)
        ranks = [rankdata(one) for one in (np.round(drop[known] / NOISE), importance[known])]
        one, two = (rank - rank.mean() for rank in ranks)
        length = np.sqrt((one @ one) * (two @ two))
        if length > 0:
            values[row] = 0.5 + 0.5 * (one @ two) / length
    return values


def examine(ask: Ask, explain: Explain, effects: Effects, words: Sequence[Word]) -> Findings:
    """All protocols that judge an explanation.

    Args:
        ask: the classifier.
        explain: from a class for each bird (N,) to the importances (N, `THINGS`) in the
            explanation of that class, and their totals (N,), which what lies outside all things
            adds to.
        effects: of the same classifier.
        words: the attributes of each class.
    """
    labels, predicted = effects.labels, effects.predicted
    own = explain(labels)
    marked, marked_for_prediction = important(*own), important(*explain(predicted))
    removable = marked_for_prediction[..., : len(REMOVABLE)]
    drops = effects.score[:, None] - effects.removed[:, : len(REMOVABLE)]
    exchanges = effects.score[:, None] - effects.exchanged
    at = [THINGS.index(part) for part in TELLING]
    return Findings(
        synthetic_data_check(marked, effects, words),
        agreement(ask, ~removable, predicted),
        1 - agreement(ask, removable, predicted),
        distractibility(marked, effects),
        rank_agreement(drops, own[0][:, : len(REMOVABLE)]),
        rank_agreement(exchanges, own[0][:, at]),
        target_sensitivity(explain, effects.rivals),
        target_sensitivity(explain, effects.partial_rivals),
    )


def synthetic_data_check(marked: np.ndarray, effects: Effects, words: Sequence[Word]) -> np.ndarray:
    """How much of a minimal sufficient set is important, of the set that fits best.

    Args:
        marked: (T, N, `THINGS`), what is important for a bird's own class.
        effects: of the classifier: birds whose class is not predicted are left out.
        words: the attributes of each class.

    Returns:
        (T, N).
    """
    found = np.full(marked.shape[:2], np.nan)
    for label in set(effects.labels.tolist()):
        birds = np.flatnonzero((effects.labels == label) & (effects.predicted == label))
        shares = [
            marked[:, birds][..., [THINGS.index(part) for part in parts]].mean(axis=2)
            for parts in minimal_sufficient_sets(words, label)
        ]
        found[:, birds] = np.max(shares, axis=0) if shares else np.nan
    return found


def agreement(ask: Ask, removed: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Whether the prediction stays when parts are removed.

    Args:
        ask: the classifier.
        removed: (T, N, `REMOVABLE`).
        predicted: (N,), of the whole birds.

    Returns:
        (T, N), 0 or 1.
    """
    asked = [
        Question(bird, frozenset(np.array(REMOVABLE)[row].tolist()))
        for one in removed
        for bird, row in enumerate(one)
    ]
    different = list(dict.fromkeys(asked))
    answers = dict(zip(different, ask(different).argmax(axis=1).tolist(), strict=True))
    found = np.array([answers[question] for question in asked]).reshape(removed.shape[:2])
    return (found == predicted).astype(float)


def distractibility(marked: np.ndarray, effects: Effects) -> np.ndarray:
    """The share of irrelevant parts and objects that are not important: (T, N)."""
    at = [THINGS.index(name) for name in REMOVED]
    irrelevant = ~is_relevant(effects) & ~np.isnan(effects.removed)  # (N, REMOVED)
    count = irrelevant.sum(axis=1)
    wrong = (marked[..., at] & irrelevant).sum(axis=2)
    return 1 - wrong / np.where(count, count, np.nan)


def target_sensitivity(explain: Explain, rivals: Sequence[Rivals | None]) -> np.ndarray:
    """Whether the parts that one of two classes shares are more important to it than to the other.

    Returns:
        (N,): 0, 0.5 or 1, as neither, one or both sets of shared parts are; NaN without rivals.
    """
    values = np.full(len(rivals), np.nan)
    pairs = [pair.labels if pair else (0, 0) for pair in rivals]
    one, two = (explain(np.array(labels))[0] for labels in zip(*pairs, strict=True))
    for bird, pair in enumerate(rivals):
        if pair:
            first, second = ([THINGS.index(part) for part in parts] for parts in pair.shared)
            right = [
                one[bird, first].sum() > two[bird, first].sum(),
                two[bird, second].sum() > one[bird, second].sum(),
            ]
            values[bird] = np.mean(right)
    return values


def completeness(found: Findings) -> np.ndarray:
    """(T,): the mean of the three checks, averaged with distractibility, as in the paper."""
    means = [_known_mean(values) for values in found[:4]]
    return (np.mean(means[:3], axis=0) + means[3]) / 2


def choose_threshold(found: Findings) -> int:
    """The index of the threshold with the highest completeness; the first of several."""
    values = completeness(found)
    return 0 if np.isnan(values).all() else int(np.nanargmax(values))


def _known_mean(values: np.ndarray) -> np.ndarray:
    """The mean along the last axis of what is not NaN; NaN of nothing."""
    known = ~np.isnan(values)
    count = known.sum(axis=-1)
    return np.where(known, values, 0).sum(axis=-1) / np.where(count, count, np.nan)
