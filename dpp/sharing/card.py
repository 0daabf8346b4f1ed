"""The card of a packed run: YAML that model hubs read, then what a person needs to know."""

import json

from dpp.analysis.collapse import SHARED, run_duplicates
from dpp.data import catalogue
from dpp.runs import Run

PAPER = "https://arxiv.org/abs/2111.15000"
METHODS = {
    "deformable": "Deformable ProtoPNet (Donnelly, Barnett and Chen, CVPR 2022)",
    "protopnet": "ProtoPNet (Chen et al., NeurIPS 2019)",
    "tesnet": "TesNet (Wang et al., ICCV 2021)",
    "prototree": "ProtoTree (Nauta et al., CVPR 2021)",
    "cnn": "a plain CNN",
}
DATA_NOTES = {
    "cub": "CUB-200-2011's photographs are for non-commercial research and are not included.",
    "dogs": "Stanford Dogs' photographs are part of ImageNet and are not included.",
    "posebirds": "PoseBirds is drawn by `dpp`; anybody can draw it again.",
    "posedogs": "PoseDogs is drawn by `dpp`; anybody can draw it again.",
}


def front_matter(run: Run, licence: str) -> dict:
    """What model hubs read: licence, tags, and the test accuracy as a result."""
    experiment = run.experiment
    data = experiment.data if experiment.data in catalogue.NAMES else "an own folder of images"
    accuracy = {
        "type": "accuracy",
        "name": "test accuracy",
        "value": round(run.manifest["results"]["test_accuracy"], 6),
    }
    result = {
        "task": {"type": "image-classification"},
        "dataset": {"name": data, "type": data},
        "metrics": [accuracy],
    }
    return {
        "license": licence,
        "library_name": "dpp",
        "pipeline_tag": "image-classification",
        "tags": ["interpretability", "prototypes", experiment.model, experiment.backbone],
        "model-index": [{"name": run.folder.name, "results": [result]}],
    }


def make_card(run: Run, licence: str, files: list[str]) -> str:
    """The card as Markdown.

    Args:
        run: finished.
        licence: of the weights, as model hubs name it.
        files: what the package has besides the card.
    """
    experiment, manifest = run.experiment, run.manifest
    own = experiment.data not in catalogue.NAMES
    # JSON is YAML, and quotes whatever a name may contain.
    lines = [f"{name}: {json.dumps(value)}" for name, value in front_matter(run, licence).items()]
    data = "own images" if own else experiment.data
    title = f"{experiment.model} {experiment.backbone} on {data}"
    images = ", ".join(f"{count:,} {split}" for split, count in manifest["images"].items())
    body = [
        *("---", *lines, "---", "", f"# {title}", ""),
        f"{METHODS[experiment.model]}, reproduced with `dpp`. Paper: <{PAPER}>.",
        "",
        "## Results",
        "",
        *("| measure | value |", "|---|---:|"),
        *(
            f"| {name.replace('_', ' ')} | {value:.4f} |"
            for name, value in manifest["results"].items()
        ),
        "",
        f"{manifest['classes']} classes; images: {images}. Trained for {manifest['seconds']:.0f} s "
        f"on {manifest['device']}, commit {manifest['commit']}, profile {experiment.profile}, seed "
        f"{experiment.seed}.",
        "",
        *prototype_lines(run),
        *history_lines(manifest),
        "## Use",
        "",
        *("```", f"dpp unpack {run.folder.name}.zip", "dpp explain bird.jpg --run runs/…", "```"),
        "",
        "## Data, limits, licence",
        "",
        DATA_NOTES.get(experiment.data, "The images that it was trained on are not included."),
        "A network gives every picture one of its classes, whatever it shows; `dpp explain` warns "
        "of pictures that are unlike the test images. That a part is near something does not show "
        "that the network uses it: see the notebooks on what explanations are worth.",
        "",
        f"Licence of the weights: {licence}.",
        "",
        "## Files",
        "",
        *(f"- `{name}`" for name in files),
    ]
    return "\n".join(body) + "\n"


def prototype_lines(run: Run) -> list[str]:
    """How many prototypes there are, and how many of them repeat another."""
    if not run.projected:
        return []
    origins = run.origins
    repeated = run_duplicates(run).count
    sources = len({origin["image"] for origin in origins})
    return [
        "## Prototypes",
        "",
        f"{len(origins)}, from {sources} training images (`prototypes.json` has image, file hash "
        f"and places of each); {repeated} repeat another of their class ({SHARED}).",
        "",
    ]


def history_lines(manifest: dict) -> list[str]:
    """Which prototypes were forgotten, by whom and why; of imported networks, from which file."""
    lines = []
    if described := manifest.get("imported_from"):
        lines.append(f"Imported from `{described['file']}`, SHA-256 {described['sha256']}.")
    for step in manifest.get("steps", []):
        change = [f"{100 * step[when]['test_accuracy']:.1f} %" for when in ("before", "after")]
        who = f" by {step['who']}" if step["who"] else ""
        further = f", then {step['fine_tune']} epochs" if step["fine_tune"] else ""
        lines.append(
            f"Steered{who} from `{step['run']}`{further}; test accuracy, before and after:"
        )
        lines.append(f"{' and '.join(change)}. Forgotten prototypes, by their numbers there:")
        lines.append("")
        lines += [
            f"- {one['prototype']} ({one['class']}): {one['reason']}" for one in step["removed"]
        ]
        lines.append("")
    return ["## History", "", *lines, ""] if lines else []
