"""What the photo profile has in the paper's tables: all of its own choices.

- Table 2 and the birds of Table 3 are on ResNet-34, whose prototypes cost a quarter of those of the
  paper's ResNet-50.
- The ResNet-50 of Table 1 is version 1 (`resnet50_v1`); `resnet50="imagenet"` makes it
  torchvision's, which `make reproduce` does where the weights of version 1 are not in
  `DPP_WEIGHTS`.
- With `DPP_WEIGHTS`, only networks whose ImageNet weights are there, or were downloaded before, are
  trained; without it all are, with torchvision's downloads. Data sets must be there. What cannot be
  trained is left out of the queue, with one line for each reason, and reads "not run".
"""

from collections.abc import Iterable, Mapping

from dpp.backbones.backbone import FIRST_RESNET50
from dpp.backbones.pretrained import find_file, find_local
from dpp.data import catalogue
from dpp.runs.ensembles import Ensemble
from dpp.system import paths
from dpp.training.experiments import Experiment

Plan = Experiment | Ensemble

HEADLINE = "Res34"  # where the paper's Tables 2 and 3 have Res50
NOTES = {  # below a table
    "table1": "Photo: Res50 begins from ImageNet, the paper's from iNaturalist.",
    "table2": "Photo: on ResNet-34, the paper on ResNet-50.",
    "table3": "Photo: birds on ResNet-34 (**: five of them), the paper on ResNet-50.",
}


def resnet50() -> str:
    """The tables' option `resnet50` on this machine: torchvision's where version 1 is not there."""
    return "" if find_local(FIRST_RESNET50) else "imagenet"


def members(plan: Plan) -> tuple[Experiment, ...]:
    """The networks that a plan needs: itself, or those of an ensemble."""
    return plan.members if isinstance(plan, Ensemble) else (plan,)


def obstacle(experiment: Experiment) -> tuple[str, str]:
    """What keeps a network from being trained here: "data" or "weights", and which; or nothing."""
    if experiment.data in catalogue.PUBLISHED and not catalogue.find(experiment.data):
        return "data", experiment.data
    here = paths.weights_root() is not None or experiment.backbone == FIRST_RESNET50
    wanted = here and experiment.weights == "imagenet"
    if wanted and not find_file(experiment.backbone, "imagenet"):
        return "weights", experiment.backbone
    return "", ""


def trainable(plans: Iterable[Plan]) -> tuple[list[Plan], list[str]]:
    """What can be trained here, and a line for each reason why the rest cannot.

    Of an ensemble that cannot be made, the ResNet-34 that sees full images is trained all the same:
    it is what the single networks of Table 3 are compared on.
    """
    chosen: dict[str, Plan] = {}
    left: dict[tuple[str, str], set[str]] = {}
    for plan in plans:
        lacking = {member: obstacle(member) for member in members(plan)}
        wrong = next((what for what in lacking.values() if what[0]), None)
        if wrong is None:
            chosen[plan.name] = plan
            continue
        left.setdefault(wrong, set()).add(plan.name)
        alone = (one for one, what in lacking.items() if not what[0] and isinstance(plan, Ensemble))
        chosen |= {
            one.name: one for one in alone if one.backbone == "resnet34" and not one.crop_to_box
        }
    return list(chosen.values()), [f"not queued: {line}" for line in _describe(left)]


def _describe(left: Mapping[tuple[str, str], set[str]]) -> list[str]:
    lines = []
    for name, data in catalogue.PUBLISHED.items():
        if mine := left.get(("data", name)):
            lines.append(
                f"{_count(mine)} on {data.title}, which is not under {paths.data_root()}: "
                f'run "dpp data {name}" or set DPP_DATA'
            )
    missing = {what: names for (kind, what), names in left.items() if kind == "weights"}
    if missing:
        lines.append(
            f"{_count(set().union(*missing.values()))} that need ImageNet weights of "
            f"{', '.join(missing)}, which are not in the folder DPP_WEIGHTS: put them there, or "
            "unset it to download them"
        )
    return lines


def _count(names: set[str]) -> str:
    return f"{len(names)} run{'s' * (len(names) > 1)}"
