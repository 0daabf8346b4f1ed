"""A run's network in standard operators alone: as ONNX, or as a PyTorch program.

The compiled operator is replaced by gathers, products and a maximum, so that any runtime can
compute the network; what it computes is compared with the original on real images.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpp.data.batches import batches, make_loader
from dpp.data.transforms import IMAGENET_MEAN, IMAGENET_STD
from dpp.methods.plain_cnn import PlainCNN
from dpp.networks.model import DeformableProtoPNet, offsets_at
from dpp.reference import resting_places
from dpp.runs import Run, load_splits
from dpp.system import files
from dpp.system.errors import UserError

FORMATS = {"onnx": ".onnx", "torch": ".pt2"}
COMPARED = 16  # images
OUTPUTS = ("logits", "similarities", "centres", "parts")


class StandardNetwork(nn.Module):
    """A Deformable ProtoPNet, rigid or with predicted offsets, without custom operators.

    Args:
        model: trained, on the CPU.
    """

    def __init__(self, model: DeformableProtoPNet):
        super().__init__()
        self.model, layer = model, model.prototypes
        self.rest = resting_places(layer.kernel_size, layer.geometry["dilation"])
        outside = layer.geometry["outside"]
        self.outside = layer.length if outside is None else outside
        with torch.no_grad():  # (parts, P, C + 1)
            vectors = layer.normalised().flatten(2).permute(2, 0, 1).contiguous()
        self.register_buffer("vectors", vectors)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Of images (N, 3, S, S): logits (N, classes), similarities (N, P), centres (N, P) as flat
        indices of cells, and parts (N, P, K*K, 2), rows and columns in cells."""
        model = self.model
        z = self.fix_length(model.backbone(images))
        offsets = None if model.offsets is None else model.offsets(z)
        cosines, centres = self.similarities(z, offsets).max(dim=2)
        scores = model.activate(model.prototypes.damp(cosines))
        width = z.shape[3]
        cells = torch.stack([centres // width, centres % width], dim=2)  # (N, P, 2)
        parts = cells[:, :, None] + z.new_tensor(self.rest)
        if offsets is not None:
            parts = parts + offsets_at(offsets, centres)
        return model.last_layer(scores), scores, centres, parts

    def fix_length(self, features: Tensor) -> Tensor:
        """Equation 3, see `dpp.networks.prototypes.fix_length`."""
        layer = self.model.prototypes
        extra = torch.full_like(features[:, : layer.extra], layer.epsilon)
        whole = torch.cat([features, extra], dim=1)
        return layer.length * whole / (whole.square().sum(dim=1, keepdim=True) + layer.slack).sqrt()

    def similarities(self, z: Tensor, offsets: Tensor | None) -> Tensor:
        """Equation 5: (N, P, H*W)."""
        height, width = z.shape[2:]
        squares = z.square().flatten(2)
        beyond = torch.zeros_like(squares[:, :, :1])
        beyond = torch.cat([beyond[:, :-1], beyond[:, -1:] + self.outside**2], dim=1)
        squares = torch.cat([squares, beyond], dim=2)  # (N, C + 1, H*W + 1)
        place = torch.arange(height * width, device=z.device)
        total = 0
        for part, (down, right) in enumerate(self.rest):
            row, column = (place // width + down)[None], (place % width + right)[None]
            if offsets is None:
                moves = z.new_zeros(1, 2, height * width).expand(z.shape[0], -1, -1)
            else:
                moves = offsets[:, 2 * part : 2 * part + 2].flatten(2)
            samples = interpolate(squares, row + moves[:, 0], column + moves[:, 1], height, width)
            total = total + torch.einsum("pc,ncl->npl", self.vectors[part], samples)
        return total


def interpolate(squares: Tensor, row: Tensor, column: Tensor, height: int, width: int) -> Tensor:
    """Theorem 3.1: the square roots (N, C, L) of interpolated squares.

    Args:
        squares: (N, C, H*W + 1), the last of which stands for all places outside.
        row, column: (N, L), where parts land.
        height, width: of the map.
    """
    top, left = row.floor(), column.floor()
    below, beside = row - top, column - left
    zeta = 0
    for down in (0, 1):
        for right in (0, 1):
            y, x = top + down, left + right
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            index = torch.where(inside, y * width + x, height * width).long()  # (N, L)
            weight = (below if down else 1 - below) * (beside if right else 1 - beside)
            corner = squares.gather(2, index[:, None].expand(-1, squares.shape[1], -1))
            zeta = zeta + weight[:, None] * corner
    return zeta.sqrt()


class Exported(NamedTuple):
    """What was written, and how far its logits are from the original's."""

    path: Path
    difference: float  # the largest, over the compared images and all classes
    images: int


def export(run: Run, form: str, out: Path | None = None) -> Exported:
    """Writes a run's network in standard operators, and compares it on test images.

    A JSON file beside it has what a program needs to use it: classes, size, normalisation.

    Args:
        run: of deformable, without search, or of cnn.
        form: one of `FORMATS`.
        out: the file; by default the run's name with the format's ending, here.
    """
    if form not in FORMATS:
        raise UserError(f"format: {form!r} is not one of {', '.join(FORMATS)}")
    path = Path(out).expanduser() if out else Path(f"{run.folder.name}{FORMATS[form]}")
    if path.suffix != FORMATS[form]:
        raise UserError(f"{path}: a network as {form} must end in {FORMATS[form]}")
    network = standard(run)
    size = run.experiment.image_size
    images = torch.rand(2, 3, size, size)
    with files.file_written_beside(path) as unfinished:
        WRITERS[form](network, images, unfinished)
        compared = real_images(run)
        logits = RUNNERS[form](unfinished, compared)
    with torch.no_grad():
        difference = float((logits - run.load_model()(compared)).abs().max())
    files.write_json(path.with_suffix(".json"), describe(run, network))
    return Exported(path, difference, len(compared))


def standard(run: Run) -> nn.Module:
    """The network of a run in standard operators, in evaluation mode on the CPU."""
    model = run.load_model()
    if isinstance(model, PlainCNN):
        return model
    if not isinstance(model, DeformableProtoPNet) or run.experiment.deformation == "search":
        kind = f"{run.experiment.model} with deformation {run.experiment.deformation}"
        raise UserError(f"{run.folder} is a {kind}: only deformable and cnn can be exported")
    return StandardNetwork(model).eval()


def real_images(run: Run) -> Tensor:
    """The first test images, as the network sees them."""
    dataset = load_splits(run.experiment, run.source).test
    return next(batches(make_loader(dataset, min(COMPARED, len(dataset))))).images


def describe(run: Run, network: nn.Module) -> dict:
    """What a program needs besides the file."""
    experiment = run.experiment
    about = {
        "run": run.folder.name,
        "input": {"name": "images", "shape": ["batch", 3] + 2 * [experiment.image_size]},
        "mean": list(IMAGENET_MEAN),
        "std": list(IMAGENET_STD),
        "classes": list(run.source.class_names),
        "outputs": list(OUTPUTS[: 1 if isinstance(network, PlainCNN) else None]),
    }
    if isinstance(network, StandardNetwork):
        centres = network.model.backbone.cell_centres(experiment.image_size)
        about |= {
            "prototype_classes": network.model.prototypes.classes.tolist(),
            "cell_centres": list(centres),
        }
    return about


def _write_onnx(network: nn.Module, images: Tensor, path: Path) -> None:
    _import_onnx("onnx", "onnxscript", "onnxruntime")
    names = OUTPUTS[: 1 if isinstance(network, PlainCNN) else None]
    torch.onnx.export(
        network,
        (images,),
        path,
        input_names=["images"],
        output_names=list(names),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _run_onnx(path: Path, images: Tensor) -> Tensor:
    (onnxruntime,) = _import_onnx("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


def _import_onnx(*names: str) -> list:
    import importlib

    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise UserError(
            f"{error.name} is not installed: run pip install 'dpp[onnx]', or choose --format torch"
        ) from error


def _write_torch(network: nn.Module, images: Tensor, path: Path) -> None:
    shapes = ({0: torch.export.Dim("batch")},)
    with torch.no_grad(), path.open("wb") as file:
        torch.export.save(torch.export.export(network, (images,), dynamic_shapes=shapes), file)


@torch.no_grad()
def _run_torch(path: Path, images: Tensor) -> Tensor:
    with path.open("rb") as file:
        output = torch.export.load(file).module()(images)
    return output if isinstance(output, Tensor) else output[0]


WRITERS = {"onnx": _write_onnx, "torch": _write_torch}
RUNNERS = {"onnx": _run_onnx, "torch": _run_torch}
