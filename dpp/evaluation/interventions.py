"""FunnyBirds' protocols on PoseBirds: birds are drawn again without parts, objects, or as twins.

    scores = measure(Network.of(run), splits, seed=0)
    scores = measure(Classifier.of(cnn_run), splits, seed=0)     # what needs no explanation
    effects = measure_effects(Network.of(run), splits, seed=0)

`dpp.evaluation.part_protocols` has the protocols and says where PoseBirds forces a difference,
`dpp.evaluation.part_importance` how a network's explanation becomes importances of parts. A score
is a logit; of a tree, a probability, since a logarithm's 5 % mean nothing.

The threshold above which a part counts as important is chosen on validation birds. The original
script chooses it on the test set that it reports: `original` has the values that this gives.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpp.analysis.network import Network
from dpp.data.batches import Splits
from dpp.drawn.individuals import OBJECTS
from dpp.drawn.species import Word
from dpp.evaluation import part_protocols as protocols
from dpp.evaluation.baselines import random_weights
from dpp.evaluation.bird_scenes import Classifier, Subject, choose_birds, find_words
from dpp.evaluation.class_parts import TELLING
from dpp.evaluation.part_protocols import (
    REMOVED,
    THINGS,
    THRESHOLDS,
    Effects,
    Findings,
)
from dpp.evaluation.scores import NAN, Progress, Score, bootstrap, mean, not_measured
from dpp.evaluation.sightings import places_of

BIRDS = 10  # of each class, at most: each is drawn some 40 times
NAMES = {
    "synthetic": "controlled synthetic data check",
    "preservation": "preservation check",
    "deletion": "deletion check",
    "distractibility": "distractibility",
    "single_deletion": "single deletion",
    "single_exchange": "single exchange",
    "target_sensitivity": "target sensitivity",
    "partial_sensitivity": "target sensitivity, partly shared",
}
CHECKS = Findings._fields[:4]  # those with a threshold


def study(subject: Subject, words: Sequence[Word], seed: int) -> Effects:
    """What interventions do to a classifier's scores."""
    labels = np.array([scene.label for scene in subject.scenes])
    objects = slice(THINGS.index(OBJECTS[0]), None)
    seen = np.array([scene.masks[objects].any(axis=(1, 2)) for scene in subject.scenes])
    return protocols.find_effects(subject.ask, labels, words, seen, seed)


def measure(
    network: Network | Classifier,
    splits: Splits,
    *,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
    birds: int = BIRDS,
) -> list[Score]:
    """FunnyBirds' measures of a network, in percent.

    Args:
        network: for PoseBirds, with prototypes or without.
        splits: its data.
        seed: of random weights, random places, exchanges and the bootstrap.
        progress: called with how much is done, and of how much.
        birds: of each class of the test set, at most.
    """
    words = find_words(network)
    test, validation = (
        choose_birds(network, dataset, birds) for dataset in (splits.test, splits.validation)
    )
    networks = [network]
    if isinstance(network, Network):
        networks.append(random_weights(network, splits.projection, seed))
    effects, found = [], []
    for number, one in enumerate(networks):
        subject = Subject(one, test)
        effects.append(study(subject, words, seed))
        progress(3 * number + 1, 3 * len(networks))
        if isinstance(one, Network):
            tuned = Subject(one, validation)
            known = study(tuned, words, seed)
            scatter = [None, seed] if number == 0 else [None]
            found.append(_examine((subject, effects[-1]), (tuned, known), words, scatter))
        progress(3 * number + 3, 3 * len(networks))
    scores = _score_classifiers(effects, seed)
    if not found:
        why = "does not apply: the network does not explain its predictions"
        return scores + [not_measured(NAMES[field], why) for field in Findings._fields]
    own, blind = found
    note = f"threshold chosen on {len(validation)} validation birds"
    for at in {place: None for place, _ in own}:
        scores += _score_findings(at, own[at, None], own[at, seed], blind[at, None], seed, note)
    return scores


class Examined(NamedTuple):
    """What protocols found on test birds, and the thresholds that were chosen, as indices."""

    found: Findings
    chosen: int  # on validation birds
    chosen_on_test: int  # as the original script does

    def values(self, field: str, original: bool = False) -> np.ndarray:
        """(birds,), at the chosen threshold if there is one."""
        values = getattr(self.found, field)
        chosen = self.chosen_on_test if original else self.chosen
        return values[chosen] if field in CHECKS else values


def _examine(tested, tuned, words, scatter) -> dict[tuple[str, int | None], Examined]:
    """By where explanations are placed, and the seed that scatters them."""
    explainers = [subject.explainer() for subject, _ in (tested, tuned)]
    results = {}
    for at in places_of(explainers[0].network):
        for seed in scatter:
            found, known = (
                protocols.examine(subject.ask, explainer.at(at, seed), effects, words)
                for (subject, effects), explainer in zip((tested, tuned), explainers, strict=True)
            )
            chosen = (protocols.choose_threshold(one) for one in (known, found))
            results[at, seed] = Examined(found, *chosen)
    return results


