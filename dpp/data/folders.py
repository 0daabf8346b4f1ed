"""Reads your own images: a folder for each class."""

from pathlib import Path

from dpp.data.folder_digest import refuse_system
from dpp.data.image_records import (
    FEWEST_TRAINING_IMAGES,
    ImageRecord,
    Source,
    check_file,
    check_name,
    check_source,
    printable,
    split_by_class,
)
from dpp.system.errors import UserError

ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


def read_folder(root: Path, *, test_fraction: float = 0.25, seed: int = 0) -> Source:
    """Reads `train/<class>/` and `test/<class>/`, or `<class>/` with a seeded stratified split.

    Classes are numbered in the order of their names. Images are turned upright as their EXIF tag
    says. Hidden files and folders are skipped, and so are files without an image's ending.

    Args:
        root: the folder; its name becomes the source's.
        test_fraction: the share of each class to test on, where there is no `test/`.
        seed: chooses that share.

    Returns:
        The source; ids are paths relative to `root`.
    """
    root = Path(root).expanduser()
    try:
        return _read_folder(root, test_fraction, seed)
    except OSError as error:
        where = printable(error.filename or root)
        raise UserError(f"{where} cannot be read: {error.strerror or error}") from error


def _read_folder(root: Path, test_fraction: float, seed: int) -> Source:
    if not root.is_dir():
        raise UserError(f"there is no folder {root}")
    refuse_system(root)
    halves = [half for half in ("train", "test") if (root / half).is_dir()]
    if len(halves) == 1:
        other = "test" if halves == ["train"] else "train"
        raise UserError(f"{root} has {halves[0]}/ but no {other}/: provide both, or neither")
    if halves:
        class_names = subfolders(root / "train")
        for name in subfolders(root / "test"):
            if name not in class_names:
                raise UserError(f"class {name} is in {root / 'test'} but not in {root / 'train'}")
        train = read_classes(root, root / "train", class_names)
        tested = [name for name in class_names if (root / "test" / name).is_dir()]
        labels = [class_names.index(name) for name in tested]
        test = read_classes(root, root / "test", tested, labels)
    else:
        class_names = subfolders(root)
        everything = read_classes(root, root, class_names, fewest=FEWEST_TRAINING_IMAGES + 1)
        train, test = split_by_class(everything, test_fraction, seed)
    name = root.resolve().name
    return check_source(Source(name, root, tuple(class_names), (), train, test))


def subfolders(folder: Path) -> list[str]:
    """The names of a folder's own folders, in order, hidden ones left out."""
    entries = sorted(folder.iterdir())
    names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
    for name in names:
        check_name(name, folder)
    if not names:
        raise UserError(f"{folder} has no subfolders: make one for each class, with its images")
    return names


def read_classes(
    root: Path,
    folder: Path,
    names: list[str],
    labels: list[int] | None = None,
    fewest: int = 1,
) -> tuple[ImageRecord, ...]:
    """The images of each class folder, which must hold at least `fewest`."""
    records = []
    for label, name in zip(labels or range(len(names)), names, strict=True):
        inside = sorted((folder / name).rglob("*"))
        files = [path for path in inside if is_image(path.relative_to(folder / name), path)]
        if len(files) < fewest:
            only = f" ({files[0].name})" if len(files) == 1 else ""
            found = f"{len(files)} image{'' if len(files) == 1 else 's'}{only}"
            raise UserError(
                f"class folder {folder / name} has {found} but needs at least {fewest}; images end "
                f"in {', '.join(sorted(ENDINGS))}"
            )
        for path in files:
            check_name(path.name, folder / name)
            check_file(path)
            id = path.relative_to(root).as_posix()
            records.append(ImageRecord(id, path, label, upright=True))
    return tuple(records)


def skipped_files(root: Path) -> list[Path]:
    """The files of a folder that `read_folder` skips for their ending; hidden ones left out."""
    inside = ((path.relative_to(root), path) for path in sorted(root.rglob("*")) if path.is_file())
    shown = [
        (own, path) for own, path in inside if not any(part.startswith(".") for part in own.parts)
    ]
    return [path for own, path in shown if not is_image(own, path)]


def is_image(inside: Path, path: Path) -> bool:
    """By its ending; nothing in the path inside the class's folder may be hidden."""
    hidden = any(part.startswith(".") for part in inside.parts)
    return path.suffix.lower() in ENDINGS and not hidden and path.is_file()
