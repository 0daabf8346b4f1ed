"""How each kind of network is built and trained from an experiment; here the paper's own."""

from torch import nn

from dpp import last_layer, projection
from dpp.backbones import Backbone
from dpp.baselines import plain_cnn, protopnet, prototree, tesnet
from dpp.experiments import Experiment
from dpp.model import DeformableProtoPNet
from dpp.training import Method, Phase, Schedule, stage_one


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


METHODS = {
    "deformable": Method(
        build=build_deformable,
        objective=lambda experiment: stage_one(experiment.margin),
        schedule=deformable_schedule,
        stages=lambda experiment: {
            "project": projection.stage,
            "last layer": last_layer.stage(experiment),
        },
    ),
    "cnn": plain_cnn.METHOD,
    "protopnet": protopnet.METHOD,
    "tesnet": tesnet.METHOD,
    "prototree": prototree.METHOD,
}
