"""Which runs the paper's tables are made of: the experiments of each of their cells.

    cells = grid.cells("table2", "mini", seeds=(0, 1, 2))

Cells are named as in `results/paper/`, by row and column. A row that the paper quotes from others
and that nothing here trains has no cell. What the photo profile has of its own is in
`dpp.paper.photo`.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from dpp.backbones.backbone import FIRST_RESNET50
from dpp.data import catalogue
from dpp.evaluation.systems import SYSTEMS
from dpp.paper import photo
from dpp.paper.photo import Plan
from dpp.runs.ensembles import Ensemble
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, base_experiment, make_experiment

BACKBONES = {  # the paper's name -> torchvision's
    "VGG16": "vgg16",
    "VGG19": "vgg19",
    "Res34": "resnet34",
    "Res50": "resnet50",
    "Res152": "resnet152",
    "Dense121": "densenet121",
    "Dense161": "densenet161",
}
DOGS_COLUMNS = {"VGG-19": "VGG19", "ResNet-152": "Res152", "Densenet161": "Dense161"}
TABLES = {  # of each notebook that regenerates some
    "04_table1_architectures": ("table1",),
    "05_table2_ablations": ("table2",),
    "06_table3_state_of_the_art": ("table3",),
    "07_supplement_dogs": ("dogs_backbones", "dogs_models"),
}
# Networks that notebooks explain: how they differ from `example_experiment`.
EXAMPLES = {name.lower(): changes for name, changes in SYSTEMS.items()}
EXPLAINED = {  # by notebook
    "08_reasoning_process": ("deformable", "rigid", "protopnet", "prototree"),
    "09_local_analysis": ("deformable", "rigid"),
    "10_global_analysis": ("deformable",),
    "11_latent_space": ("deformable",),
    "12_browse_prototypes": ("deformable", "rigid"),
    "14_evaluate": tuple(EXAMPLES),
    "15_do_measures_measure": tuple(EXAMPLES),
}
MIXED = ("VGG19", "Res34", "Dense121")  # the members of an ensemble of three; our choice
RIGID = {"deformable": False}
SIX, TEN = {"kernel_size": 3, "per_class": 6}, {"kernel_size": 2, "per_class": 10}
ROWS_1 = {
    "Baseline": {"model": "cnn"},
    "ProtoPNet": {"model": "protopnet"},
    "Def. ProtoPNet (3x3,nd)": SIX | RIGID,
    "Def. ProtoPNet (3x3)": SIX,
    "Def. ProtoPNet (2x2,nd)": TEN | RIGID,
    "Def. ProtoPNet (2x2)": TEN,
}
MANY_SEEDS = {"Def. ProtoPNet (2x2,nd)", "Def. ProtoPNet (2x2)"}  # rows of Table 2 too
ON_DOGS = {"kernel_size": 3, "per_class": 10}
ROWS_DOGS = {
    "Baseline": {"model": "cnn"},
    "ProtoPNet": {"model": "protopnet"},
    "Def. ProtoPNet (nd)": ON_DOGS | RIGID,
    "Def. ProtoPNet": ON_DOGS,
}
ABLATIONS = [  # margin, orthogonality, deformations
    *((0.1, 0.0, False), (0.1, 0.0, True), (0.1, 0.1, False), (0.1, 0.1, True)),
    *((0.0, 0.0, True), (0.0, 0.1, True)),
]


def cells(
    table: str,
    profile: str = "mini",
    *,
    seeds: Sequence[int] = (0, 1, 2),
    backbones: Sequence[str] = (),
    data: str = "",
    resnet50: str = "",
    changes: Mapping = MappingProxyType({}),
) -> dict[tuple[str, str], list[Plan]]:
    """The experiments of a table's cells.

    Args:
        table: one of `tables.TITLES`.
        profile: whose networks and data they have.
        seeds: of the ablations and the headline rows; other cells have the first of them alone.
        backbones: names as in `BACKBONES`; none for all. Cells with others are empty.
        data: instead of the profile's birds, or of its dogs for the supplement's tables.
        resnet50: a file of weights for that backbone, which the paper has from iNaturalist; or
            "imagenet" for torchvision's where photo has version 1.
        changes: of every experiment.
    """
    make = _Maker(profile, tuple(seeds), tuple(backbones), data, resnet50, dict(changes))
    return PLANNERS[table](make)


def slim(column: str) -> str:
    """The slim network of a family, for small images; a VGG does not train without batch norm."""
    return f"slim_{BACKBONES[column]}" + ("_bn" if column.startswith("VGG") else "")


class _Maker:
    """Experiments as some options have them."""

    def __init__(self, profile, seeds, backbones, data, resnet50, changes):
        if not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
            raise UserError(f"seeds: expected at least one whole number from 0, got {list(seeds)}")
        if unknown := [name for name in backbones if name not in BACKBONES]:
            raise UserError(
                f"the paper has no backbone {unknown[0]!r}: choose one of {', '.join(BACKBONES)}"
            )
        self.profile, self.seeds, self.changes = profile, seeds, changes
        self.resnet50 = resnet50
        self.headline = photo.HEADLINE if profile == "photo" else "Res50"
        self.backbones = backbones or tuple(BACKBONES)
        drawn = profile not in ("paper", "photo")
        self.birds = data or ("posebirds" if drawn else "cub")
        self.dogs = data or ("posedogs" if drawn else "dogs")

    def __call__(self, column: str, data: str = "", *, seeds=(), **changes) -> list[Experiment]:
        """An experiment for each seed, by default the first; none if the backbone is not chosen."""
        if column not in self.backbones:
            return []
        chosen = {"backbone": self.backbone(column), "data": data or self.birds}
        if column == "Res50" and self.resnet50:
            chosen["weights"] = self.resnet50
        return [
            make_experiment(self.profile, **(chosen | changes | self.changes | {"seed": seed}))
            for seed in seeds or self.seeds[:1]
        ]

    def backbone(self, column: str) -> str:
        if self.profile == "photo" and column == "Res50" and not self.resnet50:
            return FIRST_RESNET50
        if self.profile in ("paper", "photo"):
            return BACKBONES[column]
        return slim(column)

    def mixed(self, **changes) -> list[Ensemble]:
        """One ensemble of three, with a backbone of each family."""
        members = [member for column in MIXED for member in self(column, **changes)]
        return [Ensemble(tuple(members))] if len(members) == len(MIXED) else []

    def repeated(self, **changes) -> list[Ensemble]:
        """One ensemble of five, of one backbone, that differ in their seeds."""
        members = self(self.headline, seeds=range(5), **changes)
        return [Ensemble(tuple(members))] if members else []


def _table_1(make: _Maker) -> dict:
    return {
        (row, column): make(
            column,
            seeds=make.seeds if column == make.headline and row in MANY_SEEDS else (),
            **changes,
        )
        for row, changes in ROWS_1.items()
        for column in BACKBONES
    }


def _table_2(make: _Maker) -> dict:
    return {
        (ablation(margin, weight, moves), "Accuracy"): make(
            make.headline,
            seeds=make.seeds,
            **TEN,
            margin=margin,
            orthogonality=weight,
            deformable=moves,
        )
        for margin, weight, moves in ABLATIONS
    }


def ablation(margin: float, weight: float, moves: bool) -> str:
    """The name of a row of Table 2."""
    return f"Margin {margin:g}, Ortho Loss {weight:g}, Deformations {'Yes' if moves else 'No'}"


def _table_3(make: _Maker) -> dict:
    full, boxed, dogs = "CUB-200-2011 (f)", "CUB-200-2011 (bb)", "Stanford Dogs"
    single = make.headline
    headline = {"column": single, "seeds": make.seeds}
    on_dogs = {"column": "Res152", "data": make.dogs, "seeds": make.seeds} | ON_DOGS
    three = {"kernel_size": 3}
    return {
        ("ProtoPNet*", boxed): make.mixed(model="protopnet", crop_to_box=True),
        ("ProtoPNet*", full): make.mixed(model="protopnet"),
        ("ProtoTree", full): make(single, model="prototree"),
        ("ProtoTree**", full): make.repeated(model="prototree"),
        ("TesNet*", boxed): make.mixed(model="tesnet", crop_to_box=True),
        ("TesNet*", full): make.mixed(model="tesnet"),
        ("Def. ProtoPNet [nd,3p,6pc]", full): make(single, **SIX, **RIGID),
        ("Def. ProtoPNet [nd,2p,10pc]", full): make(**headline, **TEN, **RIGID),
        ("Def. ProtoPNet [3p,1pc]", full): make(single, **three, per_class=1),
        ("Def. ProtoPNet [3p,3pc]", full): make(single, **three, per_class=3),
        ("Def. ProtoPNet [3p,6pc]", full): make(single, **SIX),
        ("Def. ProtoPNet [2p,10pc]", full): make(**headline, **TEN),
        ("Def. ProtoPNet** [2p,10pc]", full): make.repeated(**TEN),
        ("ProtoPNet", dogs): make("Dense161", make.dogs, model="protopnet"),
        ("Def. ProtoPNet[nd,3p,10pc]", dogs): make(**on_dogs, **RIGID),
        ("Def. ProtoPNet[3p,10pc]", dogs): make(**on_dogs),
    }


def _dogs_backbones(make: _Maker) -> dict:
    return {
        (row, column): make(
            backbone,
            make.dogs,
            seeds=make.seeds if backbone == "Res152" and row.startswith("Def.") else (),
            **changes,
        )
        for row, changes in ROWS_DOGS.items()
        for column, backbone in DOGS_COLUMNS.items()
    }


def _dogs_models(make: _Maker) -> dict:
    planned = _dogs_backbones(make)
    return {
        ("ProtoPNet", "accuracy"): planned["ProtoPNet", "Densenet161"],
        ("Def. ProtoPNet(nd)", "accuracy"): planned["Def. ProtoPNet (nd)", "ResNet-152"],
        ("Def. ProtoPNet", "accuracy"): planned["Def. ProtoPNet", "ResNet-152"],
    }


PLANNERS = {
    "table1": _table_1,
    "table2": _table_2,
    "table3": _table_3,
    "dogs_backbones": _dogs_backbones,
    "dogs_models": _dogs_models,
}


def column_of(experiment: Experiment) -> str:
    """The paper's name of an experiment's backbone."""
    full = experiment.backbone.removeprefix("slim_").removesuffix("_bn")
    full = "resnet50" if full == FIRST_RESNET50 else full
    return next(column for column, backbone in BACKBONES.items() if backbone == full)


def unfold(plans: Iterable[Plan]) -> list[Plan]:
    """Every run that some experiments need, once, each after those that it needs itself."""
    unfolded: dict[str, Plan] = {}
    for plan in plans:
        for needed in (*unfold(needs(plan)), plan):
            unfolded.setdefault(needed.name, needed)
    return list(unfolded.values())


def needs(plan: Plan) -> tuple[Experiment, ...]:
    """What must be run before: the members of an ensemble, the pretraining of a slim backbone."""
    if isinstance(plan, Ensemble):
        return plan.members
    based = plan.weights == "base" and plan.data in catalogue.DRAWN
    return (base_experiment(plan),) if based else ()
