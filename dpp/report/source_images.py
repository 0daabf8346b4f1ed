"""Prototypes on the training images that they come from."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpp import analysis
from dpp.analysis import Network
from dpp.figures.marked_pictures import Marked, mark
from dpp.report.html_page import Look, Pictures


@dataclass(frozen=True, eq=False)
class SourceImage:
    """A prototype on its source image, and the name of that image."""

    image: str
    marked: Marked


def find_sources(network: Network, prototypes: Sequence[int]) -> dict[int, SourceImage]:
    """Prototypes on their source images; those that were not projected are left out."""
    sources = {}
    for number in dict.fromkeys(prototypes):
        if number in network.origins:
            seen = analysis.find_origin(network, number)
            pixels = network.picture(network.records[seen.image]).pixels
            sources[number] = SourceImage(seen.image, mark(pixels, seen))
    return sources


def show_source(
    pictures: Pictures, sources: dict[int, SourceImage], number: int, words: str
) -> Look | None:
    """A prototype on its source image, in a page; None if it was not projected."""
    source = sources.get(number)
    return pictures.look(source.image, source.marked, words) if source else None
