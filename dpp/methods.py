"""How each kind of network is built and trained from an experiment."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import nn

from dpp import last_layer, projection
from dpp.backbones import Backbone
from dpp.baselines import plain_cnn
from dpp.data.loading import batches
from dpp.experiments import Experiment
from dpp.model import DeformableProtoPNet
from dpp.training import Objective, Phase, Schedule, Trainer, stage_one


class Method(NamedTuple):
    """What a `Trainer` needs to know of a kind of network."""

    build: Callable[[Experiment, Backbone, int], nn.Module]  # of a number of classes
    objective: Callable[[Experiment], Objective]
    schedule: Callable[[Experiment], Schedule]
    stages: Callable[[Experiment], Mapping[str, Callable[[Trainer], dict]]]


def build_deformable(experiment: Experiment, backbone: Backbone, classes: int) -> nn.Module:
    return DeformableProtoPNet(
        backbone,
        classes,
        per_class=experiment.per_class,
        kernel_size=experiment.kernel_size,
        deformable=experiment.deformable,
        variant=experiment.switches,
    )


def deformable_schedule(experiment: Experiment) -> Schedule:
    """The supplement's: prototypes; backbone too; offsets too; stages 2 and 3 on the way."""
    released = experiment.switches
    factor = 8 if "loss_weights" in released else 1
    weights = {
        "separation": factor * experiment.separation,
        "cluster": factor * experiment.cluster,
        "orthogonality": experiment.orthogonality,
    }
    early = weights | ({"orthogonality": 0.0} if "mixed_orthogonality" in released else {})
    slower = "offset_schedule" in released
    prototypes = {"prototypes": experiment.prototype_rate}
    warm = prototypes | {"backbone": experiment.backbone_rate}
    joint = warm | {"offsets": experiment.offset_rate * (0.2 if slower else 1)}
    warm_epochs = experiment.warm_epochs + experiment.second_warm_epochs
    return Schedule(
        phases=(
            Phase("warm", experiment.warm_epochs, prototypes, early),
            Phase("second warm", experiment.second_warm_epochs, warm, early),
            Phase(
                "joint",
                experiment.epochs - warm_epochs,
                joint,
                weights,
                draws={"offsets": experiment.offset_deviation},
                decay=0.2 if slower else experiment.decay,
                decay_every=experiment.decay_every,
            ),
        ),
        stages=("project",) if experiment.last_layer == "fixed" else ("project", "last layer"),
        after=experiment.project_after,
        weight_decay={"backbone": experiment.weight_decay},
    )


def project(trainer: Trainer) -> dict[str, float]:
    """Stage 2, on the training images as they are."""
    images = batches(trainer.loaders["projection"])
    origins = projection.project(trainer.model, images, trainer.splits.projection)
    trainer.provenance = projection.as_record(origins)
    return {"source_images": len({origin.image for origin in origins})}


def fit_last_layer(experiment: Experiment) -> Callable[[Trainer], dict[str, float]]:
    """Stage 3, on the scores of the training images as they are."""

    def stage(trainer: Trainer) -> dict[str, float]:
        model = trainer.model
        scores, labels = cache_scores(trainer)
        connections, classes = model.last_layer.weight.detach(), model.prototypes.classes
        if experiment.last_layer == "converged":
            fit = last_layer.fit_to_convergence(
                scores,
                labels,
                connections,
                classes,
                l1=experiment.l1,
                tolerance=experiment.last_layer_tolerance,
            )
        else:
            fit = last_layer.fit_by_passes(
                scores,
                labels,
                connections,
                classes,
                l1=experiment.l1,
                passes=experiment.last_layer_passes,
                rate=experiment.last_layer_rate,
                batch_size=experiment.batch_size,
                seed=experiment.seed,
            )
        with torch.no_grad():
            model.last_layer.weight.copy_(fit.weight)
        zeros = float((fit.weight == 0).double().mean())
        return {"loss": fit.losses[-1], "zero_connections": zeros, "converged": fit.converged}

    return stage


@torch.no_grad()
def cache_scores(trainer: Trainer) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores (N, P) and labels (N,) of the training images as they are."""
    trainer.model.eval()
    scores, labels = [], []
    for batch in batches(trainer.loaders["projection"]):
        scores.append(trainer.model.inspect(trainer.to_device(batch.images)).scores)
        labels.append(batch.labels)
    return torch.cat(scores), torch.cat(labels).to(trainer.device)


def cnn_schedule(experiment: Experiment) -> Schedule:
    """The classifier alone, then all of it."""
    rates = {"classifier": experiment.prototype_rate}
    joint = rates | {"backbone": experiment.backbone_rate}
    epochs = experiment.epochs - experiment.warm_epochs
    decay = {"decay": experiment.decay, "decay_every": experiment.decay_every}
    return Schedule(
        phases=(
            Phase("warm", experiment.warm_epochs, rates),
            Phase("joint", epochs, joint, **decay),
        ),
        weight_decay={"backbone": experiment.weight_decay},
    )


METHODS = {
    "deformable": Method(
        build=build_deformable,
        objective=lambda experiment: stage_one(experiment.margin),
        schedule=deformable_schedule,
        stages=lambda experiment: {"project": project, "last layer": fit_last_layer(experiment)},
    ),
    "cnn": Method(
        build=lambda experiment, backbone, classes: plain_cnn.PlainCNN(backbone, classes),
        objective=lambda experiment: plain_cnn.objective,
        schedule=cnn_schedule,
        stages=lambda experiment: {},
    ),
}
