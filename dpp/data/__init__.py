"""Images with labels, boxes and parts: CUB-200-2011, Stanford Dogs, folders, PoseBirds, PoseDogs.

    source = data.load("posebirds")
    splits = batches.make_splits(source, size=64)  # from dpp.data import batches

What is imported here needs no torch; `dpp.data.batches` makes batches for a network.
"""

from dpp.data.catalogue import find, load
from dpp.data.cub import read_cub
from dpp.data.dogs import read_dogs
from dpp.data.folders import read_folder
from dpp.data.image_records import Box, ImageRecord, Part, Source, split_validation

__all__ = [
    "Box",
    "Part",
    "ImageRecord",
    "Source",
    "find",
    "load",
    "read_cub",
    "read_dogs",
    "read_folder",
    "split_validation",
]
