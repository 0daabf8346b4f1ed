"""The audit of prototypes in words: for `dpp audit`, and for `dpp report` and its headline."""

from collections.abc import Sequence

from dpp.analysis.collapse import SHARED
from dpp.explanations import Audit, Collapse, Share
from dpp.figures.explanation_figures import audit_shares
from dpp.figures.marked_pictures import number_text, shorten_name

HEADER = (
    "class",
    "prototypes",
    "distinct places",
    "source images",
    "mean cosine",
    "largest cosine",
)
LISTED = 12  # classes in a text


def headline(correct: int, images: int, checked: Audit | None, scope: str = "") -> str:
    """What a run is worth, in one sentence.

    Args:
        correct: test images that were predicted correctly.
        images: test images in all.
        checked: the audit, if the network has prototypes with source images.
        scope: which test images, if not all.
    """
    text = f"{correct} of {images} test images{scope} correct ({correct / max(images, 1):.1%})"
    if checked is None or not checked.collapse:
        return text
    shared, of = checked.shared_places.count, checked.shared_places.of
    if not shared:
        return f"{text}, and each of the {of} prototypes has a place of its own"
    be = "is a duplicate" if shared == 1 else "are duplicates"
    return f"{text}, but {shared} of {of} prototypes {be}"


def share_text(share: Share) -> str:
    """A share in percent, and the count."""
    return f"{share.value:.1%} ({share.count} of {share.of})" if share.of else "no data"


def shares(checked: Audit) -> list[tuple[str, Share, Share | None]]:
    """Each share with its name, and what chance would give if that is known."""
    found = audit_shares(checked)
    if checked.collapse:
        found.append((f"duplicates ({SHARED})", checked.shared_places, None))
    return found


def facts(checked: Audit) -> list[tuple[str, str]]:
    """What an audit counted besides shares."""
    listed = [
        ("prototypes", str(checked.prototypes)),
        ("distinct places", f"{places(checked)} ({SHARED} count as one)"),
        ("source images", str(checked.source_images)),
        ("most prototypes from one image", str(checked.most_from_one_image)),
    ]
    for one in checked.accuracies:
        steps = f"{one.before:.1%} → {one.projected:.1%} → {one.final:.1%}"
        steps += " (before projection, after projection, at the end)"
        listed.append((f"{one.split} accuracy", steps))
    groups = [" = ".join(map(str, group)) for group in checked.duplicates]
    if groups:
        listed.append(("equal prototypes", "; ".join(groups)))
    return listed


def places(checked: Audit) -> int:
    """The number of distinct places over all classes."""
    return sum(len(one.places) for one in checked.collapse)


def collapse_rows(checked: Audit, names: Sequence[str]) -> list[tuple]:
    """A row of `HEADER` for each class, most duplicates first."""
    ordered = sorted(checked.collapse, key=lambda one: -one.duplicates)
    return [_row(one, names) for one in ordered]


def _row(one: Collapse, names: Sequence[str]) -> tuple:
    name = "all nodes of the tree" if one.label is None else shorten_name(names[one.label], 60)
    cosines = ["–" if value is None else number_text(value, 3) for value in
               (one.mean_cosine, one.largest_cosine)]  # fmt: skip
    return (name, one.prototypes, len(one.places), one.images, *cosines)


def as_text(checked: Audit, names: Sequence[str]) -> str:
    """An audit for the terminal: shares, counts, and the classes with most duplicates.

    Args:
        checked: the audit.
        names: of the classes.
    """
    pairs = facts(checked)
    for title, share, chance in shares(checked):
        by_chance = f", by chance {chance.value:.1%}" if chance is not None and chance.of else ""
        pairs.append((title, share_text(share) + by_chance))
    width = max(len(title) for title, _ in pairs)
    lines = [checked.run, *(f"{title:<{width}}  {value}" for title, value in pairs), ""]
    rows = collapse_rows(checked, names)
    table = [HEADER, *(tuple(map(str, row)) for row in rows[:LISTED])]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADER))]
    for first, *rest in table:
        cells = [f"{cell:>{size}}" for cell, size in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]))
    if len(rows) > LISTED:
        lines.append(f"and {len(rows) - LISTED} more classes, with fewer or as many duplicates")
    return "\n".join(lines)
