"""The prototypes of a report: by class, most points first, those of one place together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
from tqdm import tqdm

from dpp.analysis import Network
from dpp.analysis.collapse import group_places
from dpp.figures.marked_pictures import number_text, shorten_name
from dpp.report.html_page import Pictures
from dpp.report.source_images import SourceImage, find_sources, show_source


@dataclass(frozen=True, eq=False)
class Contributions:
    """What the prototypes give their own classes, on average over the classes' test images.

    Args:
        points: (P,), similarity times connection; NaN where a class has no test image.
        shares: (P,), of the points of all prototypes of the class, signs left out.
    """

    points: np.ndarray
    shares: np.ndarray

    def order(self, number: int) -> float:
        """The amount of points of a prototype, or 0 if it is unknown."""
        return abs(float(np.nan_to_num(self.points[number])))


def measure_contributions(
    scores: np.ndarray, labels: np.ndarray, classes: np.ndarray, connections: np.ndarray
) -> Contributions:
    """The mean points of each prototype on the images of its own class.

    Args:
        scores: (N, P), similarities of test images.
        labels: (N,), of the images.
        classes: (P,), of the prototypes.
        connections: (P,), to their own classes.
    """
    points = np.full(len(classes), np.nan)
    shares = np.full(len(classes), np.nan)
    for label in np.unique(classes):
        own, images = classes == label, labels == label
        if images.any():
            points[own] = scores[images][:, own].mean(axis=0) * connections[own]
            whole = np.abs(points[own]).sum()
            shares[own] = np.abs(points[own]) / whole if whole else 0.0
    return Contributions(points, shares)


def network_contributions(
    network: Network, scores: np.ndarray, labels: np.ndarray
) -> Contributions | None:
    """The same of a network with similarities (N, P); None of a tree, which has no points."""
    if network.is_tree:
        return None
    classes = np.array(network.labels)
    weight = network.model.last_layer.weight.detach().cpu().numpy()
    connections = weight[classes, np.arange(len(classes))]
    return measure_contributions(scores, labels, classes, connections)


def place_groups(network: Network, label: int) -> list[list[int]]:
    """The prototypes of a class by place; one that was not projected is a group of its own."""
    numbers = [one for one in network.prototypes.tolist() if network.labels[one] == label]
    known = [network.origins[number] for number in numbers if number in network.origins]
    alone = [[number] for number in numbers if number not in network.origins]
    return [*map(list, group_places(known)), *alone]


def prototypes(
    pictures: Pictures,
    network: Network,
    contributions: Contributions | None,
    labels: Sequence[int],
) -> dict:
    """The chosen classes with their prototypes on their source images.

    Args:
        pictures: of the page.
        network: whose prototypes they are.
        contributions: of all prototypes; None for a tree.
        labels: of the classes to show.
    """
    names, classes = network.source.class_names, []
    for label in tqdm(labels, desc="prototypes", unit="class", disable=None):
        groups = place_groups(network, label)
        sources = find_sources(network, [number for group in groups for number in group])
        if contributions:
            groups = [sorted(group, key=contributions.order, reverse=True) for group in groups]
            groups.sort(key=lambda group: -sum(map(contributions.order, group)))
        cards = [_group(pictures, network, sources, contributions, group) for group in groups]
        classes.append(
            {
                "name": shorten_name(names[label], 80),
                "summary": summarise(groups, {source.image for source in sources.values()}),
                "groups": cards,
            }
        )
    every = len(names) == len(classes)
    return {"tree": network.is_tree, "classes": classes, "of": 0 if every else len(names)}


def summarise(groups: Sequence[Sequence[int]], images: set[str]) -> str:
    """How many prototypes a class has, from how many places and images."""
    count = sum(map(len, groups))
    if not count:
        return ""
    sources = f"{_counted(len(groups), 'place')} on {_counted(len(images), 'image')}"
    said = f"{_counted(count, 'prototype')} from {sources}"
    again = count - len(groups)
    return f"{said}: {_counted(again, 'duplicate')}" if again else said


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _group(
    pictures: Pictures,
    network: Network,
    sources: dict[int, SourceImage],
    contributions: Contributions | None,
    numbers: list[int],
) -> dict:
    """Prototypes of one place, and what they contribute together."""
    members = [_member(pictures, network, sources, number) for number in numbers]
    group = {"members": members, "points": "", "share": None}
    if contributions and not np.isnan(contributions.points[numbers]).any():
        points, share = contributions.points[numbers], float(contributions.shares[numbers].sum())
        group["points"] = f"{number_text(points.sum())} points, {share:.0%} of its class"
        group["share"] = share
        for member, value in zip(members, points, strict=True):
            member["points"] = f"{number_text(value)} points"
    return group


def _member(
    pictures: Pictures, network: Network, sources: dict[int, SourceImage], number: int
) -> dict:
    label, connection = network.labels[number], ""
    if not network.is_tree:
        weight = network.model.last_layer.weight[label, number].item()
        connection = f"connection {number_text(weight)}"
    words = f"prototype {number} of {network.source.class_names[label]}"
    return {
        "number": number,
        "points": "",
        "connection": connection,
        "image": PurePath(sources[number].image).name if number in sources else "",
        "look": show_source(pictures, sources, number, words),
    }
