"""Deformable ProtoPNet itself: its network, loss and three stages, from an experiment."""

from torch import Tensor, nn

from dpp.networks import losses
from dpp.networks.backbones import Backbone
from dpp.networks.model import DeformableProtoPNet
from dpp.training import last_layer, projection
from dpp.training.experiments import Experiment
from dpp.training.trainer import Method, Objective, Phase, Schedule


def build(experiment: Experiment, backbone: Backbone, classes: int) -> nn.Module:
    return DeformableProtoPNet(
        backbone,
        classes,
        per_class=experiment.per_class,
        kernel_size=experiment.kernel_size,
        deformable=experiment.deformable,
        variant=experiment.switches,
    )


def schedule(experiment: Experiment) -> Schedule:
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
    deviation = None if experiment.offset_start == "he" else experiment.offset_deviation
    return Schedule(
        phases=(
            Phase("warm", experiment.warm_epochs, prototypes, early),
            Phase("second warm", experiment.second_warm_epochs, warm, early),
            Phase(
                "joint",
                experiment.epochs - warm_epochs,
                joint,
                weights,
                resets={"offsets": deviation},
                decay=0.2 if slower else experiment.decay,
                decay_every=experiment.decay_every,
            ),
        ),
        stages=("project",) if experiment.last_layer == "fixed" else ("project", "last layer"),
        after=experiment.project_after,
        weight_decay={"backbone": experiment.weight_decay},
    )


def stage_one(margin: float) -> Objective:
    """The loss of stage 1 (equation 14) with a margin phi, of a network, images, labels, phase."""

    def objective(
        model: DeformableProtoPNet, images: Tensor, labels: Tensor, phase: Phase
    ) -> dict[str, Tensor]:
        prototypes, vectors = model.prototypes, model.prototypes.normalised()
        classes, variant = prototypes.classes, prototypes.variant
        output = model.inspect(images, vectors)
        margined = losses.subtractive_margin(output.cosines, labels, classes, margin)
        margined = model.activate(margined)
        seen = margined if "margin_in_separation" in variant else output.scores
        reduction = "mean" if "mean_cross_entropy" in variant else "sum"
        if "mixed_orthogonality" in variant:
            orthogonality = losses.mixed_orthogonality(prototypes.vectors, classes)
        else:
            orthogonality = losses.orthogonality(vectors, classes, prototypes.length)
        terms = {
            "cross_entropy": losses.cross_entropy(
                margined, labels, model.last_layer.weight, reduction
            ),
            "separation": losses.separation(seen, labels, classes),
            "cluster": losses.cluster(seen, labels, classes),
            "orthogonality": orthogonality,
        }
        # Parts that move by no number lie outside the map and would hide features that are none.
        inner = [output.z] if output.offsets is None else [output.z, output.offsets]
        finite = sum(0 * values.detach().sum() for values in inner)
        return terms | {
            "loss": losses.total(terms, phase.weights) + finite,
            "accuracy": (output.logits.argmax(dim=1) == labels).float().mean(),
        }

    return objective


METHOD = Method(
    build=build,
    objective=lambda experiment: stage_one(experiment.margin),
    schedule=schedule,
    stages=lambda experiment: {
        "project": projection.stage,
        "last layer": last_layer.stage(experiment),
    },
)
