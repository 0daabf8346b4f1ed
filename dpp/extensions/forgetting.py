"""Beyond the paper: further training that does not find forgotten prototypes again.

After Bontempelli, Teso, Tentori, Giunchiglia and Passerini, "Concept-level Debugging of
Part-Prototype Networks" (ProtoPDebug), ICLR 2023. Someone who knows the images says which
prototypes stand for something that should not count; its forgetting loss lowers how strongly the
prototypes of a class are activated by what the forgotten ones of that class stood for. Here that is
a few patches of training images, where the network that had the forgotten prototypes was most
similar to them. Their features are computed anew in each step, since training moves them too.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpp import ops
from dpp.data.batches import ImageDataset, batches, to_device
from dpp.methods.protopnet import ProtoPNet, similarity, squared_distance
from dpp.methods.tesnet import TesNet
from dpp.networks import losses
from dpp.system.errors import UserError
from dpp.training import last_layer
from dpp.training.experiments import Experiment
from dpp.training.trainer import Method, Objective, Phase, Schedule, Trainer

WEIGHT = 10.0  # of the forgetting loss
SIGHTINGS = 5  # training images on which a forgotten prototype is looked for
MOST = 16  # of them that a step takes
AROUND = 1  # cells around a forgotten place that count as the same


class Sightings(NamedTuple):
    """Where forgotten prototypes were found on un-augmented training images."""

    images: Tensor  # (S,), places in the data set's records
    centres: Tensor  # (S,), flat indices into H*W
    labels: Tensor  # (S,), the classes


@torch.no_grad()
def find_sightings(trainer: Trainer, forgotten: Sequence[int], count: int = SIGHTINGS) -> Sightings:
    """The training images of their class that are most similar to forgotten prototypes.

    Args:
        trainer: of the network that still has them.
        forgotten: (F,), their numbers.
        count: images of each, as far as the class has so many.
    """
    model, numbers = trainer.model.eval(), torch.tensor(list(forgotten))
    scores, places, labels, indices = [], [], [], []
    for batch in batches(trainer.loaders["projection"]):
        output = model.inspect(trainer.to_device(batch.images))
        scores.append(output.scores[:, numbers].cpu())
        places.append(output.places[:, numbers].cpu())
        labels.append(batch.labels)
        indices.append(batch.indices)
    scores, places, labels, indices = map(torch.cat, (scores, places, labels, indices))
    classes = model.prototypes.classes.cpu()[numbers]  # (F,)
    scores = scores.masked_fill(~losses.own_class(labels, classes), -torch.inf)
    top = scores.topk(min(count, len(scores)), dim=0)
    rows, columns = top.indices.flatten(), torch.arange(len(numbers)).repeat(len(top.indices))
    found = top.values.flatten().isfinite()  # a class may have fewer images
    rows, columns = rows[found], columns[found]
    return Sightings(indices[rows], places[rows, columns], classes[columns])


def forgetting(
    model: nn.Module, images: Tensor, centres: Tensor, labels: Tensor, around: int = AROUND
) -> Tensor:
    """The forgetting loss: how similar a class's prototypes are to what it should forget.

    The similarity is ProtoPNet's, log((d + 1) / (d + 1e-4)) of the squared distance d; vectors that
    are compared by their cosine have unit length for it. It is steep where they are nearly equal.
    Of each forgotten patch the most similar prototype and the most similar of the cells around
    count; the mean over patches is taken.

    Args:
        model: the network.
        images: (S, 3, H, W).
        centres: (S,), of the forgotten prototypes on them.
        labels: (S,), the forgotten prototypes' classes.
        around: how many cells around the centres to look at.
    """
    layer = model.prototypes
    with frozen_statistics(model.backbone):
        z, offsets = model.locate(images)
    cells = neighbours(centres.to(z.device), tuple(z.shape[2:]), around)
    shape = {"kernel_size": layer.vectors.shape[-1]} | layer.geometry
    samples = ops.sample_parts(z, offsets, cells, **shape)  # (S, Q, C + 1, K, K)
    alike = similarity(patch_distances(model, samples))  # (S, Q, P)
    others = ~losses.own_class(labels.to(z.device), layer.classes)
    return alike.amax(dim=1).masked_fill(others, -torch.inf).amax(dim=1).mean()


def patch_distances(model: nn.Module, samples: Tensor) -> Tensor:
    """Squared distances (S, Q, P) of patches (S, Q, C + 1, K, K) to all prototypes."""
    layer = model.prototypes
    if isinstance(model, ProtoPNet) and not isinstance(model, TesNet):
        return squared_distance(samples[:, :, None, :-1], layer.vectors)
    patches = functional.normalize(samples.flatten(2), dim=2)
    vectors = functional.normalize(layer.normalised().flatten(1), dim=1)
    return (2 - 2 * patches @ vectors.T).clamp_min(0)


def neighbours(centres: Tensor, cells: tuple[int, int], around: int) -> Tensor:
    """(S, Q), the cells of a map within `around` rows and columns of centres (S,), flat indices.

    Beyond the border, the nearest cell of the map stands in.
    """
    height, width = cells
    steps = torch.arange(-around, around + 1, device=centres.device)
    rows = (centres[:, None] // width + steps).clamp(0, height - 1)
    columns = (centres[:, None] % width + steps).clamp(0, width - 1)
    return (rows[:, :, None] * width + columns[:, None]).flatten(1)


class frozen_statistics:
    """While it lasts, a module uses its batch-norm statistics and does not change them."""

    def __init__(self, module: nn.Module):
        self.module = module

    def __enter__(self) -> None:
        self.training = {child: child.training for child in self.module.modules()}
        self.module.eval()

    def __exit__(self, *error) -> None:
        for child, training in self.training.items():
            child.training = training


def with_forgetting(
    objective: Objective,
    dataset: ImageDataset,
    sightings: Sightings,
    weight: float = WEIGHT,
    seed: int = 0,
) -> Objective:
    """An objective of stage 1 with the forgetting loss added.

    Args:
        objective: without it.
        dataset: the un-augmented training images.
        sightings: of the forgotten prototypes.
        weight: of the forgetting loss.
        seed: of which sightings a step takes, if there are more than `MOST`.
    """
    generator = torch.Generator().manual_seed(seed)

    def forgetful(model: nn.Module, images: Tensor, labels: Tensor, phase: Phase):
        terms = objective(model, images, labels, phase)
        chosen = torch.randperm(len(sightings.images), generator=generator)[:MOST]
        seen = dataset.batch([(0, index) for index in sightings.images[chosen].tolist()]).images
        seen = to_device(seen, model.prototypes.vectors.device)  # images, or a trunk's features
        term = forgetting(model, seen, sightings.centres[chosen], sightings.labels[chosen])
        loss = terms["loss"] + weight * term
        return terms | {"forgetting": term, "loss": loss}

    return forgetful


def make_method(
    method: Method, dataset: ImageDataset, sightings: Sightings, epochs: int, weight: float = WEIGHT
) -> Method:
    """A method that trains a finished network further, then projects and fits it to convergence.

    Args:
        method: that trained the network.
        dataset: the un-augmented training images.
        sightings: of the forgotten prototypes.
        epochs: of joint training, at the rates that it began with.
        weight: of the forgetting loss.
    """

    def schedule(experiment: Experiment) -> Schedule:
        before = method.schedule(experiment)
        joint = before.phases[-1]
        phase = replace(joint, name="steer", epochs=epochs, resets={})
        stages = ("project", "last layer")
        return Schedule((phase,), stages, (epochs,), before.weight_decay)

    def objective(experiment: Experiment) -> Objective:
        if experiment.model == "deformable" and experiment.switches.mixed_orthogonality:
            raise UserError(
                "the released code's orthogonality loss needs equally many prototypes of all "
                "classes: steer without fine-tuning"
            )
        given = (dataset, sightings, weight, experiment.seed)
        return with_forgetting(method.objective(experiment), *given)

    def stages(experiment: Experiment) -> dict[str, Callable[[Trainer], dict[str, float]]]:
        exact = replace(experiment, last_layer="converged")
        return dict(method.stages(experiment)) | {"last layer": last_layer.stage(exact)}

    return method._replace(schedule=schedule, objective=objective, stages=stages)
