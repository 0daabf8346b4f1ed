"""The choices made in a prototype browser, and their results as data; no widgets, no figures.

session = Session({"deformable": run})
session.choose_image(session.subject.test.records[0])
session.set_centre(3, 4)
session.placed().match.similarity
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from dpp import analysis
from dpp.analysis.figure_data import Application, apply_prototype
from dpp.analysis.global_analysis import global_analysis
from dpp.analysis.offset_effect import by_need_of_moving
from dpp.browser import steering, workbench
from dpp.browser.steering import Marks, Refit
from dpp.browser.workbench import Changes, Subject
from dpp.data.image_records import ImageRecord
from dpp.data.pictures import Picture
from dpp.explanations import ClassScore, GlobalAnalysis, Neighbours, Sighting
from dpp.networks.model import DeformableProtoPNet
from dpp.runs import Run
from dpp.system.errors import UserError

NEAREST = 3  # images of a prototype, of each split
SOURCES = 64  # source images that are kept
LOOKED_AT = 40  # test images, of which a browser begins with one: a large network takes seconds


def first_image(subject: Subject) -> ImageRecord:
    """Where a browser begins: of some test images, the one that needs moving parts most.

    The same rule as of figures 1 and 2; where no part moves, the first image.
    """
    model = subject.network.model
    if not isinstance(model, DeformableProtoPNet) or model.offsets is None:
        return subject.test.records[0]
    return by_need_of_moving(subject.network, subject.test, LOOKED_AT)[0]


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
        self._known: dict[tuple, object] = {}  # what was computed about the image
        self._sources: dict[tuple[str, int], tuple[Sighting, Picture] | None] = {}
        self._predicted: dict[str, dict[str, int]] = {}
        self.marks: dict[str, Marks] = {}
        self.refits: dict[str, Refit] = {}  # by the new runs' names
        self.run, self.other = next(iter(runs)), list(runs)[-1]
        self.open(self.run)
        self.image: ImageRecord | tuple[str, bytes] = first_image(self.subject)
        self.label = self.image.label if self.subject.prototypes_of(self.image.label) else 0
        self.prototype = self.subject.prototypes_of(self.label)[0]
        self.explained: int | None = None  # the class whose score is explained; None: the predicted
        self.centre: tuple[int, int] | None = None  # None: where the prototype is most similar
        self.changes = Changes()

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

    def is_open(self, name: str) -> bool:
        """Whether a run is loaded."""
        return name in self._subjects

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
        self._known.clear()

    def upload(self, name: str, content: bytes) -> None:
        """Chooses an uploaded image; if it is refused, nothing changes."""
        picture = workbench.read_upload(self.subject.network, name, content)
        self.image, self.centre, self.explained = (name, content), None, None
        self._pictures = {self.run: picture}
        self._known.clear()

    @property
    def image_key(self) -> str:
        """What tells this image from others: its id, or of an upload a hash."""
        if isinstance(self.image, tuple):
            return f"upload {hashlib.sha256(self.image[1]).hexdigest()[:16]}"
        return self.image.id

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
                self._pictures[run] = network.picture(image)
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

    def placed(self) -> Application:
        """The chosen prototype on the image, at the chosen centre."""
        network = self.subject.network
        return apply_prototype(network, self.picture(), self.prototype, self.centre)

    @property
    def movable(self) -> bool:
        """Whether the centre can be moved: only of deformable networks, whose maps are cosines."""
        return isinstance(self.subject.network.model, DeformableProtoPNet)

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

    def _know(self, *key, ask: Callable):
        """What was computed about the image, or is now."""
        if key not in self._known:
            self._known[key] = ask()
        return self._known[key]

    def scores(self, run: str | None = None) -> np.ndarray:
        """(classes,), the logits of the image."""
        run = run or self.run
        network = self.open(run).network
        ask = partial(workbench.class_scores, network)
        return self._know("scores", run, ask=lambda: ask(self.picture(run)))

    def warning(self, run: str | None = None) -> str:
        """That the image is far from the training images of a run; otherwise empty."""
        run = run or self.run
        network = self.open(run).network

        def ask() -> str:
            return network.warning(network.inspect(self.picture(run).tensor[None]))

        return self._know("warning", run, ask=ask)

    def sheet(self, run: str | None = None) -> ClassScore:
        """The class score of the image: of the chosen class, or else the predicted one."""
        name = run or self.run
        wanted = self.explained if run is None else None
        if wanted is None:
            wanted = int(self.scores(name).argmax())

        def ask() -> ClassScore:
            network, picture = self.open(name).network, self.picture(name)
            return analysis.reason(network, picture, [wanted]).classes[0]

        return self._know("sheet", name, wanted, ask=ask)

    def find_mistakes(
        self, label: int | None, report: Callable[[int, int], None] = lambda done, of: None
    ) -> list[ImageRecord]:
        """The test images that the run classifies incorrectly, of a class or of all.

        Each image is classified once for a run.
        """
        test, known = self.subject.test, self._predicted.setdefault(self.run, {})
        records = [one for one in test.records if label is None or one.label == label]
        ids = {one.id for one in records if one.id not in known}
        missing = [index for index, one in enumerate(test.records) if one.id in ids]
        known |= workbench.predict(self.subject.network, test, missing, report)
        return [one for one in records if known[one.id] != one.label]

    def predicted(self, image: ImageRecord) -> int | None:
        """The class predicted for a test image, if `find_mistakes` has looked at it."""
        return self._predicted.get(self.run, {}).get(image.id)

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
        return self.neighbours_of(self.run, self.prototype)

    def neighbours_of(self, run: str, prototype: int) -> Neighbours | None:
        nearest = self._neighbours.get(run)
        every = nearest.prototypes if nearest else ()
        return next((one for one in every if one.prototype == prototype), None)

    def source(
        self, run: str | None = None, prototype: int | None = None
    ) -> tuple[Sighting, Picture] | None:
        """A prototype on its source image, and that image; None if it was not projected."""
        run, number = run or self.run, self.prototype if prototype is None else prototype
        network = self.open(run).network
        if number not in network.origins:
            return None
        if (run, number) not in self._sources:
            if len(self._sources) >= SOURCES:
                del self._sources[next(iter(self._sources))]
            seen = analysis.find_origin(network, number)
            self._sources[run, number] = seen, network.picture(network.records[seen.image])
        return self._sources[run, number]

    @property
    def run_marks(self) -> Marks:
        """The marks on the prototypes of the chosen run."""
        return self.marks.setdefault(self.run, Marks())

    def refit(self, who: str = "", fine_tune: int = 0) -> Refit:
        """Makes a run without the prototypes that are marked to be forgotten, and chooses it."""
        before, marks = self.runs[self.run], self.run_marks
        run = steering.refit(before, marks, who, fine_tune)
        many = len(marks.forgotten)
        name = self.add_run(f"{self.run}, {many} forgotten", run)
        accuracies = steering.accuracy(before), steering.accuracy(run)
        done = Refit(name, self.run, marks.forgotten, accuracies, str(run.folder))
        self.refits[name], self.other = done, self.run  # to be compared
        self.choose_run(name)
        return done

    def add_run(self, name: str, run: Run) -> str:
        """Offers another run; returns the name that it gets."""
        names = (name, *(f"{name} ({count})" for count in range(2, len(self.runs) + 3)))
        name = next(one for one in names if one not in self.runs)
        self.runs[name] = run
        return name
