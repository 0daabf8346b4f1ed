"""Deformable ProtoPNet itself: its network, loss and three stages, from an experiment.

What the released code does differently is one line each, under `switches`.
"""

from torch import Tensor, nn

from dpp.backbones.backbone import Backbone
from dpp.networks import losses
from dpp.networks.model import DeformableProtoPNet, Output
from dpp.training import last_layer, projection, prototype_start
from dpp.training.experiments import Experiment
from dpp.training.trainer import Method, Objective, Phase, Schedule


def build(experiment: Experiment, backbone: Backbone, classes: int) -> nn.Module:
    """The network of an experiment, for a number of classes."""
    return DeformableProtoPNet(
        backbone,
        classes,
        per_class=experiment.per_class,
        kernel_size=experiment.kernel_size,
        deformable=experiment.deformable,
        switches=experiment.switches,
    )


def schedule(experiment: Experiment) -> Schedule:
    """The supplement's: prototypes; backbone too; offsets too; stages 2 and 3 on the way."""
    switches = experiment.switches
    factor = 8 if switches.loss_weights else 1
    joint_weights = {
        "separation": factor * experiment.separation,
        "cluster": factor * experiment.cluster,
        "orthogonality": experiment.orthogonality,
    }
    warm_weights = joint_weights | ({"orthogonality": 0.0} if switches.mixed_orthogonality else {})
    warm_rates = {"prototypes": experiment.prototype_rate}
    second_rates = warm_rates | {"backbone": experiment.backbone_rate}
    offset_rate = experiment.offset_rate * (0.2 if switches.offset_schedule else 1)
    deviation = None if experiment.offset_start == "he" else experiment.offset_deviation
    joint = Phase(
        "joint",
        experiment.epochs - experiment.warm_epochs - experiment.second_warm_epochs,
        second_rates | {"offsets": offset_rate},
        joint_weights,
        resets={"offsets": deviation},
        decay=0.2 if switches.offset_schedule else experiment.decay,
        decay_every=experiment.decay_every,
    )
    return Schedule(
        phases=(
            Phase("warm", experiment.warm_epochs, warm_rates, warm_weights),
            Phase("second warm", experiment.second_warm_epochs, second_rates, warm_weights),
            joint,
        ),
        before=() if experiment.prototype_start == "uniform" else ("start",),
        stages=("project",) if experiment.last_layer == "fixed" else ("project", "last layer"),
        after=experiment.project_after,
        weight_decay={"backbone": experiment.weight_decay},
    )


def loss_terms(
    model: DeformableProtoPNet, output: Output, vectors: Tensor, labels: Tensor, margin: float
) -> dict[str, Tensor]:
    """The four terms of equation 14, before they are weighed.

    Args:
        model: the network.
        output: what it saw in N images.
        vectors: (P, C + 1, K, K), its normalised prototypes.
        labels: (N,).
        margin: phi of equation 12.
    """
    prototypes, classes = model.prototypes, model.prototypes.classes
    switches = prototypes.switches
    margined = losses.subtractive_margin(output.cosines, labels, classes, margin)
    margined = model.activate(margined)
    scores = margined if switches.margin_in_separation else output.scores
    reduction = "mean" if switches.mean_cross_entropy else "sum"
    if switches.mixed_orthogonality:
        orthogonality = losses.mixed_orthogonality(prototypes.vectors, classes)
    else:
        orthogonality = losses.orthogonality(vectors, classes, prototypes.length)
    return {
        "cross_entropy": losses.cross_entropy(margined, labels, model.last_layer, reduction),
        "separation": losses.separation(scores, labels, classes),
        "cluster": losses.cluster(scores, labels, classes),
        "orthogonality": orthogonality,
    }


def stage_one(margin: float) -> Objective:
    """The loss of stage 1 (equation 14) with a margin phi, of a network, images, labels, phase."""

    def objective(
        model: DeformableProtoPNet, images: Tensor, labels: Tensor, phase: Phase
    ) -> dict[str, Tensor]:
        vectors = model.prototypes.normalised()
        output = model.inspect(images, vectors)
        terms = loss_terms(model, output, vectors, labels, margin)
        # NaN offsets count as off the map and would mask NaN features: 0 * NaN shows both.
        inner = [output.z] if output.offsets is None else [output.z, output.offsets]
        nan_or_zero = sum(0 * values.detach().sum() for values in inner)
        return terms | {
            "loss": losses.total(terms, phase.weights) + nan_or_zero,
            "accuracy": (output.logits.argmax(dim=1) == labels).float().mean(),
        }

    return objective


METHOD = Method(
    build=build,
    objective=lambda experiment: stage_one(experiment.margin),
    schedule=schedule,
    stages=lambda experiment: {
        "start": prototype_start.stage,
        "project": projection.stage,
        "last layer": last_layer.stage(experiment),
    },
)
