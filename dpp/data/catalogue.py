"""The data sets that are known, where each lies under the data root, and how to load one."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from dpp.data.cub import read_cub
from dpp.data.dogs import read_dogs
from dpp.data.folders import read_folder
from dpp.data.image_records import Source
from dpp.system.errors import UserError
from dpp.system.paths import data_root

STANFORD = "http://vision.stanford.edu/aditya86/ImageNetDogs"


@dataclass(frozen=True)
class Archive:
    """A file to download. `bytes` is its size, for checking the free space."""

    name: str
    url: str
    md5: str
    bytes: int


@dataclass(frozen=True)
class Published:
    """A data set that others published.

    Args:
        key: what it is called on the command line.
        title: what it is called in tables.
        folder: where it lies under the data root.
        marker: a file in that folder that shows that the data set is there.
        read: its reader.
        archives: the files that it is published as.
        inner: the folder inside the archives that is the data set.
        unpacked_bytes: how much space it takes.
        counts: images in all, for training, for testing.
    """

    key: str
    title: str
    folder: str
    marker: str
    read: Callable[[Path], Source]
    archives: tuple[Archive, ...]
    inner: str
    unpacked_bytes: int
    counts: tuple[int, int, int]


# Several public readers agree on the checksums of Stanford's files.
PUBLISHED = {
    "cub": Published(
        key="cub",
        title="CUB-200-2011",
        folder="CUB_200_2011",
        marker="images.txt",
        read=read_cub,
        archives=(
            Archive(
                "CUB_200_2011.tgz",
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                "97eceeb196236b17998738112f37df78",
                1_150_585_339,
            ),
        ),
        inner="CUB_200_2011",
        unpacked_bytes=1_300_000_000,
        counts=(11_788, 5_994, 5_794),
    ),
    "dogs": Published(
        key="dogs",
        title="Stanford Dogs",
        folder="StanfordDogs",
        marker="test_list.mat",
        read=read_dogs,
        archives=(
            Archive(
                "images.tar",
                f"{STANFORD}/images.tar",
                "1bb1f2a596ae7057f99d7d75860002ef",
                793_579_520,
            ),
            Archive(
                "annotation.tar",
                f"{STANFORD}/annotation.tar",
                "4298cc0031f6bc6e74612ac83b5988e2",
                21_852_160,
            ),
            Archive(
                "lists.tar",
                f"{STANFORD}/lists.tar",
                "edbb9f16854ec66506b5f09b583e0656",
                481_280,
            ),
        ),
        inner="",
        unpacked_bytes=900_000_000,
        counts=(20_580, 12_000, 8_580),
    ),
}
# Title and reader of what is drawn; the module of that name in `dpp.drawn` draws it.
DRAWN = {"posebirds": ("PoseBirds", read_cub), "posedogs": ("PoseDogs", read_dogs)}
NAMES = (*PUBLISHED, *DRAWN)


def find(key: str, root: Path | None = None) -> Path | None:
    """The folder of a published data set under the data root, or None if it is not there."""
    data_set = PUBLISHED[key]
    folder = (root or data_root()) / data_set.folder
    return folder if (folder / data_set.marker).is_file() else None


def load(name: str, root: Path | None = None, **options) -> Source:
    """A data set by its name, or a folder of images by its path.

    PoseBirds and PoseDogs are drawn at first use; the others must be there. A folder in the layout
    of CUB-200-2011 or Stanford Dogs is read as such, any other by `read_folder`.

    Args:
        name: `cub`, `dogs`, `posebirds`, `posedogs`, or the path of a folder.
        root: instead of the data root.
        options: of the drawing or of `read_folder`.
    """
    root = Path(root) if root else None
    if name in PUBLISHED:
        if options:
            raise UserError(f"{PUBLISHED[name].title} has no option {next(iter(options))!r}")
        folder = find(name, root)
        if folder is None:
            data_set = PUBLISHED[name]
            wanted = (root or data_root()) / data_set.folder
            raise UserError(
                f"{data_set.title} has no {data_set.marker} under {wanted}: "
                f'run "dpp data {name}" or set DPP_DATA'
            )
        return PUBLISHED[name].read(folder)
    if name in DRAWN:
        return draw(name, root, **options)
    folder = find_folder(name)
    layouts = (known for known in PUBLISHED.values() if (folder / known.marker).is_file())
    if layout := next(layouts, None):
        return layout.read(folder, name=folder.resolve().name)
    return read_folder(folder, **options)


def find_folder(name: str) -> Path:
    """The folder of a data set that is given by its path, or a `UserError` if there is none."""
    if str(name) and (folder := Path(name).expanduser()).is_dir():
        return folder
    raise UserError(
        f"there is no data set {name!r}: choose one of {', '.join(NAMES)}, or give a folder's path"
    )


def draw(name: str, root: Path | None = None, **options) -> Source:
    """Draws PoseBirds or PoseDogs unless it is there, and reads it with the real reader."""
    title, read = DRAWN[name]
    maker = import_module(f"dpp.drawn.{name}")
    try:
        inspect.signature(maker.make).bind(None, **options)
    except TypeError as error:
        raise UserError(f"{title} cannot be drawn with these options: {error}") from error
    return read(maker.make(root or data_root(), **options), name=title)
