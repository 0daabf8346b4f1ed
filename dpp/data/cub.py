"""Reads CUB-200-2011, or anything in its layout, as it comes out of its archive."""

from collections.abc import Iterator
from pathlib import Path

from dpp.data.image_records import Box, ImageRecord, Part, Source, check_source
from dpp.system.errors import UserError


def read_cub(root: Path, name: str = "CUB-200-2011") -> Source:
    """Reads the folder that holds `images.txt`.

    Boxes (`bounding_boxes.txt`) and parts (`parts/`) are optional; the other lists are not. Every
    list must name the same images, and an image must lie in the folder of its class.

    Args:
        root: the folder `CUB_200_2011`.
        name: what the source is called in messages and tables.

    Returns:
        The source, with records in the order of `images.txt`; ids are the numbers in that file.
    """
    root = Path(root)
    paths = read_table(root / "images.txt")
    class_names = read_table(root / "classes.txt")
    labels = matching(root / "image_class_labels.txt", paths)
    split = matching(root / "train_test_split.txt", paths)
    boxes, part_names, parts = {}, {}, {}
    if (root / "bounding_boxes.txt").exists():
        boxes = matching(root / "bounding_boxes.txt", paths)
    if (root / "parts" / "part_locs.txt").exists():
        part_names = read_table(root / "parts" / "parts.txt")
        parts = read_parts(root / "parts" / "part_locs.txt", paths, part_names)

    order = {number: label for label, number in enumerate(class_names)}
    train, test = [], []
    for number, path in paths.items():
        label = labels[number]
        if label not in order:
            raise UserError(
                f"{root / 'image_class_labels.txt'}: class {label} is not in classes.txt"
            )
        if Path(path).parent.name != class_names[label]:
            raise UserError(
                f"images.txt and image_class_labels.txt under {root} disagree: image {number} is "
                f"{path}, its label {label} is {class_names[label]}"
            )
        if split[number] not in ("0", "1"):
            raise UserError(f"{root / 'train_test_split.txt'}: image {number} is not 0 or 1")
        record = ImageRecord(
            id=number,
            path=root / "images" / path,
            label=order[label],
            box=read_box(root / "bounding_boxes.txt", number, boxes[number]) if boxes else None,
            parts=parts.get(number),
        )
        (train if split[number] == "1" else test).append(record)
    names = tuple(class_names.values())
    return check_source(
        Source(name, root, names, tuple(part_names.values()), tuple(train), tuple(test))
    )


def brief(text: str) -> str:
    """A text of a damaged list, for a message."""
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


def read_lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """A list's lines: number of the line, first word, the rest."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}): convert it") from error
    except FileNotFoundError as error:
        raise UserError(
            f"no {path.name} under {path.parent}: expected the layout of CUB-200-2011; "
            f'run "dpp data cub" or set DPP_DATA'
        ) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    for line_number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        key, _, value = line.strip().partition(" ")
        if not value:
            raise UserError(
                f"{path}, line {line_number}: {brief(line)} has one word, not two or more"
            )
        yield line_number, key, value


def read_table(path: Path) -> dict[str, str]:
    """A list of a number and a value in each line."""
    table = {}
    for line_number, key, value in read_lines(path):
        if key in table:
            raise UserError(f"{path}, line {line_number}: {key} appears twice")
        table[key] = value
    if not table:
        raise UserError(f"{path} is empty")
    return table


def matching(path: Path, paths: dict[str, str]) -> dict[str, str]:
    """A list that must have a line for each image of `images.txt`, and no other."""
    table = read_table(path)
    if missing := next((number for number in paths if number not in table), None):
        raise UserError(f"{path} has no line for image {missing}, which images.txt lists")
    if extra := next((number for number in table if number not in paths), None):
        raise UserError(f"{path} has a line for image {extra}, which images.txt does not list")
    return table


def read_box(path: Path, number: str, text: str) -> Box:
    """A box from `left top width height`."""
    try:
        left, top, width, height = map(float, text.split())
    except ValueError as error:
        raise UserError(f"{path}: image {number} has {brief(text)}, not four numbers") from error
    return Box(left, top, left + width, top + height)


def read_parts(
    path: Path, paths: dict[str, str], part_names: dict[str, str]
) -> dict[str, tuple[Part, ...]]:
    """The parts of every image, in the order of `parts.txt`; one that no line gives is hidden."""
    indices = {number: index for index, number in enumerate(part_names)}
    hidden = Part(0.0, 0.0, False)
    located = {number: [hidden] * len(indices) for number in paths}
    for line_number, number, rest in read_lines(path):
        try:
            part, x, y, visible = rest.split()
            located[number][indices[part]] = Part(float(x), float(y), visible == "1")
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{path}, line {line_number}: {brief(f'{number} {rest}')} is not image, part, x, "
                "y, visible of an image in images.txt and a part in parts.txt"
            ) from error
    return {number: tuple(parts) for number, parts in located.items()}
