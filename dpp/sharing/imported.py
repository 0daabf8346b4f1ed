"""The authors' checkpoints as runs: Deformable ProtoPNet, ProtoPNet and TesNet; `dpp import FILE`.

Read from the authors' public code, as facts: all three keep their backbone under `features`, their
prototypes as `prototype_vectors` and their connections as `last_layer.weight`, with the prototypes
in order of the classes. Deformable ProtoPNet has its offset branch under `conv_offset`, upsamples
the backbone's map, and is here the variant `released`; the other two have two 1x1 convolutions
under `add_on_layers` and keep the backbone's own map. Their state dicts look the same: they are
told apart by the prototypes' channels, 128 and 64 in the authors' settings.

Their scripts save whole pickled networks, which can run any code when they are opened; only plain
tensors are read here.
"""

import time
from dataclasses import asdict, replace
from pathlib import Path

from torch import Tensor, nn

from dpp.backbones.backbone import make_backbone
from dpp.runs import Run, choose_device, derived, load_source, making, open_run, resumable
from dpp.runs.method_of import method_of
from dpp.sharing.checkpoint_layout import UNUSED, Layout, read_layout, read_state
from dpp.system import files, paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, make_experiment

DATA = {200: "cub", 120: "dogs"}  # by the number of classes
IGNORED = ("ones",)  # a constant of the authors' networks


