"""What a folder of someone's own images is trained with: rules by its size, for what is not given.

A profile's schedule is made for thousands of images. A folder may have 4 classes of 20 photographs,
where the profile's batch would be the whole folder, an epoch one step, and more prototypes than
images to project them on; or 200 classes of 60, where the profile's values are right. So:

- **batch size**: the profile's, if an epoch then has at least `LEAST_BATCHES` batches; otherwise a
  power of two that gives as many, but at least `SMALLEST_BATCH` images: batch norm needs some.
- **epochs**: the profile's, or a multiple of them that gives at least `LEAST_STEPS` steps in all;
  warm epochs, decay and projections are stretched alike. Given epochs are divided in the same way.
- **prototypes of a class**: the profile's, but at most one for each `IMAGES_PER_PROTOTYPE` training
  images of a class of median size: with more, several are projected on the same place.
- **last layer**: fitted to convergence. A fixed number of passes is a number of steps, and few
  images make too few for the connections to move.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, make_experiment

LEAST_BATCHES, SMALLEST_BATCH = 3, 8
LEAST_STEPS = 100
IMAGES_PER_PROTOTYPE, LEAST_PROTOTYPES = 4, 2
STRETCHED = ("warm_epochs", "second_warm_epochs", "decay_every")  # with the epochs
SCHEDULE = (*STRETCHED, "epochs", "project_after")
PROTOTYPES_OF_CLASSES = ("deformable", "protopnet", "tesnet")  # models that have them
FEW_TO_VALIDATE = 100  # below this, one image is more than a point


class Choice(NamedTuple):
    """A field that was chosen by a rule, and why."""

    name: str
    value: int | str
    why: str


def choose(
    profile: str, counts: Sequence[int], given: dict
) -> tuple[Experiment, tuple[Choice, ...]]:
    """The experiment for a folder of images, and what was chosen for it.

    Args:
        profile: whose values are scaled.
        counts: training images of each class, without those held out for validation.
        given: fields of the experiment that are not to be chosen.
    """
    others = {name: value for name, value in given.items() if name not in SCHEDULE}
    usual = make_experiment(profile, **others)
    images = sum(counts)
    batch = given.get("batch_size") or choose_batch(images, usual.batch_size)
    check_batch(batch, images)
    steps = images // batch
    last = max(given.get("project_after", ()), default=0)
    epochs = given.get("epochs") or last or choose_epochs(steps, usual.epochs)
    prototypes = choose_prototypes(counts, usual.per_class)
    choices = [
        Choice("batch_size", batch, f"{images} training images, steps an epoch: {steps}"),
        Choice(
            "epochs", epochs, f"{epochs * steps} steps in all; {profile}: {usual.epochs} epochs"
        ),
        Choice("per_class", prototypes, f"a class has {median(counts):g} training images (median)"),
        Choice("last_layer", "converged", "a few passes would hardly move the connections"),
    ]
    if usual.model not in PROTOTYPES_OF_CLASSES:
        choices = choices[:2]
    shown = [choice for choice in choices if choice.name not in given]
    values = {choice.name: choice.value for choice in shown} | given
    if epochs != usual.epochs:
        values = stretch(usual, epochs) | values
    return make_experiment(profile, **values), tuple(shown)


def check_batch(batch: int, images: int) -> None:
    """Raises a `UserError` if there are too few training images for one batch."""
    if batch > images:
        raise UserError(
            f"--batch-size {batch} is more than the {images} images to train on: give at most "
            f"{images}; without --batch-size and --profile it is chosen"
        )


def choose_batch(images: int, usual: int) -> int:
    """The images of a batch, for a number of training images."""
    if images >= LEAST_BATCHES * usual:
        return usual
    fitting = 2 ** int(math.log2(max(images / LEAST_BATCHES, 1)))
    return min(max(fitting, SMALLEST_BATCH), usual, images)


def choose_epochs(steps: int, usual: int) -> int:
    """The epochs, of so many steps each, as a multiple of the usual ones."""
    return usual * max(math.ceil(LEAST_STEPS / (steps * usual)), 1)


def choose_prototypes(counts: Sequence[int], usual: int) -> int:
    """The prototypes of a class, for the training images of each class."""
    typical = int(median(counts))
    fitting = max(typical // IMAGES_PER_PROTOTYPE, LEAST_PROTOTYPES)
    return max(min(fitting, usual, typical), 1)


def stretch(usual: Experiment, epochs: int) -> dict:
    """The fields of a schedule that divide another number of epochs as the usual ones are."""
    scale = epochs / usual.epochs
    values = {name: int(getattr(usual, name) * scale) for name in STRETCHED}
    values["decay_every"] = max(values["decay_every"], 1)
    after = sorted({max(round(epoch * scale), 1) for epoch in usual.project_after})
    return values | {"epochs": epochs, "project_after": tuple(after)}


def warnings(counts: Sequence[int], validation: int, experiment: Experiment) -> list[str]:
    """What the person who trains on a folder should know about its size.

    Args:
        counts: training images of each class.
        validation: images held out for validation, of all classes.
        experiment: that is to be trained.
    """
    found = []
    if validation < FEW_TO_VALIDATE:
        found.append(
            f"validation has {validation} images: one of them is {100 / validation:.1f} points, so "
            "do not choose settings by its accuracy; more images, or --validation-fraction, help"
        )
    owned = experiment.model in PROTOTYPES_OF_CLASSES
    if owned and (fewer := sum(count < experiment.per_class for count in counts)):
        found.append(
            f"{fewer} of {len(counts)} classes have fewer training images than the "
            f"{experiment.per_class} prototypes of a class: some will repeat others"
        )
    return found
