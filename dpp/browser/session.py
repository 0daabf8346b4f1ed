"""What is chosen in a prototype browser, and what follows from it as data; no widgets, no figures.

session = Session({"deformable": run})
session.choose_image(session.subject.test.records[0])
session.set_centre(3, 4)
session.placed().match.similarity
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dpp import analysis
from dpp.analysis.figure_data import Application, apply_prototype
from dpp.analysis.global_analysis import global_analysis
from dpp.browser import workbench
from dpp.browser.drawings import Area
from dpp.browser.workbench import Changes, Subject
from dpp.data.image_records import ImageRecord
from dpp.data.pictures import Picture
from dpp.explanations import ClassScore, GlobalAnalysis, Neighbours
from dpp.figures.marked_pictures import Marked
from dpp.report import run_report
from dpp.runs import Run
from dpp.system.errors import UserError

NEAREST = 3  # images of a prototype, of each split


class Session:
    """One person's choices.

    Args:
        runs: to choose from, by the names that are shown; each is opened when it is chosen.
    """

    def __init__(self, runs: Mapping[str, Run | Subject]):
        if not runs:
            raise UserError("a browser needs a run to show: train one with notebook 03")
        self.runs = dict(runs)
        self._subjects: dict[str, Subject] = {}
        self._pictures: dict[str, Picture] = {}
        self._neighbours: dict[str, GlobalAnalysis] = {}
        self.run, self.other = next(iter(runs)), list(runs)[-1]
        self.open(self.run)
        self.label, self.prototype = 0, self.subject.prototypes_of(0)[0]
        self.image: ImageRecord | tuple[str, bytes] = self.subject.test.records[0]
        self.explained: int | None = None  # the class whose score is explained; None: the predicted
        self.centre: tuple[int, int] | None = None  # None: where the prototype is most similar
        self.changes = Changes()
        self.whole = False  # show the reasoning for two classes, too

    @property
    def subject(self) -> Subject:
        return self.open(self.run)

    def open(self, name: str) -> Subject:
        if name not in self.runs:
            raise UserError(f"there is no run {name!r}: choose one of {', '.join(self.runs)}")
        if name not in self._subjects:
            given = self.runs[name]
            self._subjects[name] = given if isinstance(given, Subject) else Subject.of(given)
        return self._subjects[name]

    def choose_run(self, name: str) -> None:
        """Another run: class and prototype stay, if it has them; what was tried out does not."""
        subject = self.open(name)
        self.run, self.changes = name, Changes()
        self.choose_class(self.label if self.label < len(subject.names) else 0)
        self.explained = None

    def choose_class(self, label: int) -> None:
        there = self.subject.prototypes_of(label)
        if not there:
            raise UserError(f"{self.subject.names[label]} has no prototypes: all were pruned")
        self.label = label
        self.choose_prototype(self.prototype if self.prototype in there else there[0])

    def choose_prototype(self, prototype: int) -> None:
        self.prototype, self.label = prototype, self.subject.network.labels[prototype]
        self.centre, self.explained = None, self.label

    def choose_image(self, image: ImageRecord) -> None:
        self.image, self.centre, self.explained = image, None, None
        self._pictures.clear()

    def upload(self, name: str, content: bytes) -> None:
        """A person's own picture; a bad one leaves all as it was."""
        picture = workbench.read_upload(self.subject.network, name, content)
        self.image, self.centre, self.explained = (name, content), None, None
        self._pictures = {self.run: picture}

    def picture(self, run: str | None = None) -> Picture:
        """The image as a run's network is shown it."""
        run = run or self.run
        if run not in self._pictures:
            network = self.open(run).network
            if isinstance(self.image, tuple):
                self._pictures[run] = workbench.read_upload(network, *self.image)
            else:
                known = network.records.get(self.image.id)
                mine = self.image if known == self.image else self.image.path
                self._pictures[run] = workbench.fit_to_screen(network.picture(mine))
        return self._pictures[run]

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of the map."""
        side = len(self.subject.network.cell_centres)
        return side, side

    def move(self, rows: int, columns: int) -> None:
        """Moves the centre by so many cells, as far as the map goes."""
        row, column = self.centre or self.placed().match.centre
        self.set_centre(row + rows, column + columns)

    def set_centre(self, row: float, column: float) -> None:
        """Sets the centre to the nearest cell of the map."""
        height, width = self.cells
        rounded = int(np.floor(row + 0.5)), int(np.floor(column + 0.5))
        self.centre = min(max(rounded[0], 0), height - 1), min(max(rounded[1], 0), width - 1)

    def click(self, areas: Sequence[Area], across: float, down: float) -> bool:
        """A place of a figure becomes the centre, if it means one; says whether it does."""
        for area in areas:
            if (found := area.at(across, down)) is not None:
                row, column = found[1], found[0]
                if area.name == "image":
                    row, column = self.picture().geometry.image_to_cell((row, column), self.cells)
                self.set_centre(row, column)
                return True
        return False

    def placed(self) -> Application:
        """The chosen prototype on the image, at the chosen centre."""
        network = self.subject.network
        return apply_prototype(network, self.picture(), self.prototype, self.centre)

    def switch(self, off: bool) -> None:
        """Tries out the chosen prototype switched off, or on again."""
        others = self.changes.off - {self.prototype}
        self.changes = replace(self.changes, off=others | {self.prototype} if off else others)

    def hold(self, rigid: bool) -> None:
        """Tries out all offsets at zero, or as they are."""
        self.changes = replace(self.changes, rigid=rigid)

    def connect(self, label: int, value: float) -> None:
        """Tries out another connection of the chosen prototype to a class."""
        if not np.isfinite(value):
            raise UserError(f"a connection is a finite number, not {value}")
        changed = {**self.changes.connections, (label, self.prototype): float(value)}
        self.changes = replace(self.changes, connections=changed)

    def undo(self) -> None:
        self.changes = Changes()

    def scores(self) -> np.ndarray:
        return workbench.class_scores(self.subject.network, self.picture())

    def sheet(self, run: str | None = None) -> ClassScore:
        """Why the image has the score of a class: the chosen one, or the predicted."""
        network, picture = self.open(run or self.run).network, self.picture(run)
        wanted = self.explained if run is None else None
        if wanted is None:
            wanted = int(workbench.class_scores(network, picture).argmax())
        return analysis.reason(network, picture, [wanted]).classes[0]

    def find_neighbours(self, report: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Looks for every prototype of the run in all images, once."""
        name, subject = self.run, self.subject
        if name not in self._neighbours:
            images = subject.train, subject.test
            found = global_analysis(subject.network, *images, NEAREST, batch_size=40, report=report)
            self._neighbours[name] = found

    @property
    def neighbours(self) -> Neighbours | None:
        """The images nearest to the chosen prototype, once they were looked for."""
        found = self._neighbours.get(self.run)
        every = found.prototypes if found else ()
        return next((one for one in every if one.prototype == self.prototype), None)

    def source(self, run: str | None = None, prototype: int | None = None) -> Marked | None:
        """A prototype on the image that it comes from; None if it was not projected."""
        number = self.prototype if prototype is None else prototype
        found = run_report.find_sources(self.open(run or self.run).network, [number])
        return found[number].marked if number in found else None