def import_checkpoint(
    path: Path,
    *,
    model: str = "",
    backbone: str = "",
    data: str = "",
    crop_to_box: bool | None = None,
    image_size: int = 224,
    out: Path | None = None,
    device: str = "cpu",
) -> Run:
    """Makes a run of a checkpoint, or finds it if the same was done before.

    The run's accuracy is measured on the test images of the data. It has no origins: a checkpoint
    does not say which images its prototypes come from.

    Args:
        path: a state dict, as torch saves it.
        model: deformable, protopnet or tesnet, if the shapes do not say it rightly.
        backbone: its name, if the shapes do not say it rightly.
        data: that it was trained on; by default CUB-200-2011 or Stanford Dogs, by the number of
            classes.
        crop_to_box: whether it was trained on images cropped to their boxes; by default as in the
            authors' settings: ProtoPNet and TesNet were, Deformable ProtoPNet was not.
        image_size: side of its images.
        out: the run's folder; by default among the runs.
        device: see `choose_device`.

    Raises:
        UserError: it is no such checkpoint, or does not fit.
    """
    path = Path(path).expanduser()
    state = read_state(path)
    layout = read_layout(state, str(path), model, backbone)
    experiment = describe(layout, path, data, crop_to_box, image_size)
    network = fill(experiment, layout.classes, state, str(path)).to(choose_device(device)).eval()
    source = load_source(experiment)
    fitting = max(1, len(source.train) // 2)  # should it be trained further
    experiment = replace(experiment, batch_size=min(experiment.batch_size, fitting))
    if len(source.class_names) != layout.classes:
        raise UserError(
            f"{path} has {layout.classes} classes and {source.name} under {source.root} has "
            f"{len(source.class_names)}: name the data that it was trained on with --data"
        )
    described = {"file": path.name, "sha256": files.sha256(path)} | asdict(experiment)
    digest = files.sha256_of_json(described)[:6]
    folder = paths.runs_root() / f"{experiment.name}-imported-{digest}"
    folder = Path(out).expanduser() if out else folder
    described = {"file": path.name, "sha256": described["sha256"], "fields": digest}
    if existing := derived.find_same(folder, "imported_from", described):
        return existing
    begun = time.perf_counter()
    trainer = making.trainer_of(experiment, network, source)
    row = {"stage": "import", "epoch": 0, "phase": "import"} | derived.evaluate(trainer)
    history = [row | {"seconds": round(time.perf_counter() - begun, 3)}]
    with files.locked(folder, wait=False):
        files.write_json(folder / "experiment.json", asdict(experiment))
        resumable.write_metrics(folder, history)
        facts = {"imported_from": described}
        making.finish(experiment, trainer, folder, history, source, path.name, **facts)
    return open_run(folder)


def describe(
    layout: Layout, path: Path, data: str, crop_to_box: bool | None, image_size: int
) -> Experiment:
    """The experiment that builds a checkpoint's network; arguments as for `import_checkpoint`."""
    deformable = layout.model == "deformable"
    if not data and layout.classes not in DATA:
        raise UserError(
            f"{path} has {layout.classes} classes: name the data that it was trained on with --data"
        )
    return make_experiment(
        "paper",
        model=layout.model,
        backbone=layout.backbone,
        weights=path.name if layout.stacked else "none",  # only a file has a stacked branch
        data=data or DATA[layout.classes],
        crop_to_box=(not deformable) if crop_to_box is None else crop_to_box,
        image_size=image_size,
        kernel_size=layout.kernel_size if deformable else Experiment.kernel_size,
        per_class=layout.per_class,
        variant="released" if deformable else "paper",
        cut_after="" if deformable else native_end(layout.backbone),
        project_after=(),
    )


def native_end(backbone: str) -> str:
    """The last layer of a backbone whose map is not upsampled; of a VGG, its last pooling."""
    if backbone.startswith("vgg"):
        return "features." + str(len(make_backbone(backbone).features))
    return "layer4" if backbone.startswith("resnet") else "relu"


def fill(experiment: Experiment, classes: int, state: dict[str, Tensor], origin: str) -> nn.Module:
    """The network of an experiment with a checkpoint's tensors.

    Args:
        experiment: from `describe`.
        classes: how many.
        state: from `read_state`.
        origin: the file, for messages.
    """
    backbone = make_backbone(
        experiment.backbone,
        stacked_branch=experiment.stacked_branch,
        cut_after=experiment.cut_after,
    )
    network = method_of(experiment).build(experiment, backbone, classes)
    names = {
        "features.": "backbone.",
        "add_on_layers.": "add_on.",
        "conv_offset.": "offsets.",
        "prototype_vectors": "prototypes.vectors",
    }
    renamed = {}
    for key, value in state.items():
        if key not in IGNORED:
            theirs = next((theirs for theirs in names if key.startswith(theirs)), "")
            ours = names.get(theirs, "") + key.removeprefix(theirs)
            renamed[ours] = value.float() if value.is_floating_point() else value
    expected = network.state_dict()
    own = {"prototypes.classes"} | {key for key in expected if key.endswith(UNUSED)}
    lacking = [key for key in expected if key not in renamed and key not in own]
    further = [key for key in renamed if key not in expected]
    other = [k for k, v in renamed.items() if k in expected and v.shape != expected[k].shape]
    for problem, keys in {"lacks": lacking, "has": further, "has another shape of": other}.items():
        if keys:
            raise UserError(
                f"{origin} does not fit {experiment.model} on {experiment.backbone}: it {problem} "
                f"{keys[0]}, in dpp's names"
            )
    network.load_state_dict(renamed, strict=False)
    return network


def as_text(run: Run) -> str:
    """What was imported, what was assumed, and how it does."""
    experiment, manifest = run.experiment, run.manifest
    cropped = "cropped to their boxes" if experiment.crop_to_box else "whole images"
    count = manifest["classes"] * experiment.per_class
    lines = [
        f"{experiment.model} on {experiment.backbone}: {count} prototypes of "
        f"{manifest['classes']} classes",
        f"taken to be trained on {experiment.data}, {cropped}, {experiment.image_size} px",
        f"test_accuracy {manifest['results']['test_accuracy']:.4f} on "
        f"{manifest['images']['test']:,} images",
        "no source images of the prototypes are known: they are not in such a file",
    ]
    branch = run.load_model().offsets if experiment.model == "deformable" else None
    if branch is not None and not branch[2].weight.any():
        lines.append(
            "its parts do not move: if it was trained without deformation, the released code "
            "computes it by another convolution, and the accuracy here is not that network's"
        )
    return "\n".join([*lines, str(run.folder)])
