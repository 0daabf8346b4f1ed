"""One table of the paper, regenerated: its runs, its numbers, and what to show of them.

table = regenerate("table1", profile="mini", seeds=[0, 1, 2])
table.show()
table.claims({"Parts that move": ("Def. ProtoPNet (2x2,nd)", "Def. ProtoPNet (2x2)")})
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import pandas as pd
from matplotlib.figure import Figure

from dpp import figures
from dpp.data import catalogue
from dpp.figures.notebook_tables import say
from dpp.paper import grid, layout, tables
from dpp.paper.paired_differences import AS_REPORTED, Contrast, contrast, pairs
from dpp.runs import records
from dpp.runs.records import RunRecord
from dpp.system import paths
from dpp.training.experiments import Experiment

# By how many percentage points a run's accuracy may differ on another machine: with other
# instructions one differed by 7, see results/estimates/other_instructions.csv.
TOLERANCE = 8.0
CHANCE, SATURATED = 30, 99.9  # percent, in mini: beyond them a cell tells nothing
ONLY = {table: stem for stem, mine in grid.TABLES.items() for table in mine}  # its notebook

Rows = str | Sequence[str]


class RegeneratedTable:
    """A table of the paper and the runs of its cells, read from the stored records.

    Args:
        name: one of `tables.TITLES`.
        profile: whose networks and data the runs have.
        options: of `grid.cells`.
    """

    def __init__(self, name: str, profile: str = "mini", **options):
        self.name, self.profile = name, profile
        self.changed = bool(options.get("changes"))
        self.shared = {key: options[key] for key in ("seeds", "backbones") if key in options}
        self.cells = grid.cells(name, profile, **options)

    @cached_property
    def photo(self) -> "RegeneratedTable":
        """The same table in the photo profile, which trains nothing; itself if it is that."""
        if self.profile == "photo":
            return self
        return RegeneratedTable(self.name, "photo", **self.shared)

    @cached_property
    def drawn(self) -> "RegeneratedTable":
        """What is shown beside photo: itself, or the same table in mini."""
        if self.profile != "photo":
            return self
        return RegeneratedTable(self.name, "mini", **self.shared)

    @property
    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """What is shown beside the paper's numbers: photo's, and those of another profile."""
        return self.photo.frame, self.drawn.frame

    @property
    def runs(self) -> int:
        """How many different runs its cells have."""
        return len({plan.name for plan in self.plans})

    @property
    def plans(self) -> list[grid.Plan]:
        """Every experiment of its cells, some of them more than once."""
        return [plan for planned in self.cells.values() for plan in planned]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each cell, see `tables.compare`."""
        return tables.compare(self.name, self.cells)

    @property
    def ran(self) -> pd.DataFrame:
        """The rows of the frame whose runs are stored."""
        return self.frame[self.frame.runs > 0]

    @property
    def quoted(self) -> int:
        """How many cells the paper took from others."""
        return int((self.frame.regenerated == tables.QUOTED).sum())

    def make(self, *, retrain: bool = False) -> None:
        """Trains what has no stored record; with `retrain`, finds or trains everything.

        Photo takes hours, and `make reproduce` says so first: without `retrain` it trains nothing.
        """
        if self.profile == "photo" and not retrain:
            return
        for plan in {plan.name: plan for plan in self.plans}.values():
            records.get(plan, retrain=retrain)
        self.__dict__.pop("frame", None)

    def records(self, row: str, column: str) -> list[RunRecord]:
        """The stored records of a cell, in the order of the seeds."""
        return list(filter(None, map(records.stored, self.cells[row, column])))

    def members(self, row: str, column: str) -> pd.Series:
        """Accuracies of the members of a cell's ensemble, in percent, by the paper's backbones."""
        plans = [member for ensemble in self.cells[row, column] for member in ensemble.members]
        stored = ((grid.column_of(plan), records.stored(plan)) for plan in plans)
        known = [(name, 100 * record.summary["test_accuracy"]) for name, record in stored if record]
        return pd.Series([share for _, share in known], [name for name, _ in known], dtype=float)

    def ensemble_gain(self, row: str, column: str) -> Contrast:
        """By how much an ensemble is better than each of its members."""
        ensembles = self.cells[row, column]
        return contrast((member, one) for one in ensembles for member in one.members)

    def details(self, row: str, column: str) -> dict[str, float]:
        """What else is known of a cell's first run; NaN where there is nothing.

        Returns:
            In percent, the accuracy of its backbone's pretraining on base classes (`pretraining`),
            on augmented training images in its last epoch (`training`), and on test images
            (`test`); and how far parts move on test images, in cells of the map (`offset`).
        """
        known = dict.fromkeys(("pretraining", "training", "test", "offset"), math.nan)
        for record in self.records(row, column)[:1]:
            epochs = record.metrics[record.metrics.stage == "train"]
            known["training"] = 100 * epochs.accuracy.iloc[-1]
            known["test"] = 100 * record.summary["test_accuracy"]
            known["offset"] = record.summary.get("test_offset", math.nan)
            for base in filter(None, map(records.stored, grid.needs(self.cells[row, column][0]))):
                known["pretraining"] = 100 * base.summary["test_accuracy"]
        return known

    def __str__(self) -> str:
        return layout.as_text(self.frame)

    def show(self) -> None:
        """Displays the paper's grid in a notebook: what it reports, photo's and other runs."""
        show_html(layout.as_styler(*self.frames).to_html(), layout.as_text(*self.frames))

    def figure(self) -> Figure:
        """What is reported against what was run, for the cells that are not quoted from others."""
        ran = [frame for frame in self.frames if frame.runs.any()] or [self.frame]
        return figures.reported_and_regenerated(
            *(frame[frame.regenerated != tables.QUOTED] for frame in ran)
        )

    def write(self, figure: Figure | None = None) -> list[str]:
        """Writes the table, and its figure if there is one, to `results/`; returns their names."""
        folder = paths.results(self.profile)
        names = layout.write(folder / "tables", self.name, self.frame)
        if figure is not None:
            figures.save(figure, folder / "figures" / f"{self.name}.png")
            names.append(f"{self.name}.png")
        return names

    def provenance(self) -> str:
        """Where the numbers come from, in a sentence."""
        return tables.provenance(self.cells)

    def check(self) -> str:
        """Fails where a cell is at chance or a run is far from its committed record.

        Returns:
            What holds, in a sentence.
        """
        ran = self.ran
        summary = f"{len(ran)} of {len(self.frame) - self.quoted} cells were run"
        both = records.differences(self.profile)
        if both.empty or self.changed:
            return f"{summary}; there are no committed records to compare them with."
        far = both.difference.abs().max()
        outside = ran[~ran["mean"].between(CHANCE, SATURATED) & (self.profile == "mini")]
        assert outside.empty, f"at chance or saturated: {list(outside.regenerated)}"
        assert not far > TOLERANCE, f"a run is {far:.1f} points from its committed record"
        return f"{summary}; none is further than {TOLERANCE:g} points from its committed record."

    def ours(self, row: str, column: str) -> str:
        """The regenerated accuracy of a cell as text, for prose; "not run" if there is none."""
        return layout.short_text(self._cell(row, column))

    def paper(self, row: str, column: str) -> float:
        """The reported accuracy of a cell, in percent."""
        return self._cell(row, column).reported

    def mean(self, row: str, column: str) -> float:
        """The regenerated accuracy of a cell in percent, NaN if there is none."""
        return self._cell(row, column).mean

    def means(self, row: str, what: str = "mean") -> pd.Series:
        """A row's accuracies by column, NaN where it was not run; of the paper with "reported"."""
        wanted = self.frame[self.frame.row == row].drop_duplicates("column")
        return wanted.set_index("column")[what]

    @property
    def test_images(self) -> float:
        """On how many images the runs were tested; NaN for a data set of your own."""
        plan = next(plan for plan in self.plans if isinstance(plan, Experiment))
        if plan.data in catalogue.DRAWN:
            return plan.classes * plan.test_per_class
        return tables.PHOTOGRAPHS.get(plan.data, math.nan)

    def _cell(self, row: str, column: str):
        wanted = self.frame[(self.frame.row == row) & (self.frame.column == column)]
        return next(wanted.itertuples())

    def contrast(self, before: Rows, after: Rows, columns: Sequence[str] = ()) -> Contrast:
        """By how much rows `after` are better than rows `before`, over pairs of runs.

        Args:
            before: a row's name, or several, each compared with the one at its place in `after`.
            after: likewise.
            columns: where to compare; by default wherever both rows have runs.
        """
        return contrast(
            pair
            for first, second in zip(_listed(before), _listed(after), strict=True)
            for column in columns or self._shared(first, second)
            for pair in pairs(self.cells, [first], [second], [column])
        )

    def _shared(self, *rows: str) -> list[str]:
        """The columns that have a cell in all of these rows."""
        columns = dict.fromkeys(column for _, column in self.cells)
        return [c for c in columns if all((row, c) in self.cells for row in rows)]

    def gain(self, before: Rows, after: Rows, columns: Sequence[str] = ()) -> float:
        """The same of the reported numbers, on average over some columns, by default all."""
        both = list(zip(_listed(before), _listed(after), strict=True))
        return sum(tables.gain(self.frame, *rows, columns) for rows in both) / len(both)

    def claims(self, rows: Mapping[str, tuple[Rows, Rows]]) -> dict[str, Contrast]:
        """Displays, for each claim, what the paper has and what pairs of runs say of it.

        Args:
            rows: by the words of each claim, rows `before` and `after`, see `contrast`.

        Returns:
            The contrast of each claim in the profile that is shown beside photo.
        """
        drawn = {claim: self.drawn.contrast(*both) for claim, both in rows.items()}
        photo = {claim: self.photo.beside_paper(*both) for claim, both in rows.items()}
        lines = [
            f"- **{claim}.** The paper: {_signed(self.gain(*both))} on average. Photo: "
            f"{photo[claim] or 'not run yet'}. {self.drawn.profile.capitalize()}: {drawn[claim]}."
            for claim, both in rows.items()
        ]
        ran = list(filter(None, photo.values()))
        same = sum(AS_REPORTED in text for text in ran)
        summary = f"{len(ran)} of {len(rows)} claims have photo runs, {same} {AS_REPORTED}."
        say("\n".join([*lines, "", f"On photographs: {summary if ran else 'not run yet.'}"]))
        return drawn

    def beside_paper(self, before: Rows, after: Rows) -> str:
        """What pairs of runs say of a claim, beside the paper's numbers in the same columns.

        Returns:
            Empty if there is no pair.
        """
        shared = self._shared(*_listed(before), *_listed(after))
        columns = [c for c in shared if self.contrast(before, after, [c]).pairs]
        if not columns:
            return ""
        measured, reported = self.contrast(before, after), self.gain(before, after, columns)
        where = "" if columns == ["Accuracy"] else f" on {', '.join(columns)}"
        return f"{measured}; the paper{where} {_signed(reported)}: {measured.beside(reported)}"

    def photographs(self) -> str:
        """How the photo runs of this table compare with the paper's numbers, in sentences."""
        table = self.photo
        ran = table.ran.drop_duplicates(["row", "column"])
        command = f"make reproduce PROFILE=photo ONLY={ONLY[self.name]}"
        if ran.empty:
            return (
                "On photographs: **not run yet**. "
                f"`{command}` trains these networks on a CPU, and estimates the hours first."
            )
        cells = len(table.frame.drop_duplicates(["row", "column"])) - table.quoted
        away = ran.difference
        pairs = [
            (one, other)
            for _, column in ran.groupby("column")
            for one in column.itertuples()
            for other in column.itertuples()
            if one.reported > other.reported
        ]
        same = sum(one.mean > other.mean for one, other in pairs)
        order = (
            f" Of {len(pairs)} pairs of rows that the paper tells apart in a column, {same} have "
            "the same order here."
        )
        return (
            f"On photographs, on a CPU with a frozen trunk, {len(ran)} of {cells} cells were run: "
            f"{away.mean():+.1f} points from the paper's on average, {away.min():+.1f} to "
            f"{away.max():+.1f}." + (order if pairs else "")
        )


def regenerate(
    name: str, profile: str = "mini", *, retrain: bool = False, **options
) -> RegeneratedTable:
    """A table with all of its runs: read from the stored records, or trained if there are none.

    Args:
        name: one of `tables.TITLES`.
        profile: whose networks and data.
        retrain: find or train the runs instead of reading their records.
        options: of `grid.cells`: seeds, backbones, data, resnet50, changes.
    """
    table = RegeneratedTable(name, profile, **options)
    table.make(retrain=retrain)
    return table


def _signed(points: float) -> str:
    """As printed, in tenths; never -0.0."""
    return f"{round(points, 1) + 0.0:+.1f}"


def _listed(rows: Rows) -> list[str]:
    return [rows] if isinstance(rows, str) else list(rows)


# ---- In a notebook


def show_html(page: str, text: str) -> None:
    """Displays HTML, or the text where there is none; the same bytes each time, unlike a Styler."""
    from IPython.display import display

    display({"text/html": page, "text/plain": text}, raw=True)