def _score_classifiers(effects: Sequence[Effects], seed: int) -> list[Score]:
    """What needs no explanation; the second effects, if there are any, are of random weights."""
    right = [100.0 * (one.predicted == one.labels) for one in effects]
    counts = [protocols.background_counts(one) for one in effects]

    def independence(counts: np.ndarray) -> np.ndarray:
        relevant, all_objects = np.moveaxis(counts.sum(axis=-2), -1, 0)
        return 100 * (1 - relevant / np.where(all_objects, all_objects, NAN))

    rows = (
        ("accuracy on birds drawn again", [mean(one) for one in right], bootstrap(right[0], seed)),
        (
            "background independence",
            [float(independence(one)) for one in counts],
            bootstrap(counts[0], seed, independence),
        ),
    )
    return [
        Score(
            name,
            "",
            values[0],
            *interval,
            unit="%",
            better="higher",
            random_weights=values[1] if len(values) > 1 else NAN,
            note=f"{len(right[0])} test birds",
        )
        for name, values, interval in rows
    ]


def _score_findings(at, own: Examined, scattered: Examined, blind: Examined, seed, note):
    """The scores of one network's explanations at one place."""
    given = {"unit": "%", "better": "higher"}
    scores = []
    for field, name in NAMES.items():
        value, blank, drawn = (100 * one.values(field) for one in (own, blind, scattered))
        known = f"{int((~np.isnan(value)).sum())} of {len(value)} birds"
        with_threshold = field in CHECKS
        original = mean(100 * own.values(field, original=True)) if with_threshold else NAN
        about = f"{known}; {note}: {THRESHOLDS[own.chosen]:.3f}" if with_threshold else known
        if field == "target_sensitivity" and np.isnan(value).all():
            about += ": too few classes share two whole parts with another"
        baselines = {"random_weights": mean(blank), "random_places": mean(drawn)}
        interval = bootstrap(value, seed)
        given_here = given | baselines | {"original": original, "note": about}
        scores.append(Score(name, at, mean(value), *interval, **given_here))
    sums = [100 * protocols.completeness(one.found) for one in (own, blind, scattered)]
    value, blank, drawn = (
        float(one[examined.chosen])
        for one, examined in zip(sums, (own, blind, scattered), strict=True)
    )
    original = float(sums[0][own.chosen_on_test])
    baselines = {"random_weights": blank, "random_places": drawn, "original": original}
    interval = _completeness_interval(own, seed)
    text = "mean of the three checks, averaged with distractibility"
    scores.append(Score("completeness", at, value, *interval, **given, **baselines, note=text))
    return scores


def _completeness_interval(own: Examined, seed: int) -> tuple[float, float]:
    """Of completeness; each check has birds that it leaves out."""
    values = np.stack([own.values(field) for field in CHECKS], axis=1)  # (birds, checks)
    known = ~np.isnan(values)

    def statistic(rows: np.ndarray) -> np.ndarray:
        filled, counted = np.split(rows, 2, axis=-1)
        means = filled.sum(axis=1) / np.where(counted.sum(axis=1), counted.sum(axis=1), NAN)
        return 50 * (means[:, :3].mean(axis=1) + means[:, 3])

    return bootstrap(np.concatenate([np.where(known, values, 0), known], axis=1), seed, statistic)


def measure_effects(
    network: Network | Classifier,
    splits: Splits,
    *,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
    birds: int = BIRDS,
) -> list[Score]:
    """By how many percentage points each intervention lowers the probability of a bird's class.

    Arguments are those of `measure`. Birds on which a part is hidden count too: it has no effect.
    """
    words, scenes = find_words(network), choose_birds(network, splits.test, birds)
    networks = [network]
    if isinstance(network, Network):
        networks.append(random_weights(network, splits.projection, seed))
    drops = []
    for number, one in enumerate(networks):
        effects = study(Subject(one, scenes, probabilities=True), words, seed)
        columns = np.concatenate([effects.removed, effects.exchanged], axis=1)
        drops.append(100 * (effects.score[:, None] - columns))
        progress(number + 1, len(networks))
    names = [f"effect of removing {name}" for name in REMOVED]
    names += [f"effect of another species' {name}" for name in TELLING]
    return [
        Score(
            name,
            "",
            mean(drops[0][:, column]),
            *bootstrap(drops[0][:, column], seed),
            unit="percentage points",
            random_weights=mean(drops[1][:, column]) if len(drops) > 1 else NAN,
            note=f"{int((~np.isnan(drops[0][:, column])).sum())} test birds",
        )
        for column, name in enumerate(names)
    ]
