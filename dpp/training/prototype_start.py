"""How prototypes begin: as patches of training images, before the first epoch.

The paper does not say how prototypes begin. The released code draws them uniformly in [0, 1): all
point in nearly the same direction, and the first epochs only move them to where features are. As
patches of their own class's images they begin there, which a short schedule needs.
"""

import torch
from torch import Tensor

from dpp import ops
from dpp.data.batches import batches
from dpp.training.trainer import Trainer


@torch.no_grad()
def stage(trainer: Trainer) -> dict[str, float]:
    """Makes every prototype a patch of one of its class's training images, un-augmented.

    The prototypes of a class take different images, as far as there are enough. A patch's centre is
    drawn from the cells whose parts all lie on the map, with a probability proportional to the
    squared length of the backbone's features there: they are longest on objects.

    Returns:
        Metrics: how many images were used.
    """
    model = trainer.model.eval()
    prototypes = model.prototypes
    chosen = choose_images(trainer.splits.projection.labels, prototypes.classes.cpu())  # (P,)
    shape = {"kernel_size": prototypes.vectors.shape[-1]} | prototypes.geometry
    for batch in batches(trainer.loaders["projection"]):
        rows, numbers = (batch.indices[:, None] == chosen).nonzero(as_tuple=True)
        used, rows = rows.unique(return_inverse=True)
        if not len(used):
            continue
        images = trainer.to_device(batch.images[used])
        z, _ = model.locate(images)
        lengths = model.backbone(images).square().sum(dim=1).cpu()
        reach = (shape["kernel_size"] - 1) * shape["dilation"] // 2
        centres = draw_centres(lengths[rows], reach).to(z.device)
        samples = ops.sample_parts(z[rows.to(z.device)], None, centres, **shape)[:, 0]
        prototypes.replace(numbers.to(z.device), samples)
    prototypes.rescale()
    return {"source_images": len(chosen.unique())}


def choose_images(labels: Tensor, prototype_classes: Tensor) -> Tensor:
    """An image of its class for each prototype; none twice before all were taken.

    Args:
        labels: (N,), of the images.
        prototype_classes: (P,).

    Returns:
        (P,), places in `labels`.
    """
    chosen = torch.empty_like(prototype_classes)
    for label in prototype_classes.unique():
        own = (labels == label).nonzero().flatten()
        numbers = (prototype_classes == label).nonzero().flatten()
        order = own[torch.randperm(len(own))]
        chosen[numbers] = order.repeat(-(-len(numbers) // len(own)))[: len(numbers)]
    return chosen


def draw_centres(weights: Tensor, reach: int) -> Tensor:
    """One cell (Q, 1), a flat index, of each map of weights (Q, H, W), `reach` from its border.

    On a map that is too small for that, as far from its border as there are cells.
    """
    reach = min(reach, *((size - 1) // 2 for size in weights.shape[1:]))
    inner = torch.zeros_like(weights)
    middle = (slice(None), *(slice(reach, size - reach) for size in weights.shape[1:]))
    inner[middle] = weights[middle] + torch.finfo(weights.dtype).tiny  # also where all are zero
    return torch.multinomial(inner.flatten(1), 1)
