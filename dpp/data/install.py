"""`dpp data`: installs a data set in the data root, complete and verified."""

from collections.abc import Sequence
from pathlib import Path

from dpp.data import catalogue
from dpp.data.archives import unpack
from dpp.data.catalogue import Published
from dpp.data.disk_space import NoSpaceError, check_space
from dpp.data.download import check_md5, fetch
from dpp.data.image_records import Source
from dpp.system.errors import UserError
from dpp.system.files import folder_built_beside
from dpp.system.paths import data_root


def prepare(name: str, given: Sequence[Path] = (), root: Path | None = None) -> str:
    """Installs a data set and says where it is and what can be done next.

    Args:
        name: one of `catalogue.NAMES`.
        given: archives that are already on this machine.
        root: instead of the data root.

    Returns:
        A message for the user.
    """
    folder = Path(root).expanduser().absolute() if root else data_root()
    if name in catalogue.DRAWN:
        if given:
            raise UserError(f"{name} is drawn, not unpacked: leave --archive out")
        source = catalogue.load(name, folder)
        following = "dpp reproduce"
    else:
        source = install(catalogue.PUBLISHED[name], folder, given)
        following = "dpp reproduce --profile photo, or --profile paper with a GPU"
    images, train, test = source.counts()
    lines = [
        f"{source.name} is at {source.root}: {len(source.class_names)} classes, {images:,} images "
        f"({train:,} for training, {test:,} for testing)",
        f"next: {following}",
    ]
    if folder != data_root().absolute() and root:
        lines.insert(1, f"tell dpp where it is: export DPP_DATA={folder}")
    return "\n".join(lines)


def install(data_set: Published, root: Path, given: Sequence[Path] = ()) -> Source:
    """Downloads the archives that are not given, unpacks and verifies them, and renames the folder.

    A folder that exists is verified and left as it is. Archives that were given are kept; those
    that were downloaded are deleted when they are no longer needed.
    """
    target = root / data_set.folder
    if target.exists():
        if not (target / data_set.marker).is_file():
            raise UserError(
                f"{target} exists but has no {data_set.marker}: move it away and try again"
            )
        return verify(data_set, target)
    files = assign(data_set, given)
    to_download = [archive for archive in data_set.archives if archive.name not in files]
    needed = sum(archive.bytes for archive in to_download) + data_set.unpacked_bytes
    check_space(root, needed, data_set.title)
    for archive in data_set.archives:
        if archive.name in files:
            check_md5(files[archive.name], archive.md5)
    downloads = root / "downloads"
    for archive in to_download:
        files[archive.name] = fetch(archive, downloads)

    try:
        with folder_built_beside(target, data_set.inner) as unfinished:
            for archive in data_set.archives:
                unpack(files[archive.name], unfinished)
            verify(data_set, unfinished / data_set.inner)
    except NoSpaceError:
        raise  # the downloads are good: they are kept for the next try
    except UserError:
        discard([files[archive.name] for archive in to_download])
        raise
    except OSError as error:
        raise UserError(f"cannot write {target}: {error}; set DPP_DATA") from error
    discard([files[archive.name] for archive in to_download])
    return data_set.read(target)


def discard(downloaded: Sequence[Path]) -> None:
    """Deletes archives, and their folder if nothing else is in it."""
    for path in downloaded:
        path.unlink()
        if not any(path.parent.iterdir()):
            path.parent.rmdir()


def assign(data_set: Published, given: Sequence[Path]) -> dict[str, Path]:
    """Which given file is which archive: by name, where there is more than one."""
    names = [archive.name for archive in data_set.archives]
    files: dict[str, Path] = {}
    for path in map(Path, given):
        if not path.is_file():
            raise UserError(f"there is no archive {path}")
        name = names[0] if len(names) == 1 else path.name
        if name not in names:
            raise UserError(
                f"{path.name} is not an archive of {data_set.title}, which has {', '.join(names)}"
            )
        if name in files:
            raise UserError(f"{files[name]} and {path} are the same archive of {data_set.title}")
        files[name] = path
    return files


def verify(data_set: Published, folder: Path) -> Source:
    """Reads the whole data set and checks its number of images."""
    source = data_set.read(folder)
    if source.counts() != data_set.counts:
        counted, expected = (
            "{:,} images, {:,} / {:,}".format(*counts)
            for counts in (source.counts(), data_set.counts)
        )
        raise UserError(
            f"{data_set.title} at {folder} has {counted}, not {expected}: it is incomplete; move "
            f"it away and install it again"
        )
    return source
