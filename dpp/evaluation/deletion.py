"""Deletion (Petsiuk et al., RISE, 2018, as ST-ProtoPNet uses it): what the hot pixels are worth.

Pixels are set to the mean colour, the hottest first, in 28 steps; DAUC is the area under the curve
of the predicted class's probability. The heat is the mean similarity map of the prototypes of the
image's true class, as published: an explanation that knows the label. A plain CNN has no
prototypes; its heat is the class activation map (Zhou et al., 2016) of the same class.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dpp.analysis.network import Network
from dpp.data.batches import Splits
from dpp.evaluation import heat
from dpp.evaluation.baselines import random_weights, some_classes
from dpp.evaluation.scores import Progress, Score, from_values, mean, part_of
from dpp.evaluation.sightings import places_of, see
from dpp.methods.plain_cnn import PlainCNN

STEPS = 28  # 8 rows of 224 pixels each
MOST = 30  # images, spread over the data set


def area(curve: Tensor) -> Tensor:
    """The area under curves (n, steps + 1) by the trapezium rule, over a unit interval."""
    return (curve.sum(dim=1) - (curve[:, 0] + curve[:, -1]) / 2) / (curve.shape[1] - 1)


@torch.no_grad()
def deletion_curve(
    predict: Callable[[Tensor], Tensor], images: Tensor, warm: Tensor, steps: int = STEPS
) -> Tensor:
    """(n, steps + 1): the predicted class's probability as ever more of the hottest pixels go.

    Args:
        predict: gives the logits of images.
        images: (n, 3, size, size).
        warm: (n, size, size).
        steps: in which all pixels go.
    """
    order = warm.flatten(1).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))
    rank = rank.view_as(warm)
    curve, predicted = [], None
    for step in range(steps + 1):
        kept = rank >= step * rank[0].numel() / steps
        odds = predict(images * kept[:, None].to(images.device)).softmax(dim=1).cpu()
        predicted = odds.argmax(dim=1, keepdim=True) if predicted is None else predicted
        curve.append(odds.gather(1, predicted)[:, 0])
    return torch.stack(curve, dim=1)


def predictor(network: Network) -> Callable[[Tensor], Tensor]:
    """The logits of images, as a function of them."""
    return lambda images: network.inspect(images).logits


@torch.no_grad()
def class_activation(model: PlainCNN, images: Tensor, labels: Tensor) -> Tensor:
    """(n, H, W): what each cell's features add to the score of a class (n,)."""
    features = model.backbone(images)
    return torch.einsum("nchw,nc->nhw", features, model.classifier.weight[labels])


def measure_plain(model: PlainCNN, splits: Splits, seed: int) -> list[Score]:
    """DAUC of a plain CNN, in percent."""
    rows = heat.spread(splits.test, MOST)
    batch = splits.test.batch([(0, int(index)) for index in rows])
    images = batch.images.to(next(model.parameters()))
    maps = class_activation(model, images, batch.labels.to(images.device)).float().cpu()
    warm = heat.from_maps(maps.numpy(), images.shape[-1])
    curves = [deletion_curve(model, images, one) for one in (warm, heat.moved(warm, seed))]
    value, drawn = (100 * area(curve).double().numpy() for curve in curves)
    note = f"{len(rows)} images; the heat is the class activation map"
    given = {"unit": "%", "better": "lower", "random_places": mean(drawn), "note": note}
    return [from_values("deletion (DAUC)", "centre", value, seed, **given)]


def measure(network: Network, splits: Splits, *, seed: int, progress: Progress) -> list[Score]:
    """DAUC, in percent."""
    few = some_classes(splits.test)
    (rows, images), (other_rows, other_images) = (
        heat.spread_images(dataset, MOST) for dataset in (splits.test, few)
    )
    other = random_weights(network, splits.projection, seed)
    seen = see(network, splits.test, part_of(progress, 0, 2))
    blind = see(other, few, part_of(progress, 1, 2))
    scores, places = [], places_of(network)
    for place, at in enumerate(places):
        warm = heat.class_heat(network, seen, at, rows)
        cold = heat.class_heat(other, blind, at, other_rows)
        curves = {
            "value": (predictor(network), images, warm),
            "random_places": (predictor(network), images, heat.moved(warm, seed)),
            "random_weights": (predictor(other), other_images, cold),
        }
        found = {}
        for turn, (name, given) in enumerate(curves.items()):
            curve = deletion_curve(*given)
            found[name] = (100 * area(curve)).double().numpy()
            progress(3 * place + turn + 1, 3 * len(places))
        given = {name: mean(found[name]) for name in ("random_weights", "random_places")}
        note = f"{len(rows)} images"
        given |= {"unit": "%", "better": "lower", "note": note}
        scores.append(from_values("deletion (DAUC)", at, np.asarray(found["value"]), seed, **given))
    return scores
