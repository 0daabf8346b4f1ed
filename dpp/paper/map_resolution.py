"""Does the map's resolution decide whether moving helps? VGG-16 against ResNet-34, on photographs.

VGG-16 has a map of 14 x 14 cells of its own, and the paper's one large effect of deformation with
3 x 3 parts; ResNet-34's is one of 7 x 7, upsampled. Both are trained rigid and deformable on every
tenth class of CUB-200-2011, as the photo profile trains on all; batches of 8 weigh the
orthogonality of 20 classes as the paper's batches of 80 weigh that of 200.
"""

from pathlib import Path

from dpp.data import catalogue
from dpp.data.class_subset import class_subset
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, make_experiment

EVERY = 10  # of the classes
FOLDER = "CUB_every_10th"
BATCH = 8
BACKBONES = ("vgg16", "resnet34")
KINDS = {
    "rigid": {"deformation": "none"},
    "predicted": {"deformation": "predicted"},
    "search": {"deformation": "search", "offset_start": "normal"},
}


def subset() -> Path:
    """The folder of every tenth class, under the data root; written at first use."""
    whole = catalogue.find("cub")
    if whole is None:
        raise UserError('CUB-200-2011 is not there: run "dpp data cub" or set DPP_DATA')
    return class_subset(whole, paths.data_root() / FOLDER, EVERY).root


def design(backbone: str, kind: str, seed: int, **changes) -> Experiment:
    """An experiment of the study: 3 x 3 prototypes, `rigid`, `predicted` or `search`."""
    fields = {"backbone": backbone, "data": str(subset()), "batch_size": BATCH, "seed": seed}
    return make_experiment("photo", **(fields | KINDS[kind] | changes))
