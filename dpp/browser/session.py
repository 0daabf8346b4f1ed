"""The choices made in a prototype browser, and their results as data; no widgets, no figures.

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
        runs: to choose from, by the names to display; each is loaded when it is chosen.
    """

    def __init__(self, runs: Mapping[str, Run | Subject]):
        if not runs:
            raise UserError("a browser needs at least one run: train one with notebook 03")
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
        self.whole = False  # also draw the reasoning for two classes

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
        """Chooses a run: class and prototype are kept if it has them; changes are undone."""
        subject = self.open(name)
        self.run, self.changes = name, Changes()
        self.choose_class(self.label if self.label < len(subject.names) else 0)
        self.explained = None

    def choose_class(self, label: int) -> None:
        numbers = self.subject.prototypes_of(label)
        if not numbers:
            name = self.subject.names[label]
            raise UserError(f"{name} has no prototypes, all were pruned: choose another class")
        self.label = label
        self.choose_prototype(self.prototype if self.prototype in numbers else numbers[0])

    def choose_prototype(self, prototype: int) -> None:
        self.prototype, self.label = prototype, self.subject.network.labels[prototype]
        self.centre, self.explained = None, self.label

    def choose_image(self, image: ImageRecord) -> None:
        self.image, self.centre, self.explained = image, None, None
        self._pictures.clear()

    def upload(self, name: str, content: bytes) -> None:
        """Chooses an uploaded image; if it is refused, nothing changes."""
        picture = workbench.read_upload(self.subject.network, name, content)
        self.image, self.centre, self.explained = (name, content), None, None
        self._pictures = {self.run: picture}

    def picture(self, run: str | None = None) -> Picture:
        """The image as input of a run's network."""
        run = run or self.run
        if run not in self._pictures:
            network = self.open(run).network
            if isinstance(self.image, tuple):
                self._pictures[run] = workbench.read_upload(network, *self.image)
            else:
                known = network.records.get(self.image.id)
                image = self.image if known == self.image else self.image.path
                self._pictures[run] = workbench.fit_to_screen(network.picture(image))
        return self._pictures[run]

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of the map."""
        side = len(self.subject.network.cell_centres)
        return side, side

    def move(self, rows: int, columns: int) -> None:
        """Moves the centre by some cells, up to the edge of the map."""
        row, column = self.centre or self.placed().match.centre
        self.set_centre(row + rows, column + columns)

    def set_centre(self, row: float, column: float) -> None:
        """Sets the centre to the nearest cell of the map."""
        height, width = self.cells
        rounded = int(np.floor(row + 0.5)), int(np.floor(column + 0.5))
        self.centre = min(max(rounded[0], 0), height - 1), min(max(rounded[1], 0), width - 1)

    def click(self, areas: Sequence[Area], across: float, down: float) -> bool:
        """Moves the centre to a clicked point; returns whether the point is in one of the areas."""
        for area in areas:
            if (point := area.at(across, down)) is not None:
                column, row = point
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
        """Switches the chosen prototype off or on."""
        others = self.changes.off - {self.prototype}
        self.changes = replace(self.changes, off=others | {self.prototype} if off else others)

    def hold(self, rigid: bool) -> None:
        """Sets all offsets to zero, or back."""
        self.changes = replace(self.changes, rigid=rigid)

    def connect(self, label: int, value: float) -> None:
        """Changes the connection of the chosen prototype to a class."""
        if not np.isfinite(value):
            raise UserError(f"a connection must be a finite number, not {value}")
        changed = {**self.changes.connections, (label, self.prototype): float(value)}
        self.changes = replace(self.changes, connections=changed)

    def undo(self) -> None:
        self.changes = Changes()

    def scores(self) -> np.ndarray:
        return workbench.class_scores(self.subject.network, self.picture())

    def warning(self, run: str | None = None) -> str:
        """That the image is far from the training images of a run; otherwise empty."""
        network = self.open(run or self.run).network
        return network.warning(network.inspect(self.picture(run).tensor[None]))

    def sheet(self, run: str | None = None) -> ClassScore:
        """The class score of the image: of the chosen class, or else the predicted one."""
        network, picture = self.open(run or self.run).network, self.picture(run)
        wanted = self.explained if run is None else None
        if wanted is None:
            wanted = int(workbench.class_scores(network, picture).argmax())
        return analysis.reason(network, picture, [wanted]).classes[0]

    def find_neighbours(self, report: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Finds the images nearest to every prototype of the run; done once for each run."""
        name, subject = self.run, self.subject
        if name not in self._neighbours:
            images = subject.train, subject.test
            options = {"batch_size": 40, "report": report}
            nearest = global_analysis(subject.network, *images, NEAREST, **options)
            self._neighbours[name] = nearest

    @property
    def neighbours(self) -> Neighbours | None:
        """The images nearest to the chosen prototype; None before `find_neighbours`."""
        nearest = self._neighbours.get(self.run)
        every = nearest.prototypes if nearest else ()
        return next((one for one in every if one.prototype == self.prototype), None)

    def source(self, run: str | None = None, prototype: int | None = None) -> Marked | None:
        """A prototype on its source image; None if it was not projected."""
        number = self.prototype if prototype is None else prototype
        sources = run_report.find_sources(self.open(run or self.run).network, [number])
        return sources[number].marked if number in sources else None
