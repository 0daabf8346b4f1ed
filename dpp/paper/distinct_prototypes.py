"""What it costs to have prototypes that differ: the paper's projection, the distinct one, pruning.

Rows of `distinct_prototypes.csv`, one for each run: `kind`, its accuracies, and how many places the
prototypes of its classes come from (`dpp.analysis.collapse`).
"""

import pandas as pd

from dpp.analysis.collapse import group_places
from dpp.analysis.network import read_origins
from dpp.runs import Run, records
from dpp.system import paths

FILE = "distinct_prototypes.csv"
KINDS = ("nearest, as the paper", "distinct", "nearest, duplicates merged", "nearest, pruned")


def row_of(kind: str, run: Run) -> dict:
    """The row of a projected run.

    Args:
        kind: one of `KINDS`.
        run: of a network whose prototypes belong to classes.
    """
    by_class: dict[int, list] = {}
    for origin in read_origins(run.origins).values():
        by_class.setdefault(origin.label, []).append(origin)
    places = {label: len(group_places(own)) for label, own in by_class.items()}
    results = run.manifest["results"]
    return {
        "run": run.folder.name,
        "kind": kind,
        "accuracy": results["test_accuracy"],
        "validation": results["validation_accuracy"],
        "prototypes": len(run.origins),
        "places": sum(places.values()),
        "fewest": min(places.values()),
        "a class": sum(places.values()) / len(places),
        "images": len({origin["image"] for origin in run.origins}),
    }


def store(profile: str, rows: list[dict]) -> None:
    """Puts rows into a profile's table, in place of older ones of the same runs."""
    records.replace_rows(paths.results(profile) / FILE, pd.DataFrame(rows))


def stored(profile: str) -> pd.DataFrame:
    """The rows of a profile in the order of `KINDS`; empty if there are none."""
    table = records.read(paths.stored_file(profile, FILE))
    if table.empty:
        return table
    return table.set_index("kind").reindex([kind for kind in KINDS if kind in set(table.kind)])
