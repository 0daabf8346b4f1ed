"""Global analyses and audits as frames."""

from collections.abc import Mapping, Sequence

import pandas as pd

from dpp.explanations import Audit, GlobalAnalysis


def find_strangers(found: GlobalAnalysis, names: Sequence[str]) -> pd.DataFrame:
    """The test images of other classes among the nearest of each prototype.

    Args:
        found: of a network.
        names: of the classes.

    Returns:
        A row for each prototype and other class, most images first: `prototype`, `class`,
        `other class`, `images`.
    """
    columns = ["prototype", "class", "other class"]
    rows = [
        (one.prototype, names[one.label], names[seen.label])
        for one in found.prototypes
        for seen in one.test
        if seen.label != one.label
    ]
    counts = pd.DataFrame(rows, columns=columns).value_counts(sort=False)
    counted = counts.rename("images").reset_index()
    return counted.sort_values("images", ascending=False, kind="stable", ignore_index=True)


def compare_audits(audits: Mapping[str, Audit]) -> pd.DataFrame:
    """A row for each audit, by name: shares of parts, and of prototypes that are copies."""
    rows = {
        name: {
            "parts near the animal's": one.parts.near.value,
            "parts on the background": one.on_background.value,
            "parts off the image": one.off_image.value,
            "copies": sum(len(group) - 1 for group in one.duplicates) / one.prototypes,
        }
        for name, one in audits.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").astype(float)


def count_distinct(
    labels: Sequence[int], duplicates: Sequence[Sequence[int]], names: Sequence[str]
) -> pd.DataFrame:
    """How many prototypes of each class are distinct.

    Args:
        labels: the class of every prototype.
        duplicates: groups of equal prototypes, of `audit.duplicates`.
        names: of the classes.

    Returns:
        A row for each class, by name: `prototypes`, `distinct`, and `equal`, such as "4 = 9".
    """
    rows = {}
    for label, name in enumerate(names):
        groups = [group for group in duplicates if labels[group[0]] == label]
        total = list(labels).count(label)
        rows[name] = {
            "prototypes": total,
            "distinct": total - sum(len(group) - 1 for group in groups),
            "equal": "; ".join(" = ".join(map(str, group)) for group in groups) or "none",
        }
    return pd.DataFrame.from_dict(rows, orient="index")
