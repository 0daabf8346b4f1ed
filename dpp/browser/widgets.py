"""The widgets of the prototype browser, for JupyterLab and Notebook 7.

    from dpp import browser, runs
    browser.show({"deformable": run, "rigid": other})

Widgets hold no logic: a `session.Session` holds the choices, and `screens` makes every figure, text
and number from it. `Browser.close` frees everything that a browser holds.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from html import escape
from pathlib import Path
from threading import RLock

import ipywidgets as widgets

from dpp.browser.controls import all_widgets, make_control, make_row, make_text, offer
from dpp.browser.page import Figure, Upload
from dpp.browser.screens import VIEWS, Screen, export
from dpp.browser.screens import show as show_screen
from dpp.browser.session import Session
from dpp.browser.texts import sheet_rows, sheet_sum
from dpp.browser.workbench import LARGEST_FILE, Subject
from dpp.figures.marked_pictures import shorten_name
from dpp.figures.score_sheets import score_sheet
from dpp.runs import Run
from dpp.system.errors import UserError

SHEET = "Prototype, similarity × connection = points"
WHOLE = "Also draw the reasoning for the two best classes"


def show(runs: Mapping[str, Run | Subject], folder: str | Path = "exports") -> "Browser":
    """A browser of runs; it is displayed if it is the last value of a cell.

    Args:
        runs: of deformable, protopnet or tesnet, by the names to display.
        folder: that exports are written to.
    """
    return Browser(Session(runs), Path(folder))


class Browser:
    """Widgets around a session.

    Args:
        session: the choices.
        folder: that exports are written to.
    """

    def __init__(self, session: Session, folder: Path):
        self.session, self.folder = session, folder
        self.screen: Screen | None = None
        self._quiet = False
        self._lock = RLock()  # JupyterLab lets the kernel answer in two threads
        self._make_choices()
        self._make_views()
        self.box = widgets.VBox(
            [
                make_row(self.run, self.search, self.label, self.prototype),
                make_row(self.image_class, self.image, self.upload),
                make_row(self.view, self.png, self.json),
                self.message,
                *self.panels.values(),
            ]
        )
        self.box.add_class("dpp-browser")
        self._connect()
        self.refresh()

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        """The widgets; for viewers without a kernel, a picture of the current view."""
        words = f"A prototype browser of {', '.join(self.session.runs)}"
        still = {"text/plain": words, "image/png": self.screen.small_picture()}
        return self.box._repr_mimebundle_() | still

    def close(self) -> None:
        """Removes the widgets from the page and from ipywidgets' own registry."""
        for widget in all_widgets(self.box):
            widget.unobserve_all()
            widget.close()

    def _make_choices(self) -> None:
        runs = list(self.session.runs)
        self.run = make_control(widgets.Dropdown, "Run", 275, options=runs)
        self.search = make_control(widgets.Text, "Find class", 200, placeholder="part of a name")
        self.label = make_control(widgets.Dropdown, "Class", 275)
        self.prototype = make_control(widgets.Dropdown, "Prototype", 150)
        self.image_class = make_control(widgets.Dropdown, "Images of", 275)
        self.image = make_control(widgets.Dropdown, "Test image", 275)
        self.upload = Upload()
        self.view = make_control(widgets.ToggleButtons, "View", 780, options=list(VIEWS))
        self.view.style.button_width = "135px"
        self.view.add_class("dpp-views")
        self.png, self.json = (make_control(widgets.Button, f"Export {k}") for k in ("PNG", "JSON"))
        self.message = make_text()
        self._list_classes(range(len(self.session.subject.names)))
        self._list_images()

    def _make_views(self) -> None:
        runs = list(self.session.runs)
        self.figures = {view: (Figure(), Figure()) for view in VIEWS}
        self.texts = {view: make_text() for view in VIEWS}
        self.find = make_control(widgets.Button, "Find its nearest images", 200)
        self.progress = make_control(widgets.IntProgress, "Images")
        self.progress.layout.visibility = "hidden"
        self.explained = make_control(widgets.Dropdown, "Score of", 340)
        self.sheet = make_control(widgets.Select, SHEET, 340, rows=12)
        self.sheet.layout.flex_flow, self.sheet.layout.height = "column", "auto"
        self.sheet.add_class("dpp-sheet")
        self.sum = make_text()
        self.whole = make_control(widgets.Checkbox, WHOLE, 500, indent=False)
        self.row = make_control(widgets.IntSlider, "Centre row")
        self.column = make_control(widgets.IntSlider, "Centre column")
        self.best = make_control(widgets.Button, "Go to the best place", 180)
        self.off = make_control(widgets.Checkbox, "Switch off", 200, indent=False)
        self.rigid = make_control(widgets.Checkbox, "All offsets zero", 150, indent=False)
        self.connected = make_control(widgets.Dropdown, "Connection to")
        self.connection = make_control(widgets.FloatText, "Value", 130, step=0.1)
        self.undo = make_control(widgets.Button, "Undo all changes")
        self.other = make_control(widgets.Dropdown, "With run", 275, options=runs)
        self.other.value = self.session.other
        prototype, image, centre, changes, compare = VIEWS
        self.figures[centre][0].pointed = True
        left = widgets.VBox([self.explained, self.sheet, self.sum])
        right = widgets.VBox([self.figures[image][0]], layout={"flex": "1 1 0", "min_width": "0"})
        tried = make_row(self.off, self.rigid, self.connected, self.connection, self.undo)
        (card, near), (_, reasoning) = self.figures[prototype], self.figures[image]
        contents = {
            prototype: [self.texts[prototype], card, make_row(self.find, self.progress), near],
            image: [self.texts[image], widgets.HBox([left, right]), self.whole, reasoning],
            centre: [make_row(self.row, self.column, self.best), *self._shown(centre)],
            changes: [tried, *self._shown(changes)],
            compare: [self.other, *self._shown(compare)],
        }
        self.panels = {view: widgets.VBox(content) for view, content in contents.items()}

    def _shown(self, view: str) -> list[widgets.Widget]:
        return [*self.figures[view], self.texts[view]]

    def _connect(self) -> None:
        session = self.session
        changed: dict[widgets.Widget, Callable] = {
            self.run: self._run_chosen,
            self.search: self._searched,
            self.label: session.choose_class,
            self.prototype: session.choose_prototype,
            self.image_class: lambda _: self._images_listed(),
            self.image: session.choose_image,
            self.view: lambda _: None,
            self.explained: partial(setattr, session, "explained"),
            self.sheet: session.choose_prototype,
            self.whole: partial(setattr, session, "whole"),
            self.row: lambda row: session.set_centre(row, self.column.value),
            self.column: lambda column: session.set_centre(self.row.value, column),
            self.off: session.switch,
            self.rigid: session.hold,
            self.connected: lambda _: None,
            self.connection: lambda value: session.connect(self.connected.value, value),
            self.other: partial(setattr, session, "other"),
        }
        for widget, act in changed.items():
            widget.observe(lambda event, act=act: self._answer(act, event["new"]), names="value")
        pressed = {
            self.find: lambda _: session.find_neighbours(self._report),
            self.best: lambda _: setattr(session, "centre", None),
            self.undo: lambda _: session.undo(),
        }
        for button, act in pressed.items():
            button.on_click(partial(self._answer, act))
        for place, button in enumerate((self.png, self.json)):
            button.on_click(lambda _, place=place: self._answer(self._export, place, changes=False))
        self.upload.on_msg(lambda _, content, files: self._answer(self._uploaded, content, files))
        self.figures["Move the centre"][0].on_msg(
            lambda _, content, files: self._answer(self._pointed, content)
        )

    def _answer(self, act: Callable, *given, changes: bool = True) -> None:
        """Handles an event and shows its result, or the error message."""
        with self._lock:
            if self._quiet:
                return
            self.say("")
            try:
                act(*given)
                if changes:
                    self.refresh()
            except UserError as error:
                self.say(str(error), problem=True)
            except Exception as error:
                text = f"internal error, please report it: {type(error).__name__}: {error}"
                self.say(text, problem=True)
                raise

    def say(self, text: str, problem: bool = False) -> None:
        kind = "dpp-problem" if problem else "dpp-note"
        self.message.value = f'<div role="status" class="{kind}">{escape(text)}</div>'

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Sets widgets to the session's choices without handling that as an event."""
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    def refresh(self) -> None:
        """Shows the current view of the session's choices."""
        session, view = self.session, self.view.value
        self.screen = show_screen(session, view)
        with self.quiet():
            self._set_choices()
            {
                "Image": self._set_sheet,
                "Move the centre": self._set_centre,
                "What if": self._set_changes,
            }.get(view, lambda: None)()
        for name, panel in self.panels.items():
            panel.layout.display = "flex" if name == view else "none"
        self.texts[view].value = self.screen.text
        drawn = self.screen.first, self.screen.second
        for figure, one in zip(self.figures[view], drawn, strict=True):
            figure.value, figure.words = (one.png, one.words) if one else (b"", "")

    def _set_choices(self) -> None:
        session = self.session
        numbers = session.subject.prototypes_of(session.label)
        if session.label not in [label for _, label in self.label.options]:
            self._list_classes(range(len(session.subject.names)))
        self.label.value = session.label
        offer(self.prototype, [(str(number), number) for number in numbers], session.prototype)
        done = session.neighbours is not None
        self.find.disabled = done
        self.find.description = "Nearest images are shown" if done else "Find its nearest images"

    def _set_sheet(self) -> None:
        screen, names = self.screen, self.session.subject.names
        scores, sheet = screen.data["scores"], score_sheet(screen.sheet)
        order = sorted(range(len(scores)), key=lambda label: -scores[label])
        options = [(f"{shorten_name(names[one])}: {scores[one]:.2f}", one) for one in order]
        offer(self.explained, options, screen.sheet.label)
        offer(self.sheet, sheet_rows(sheet), self.session.prototype)
        self.sum.value = sheet_sum(sheet)

    def _set_centre(self) -> None:
        match = self.screen.data["match"]
        shape = len(self.screen.data["similarities"]), len(self.screen.data["similarities"][0])
        for slider, value, end in zip((self.row, self.column), match["centre"], shape, strict=True):
            slider.max, slider.value = end - 1, value

    def _set_changes(self) -> None:
        session = self.session
        number, changes = session.prototype, session.changes
        self.off.description = f"Switch prototype {number} off"
        self.off.value, self.rigid.value = number in changes.off, changes.rigid
        options = [(shorten_name(name), label) for label, name in enumerate(session.subject.names)]
        if self.connected.options != tuple(options):
            self.connected.options, self.connected.value = options, session.label
        now = session.subject.connections(number)[self.connected.value]
        value = changes.connections.get((self.connected.value, number), now)
        self.connection.value = round(float(value), 4)

    def _list_classes(self, labels) -> None:
        names = self.session.subject.names
        with self.quiet():
            self.label.options = [(shorten_name(names[label]), label) for label in labels]
            if self.session.label in labels:
                self.label.value = self.session.label

    def _list_images(self) -> None:
        subject, image = self.session.subject, self.session.image
        with self.quiet():
            before = self.image_class.value
            names = [(shorten_name(name), label) for label, name in enumerate(subject.names)]
            self.image_class.options = names
            self.image_class.value = before if before in range(len(names)) else 0
            images = [one for one in subject.test.records if one.label == self.image_class.value]
            self.image.options = [(shorten_name(Path(one.id).name, 40), one) for one in images]
            self.image.value = image if image in images else None

    def _run_chosen(self, name: str) -> None:
        self.session.choose_run(name)
        with self.quiet():
            self.search.value = ""
        self._list_classes(range(len(self.session.subject.names)))
        self._list_images()

    def _images_listed(self) -> None:
        self._list_images()
        with self.quiet():
            self.image.index = 0
        self.session.choose_image(self.image.value)

    def _searched(self, text: str) -> None:
        labels = self.session.subject.find_classes(text)
        if not labels:
            raise UserError(f"no class has {text!r} in its name: search for a part of a class name")
        if self.session.label not in labels:
            self.session.choose_class(labels[0])
        self._list_classes(labels)

    def _uploaded(self, content: dict, files: list) -> None:
        if content.get("kind") == "refused":
            size = f"{content['size'] / 1e6:.1f} MB"
            limit = f"{LARGEST_FILE / 1e6:.0f} MB"
            raise UserError(f"{content['name']} has {size}: choose an image of at most {limit}")
        self.session.upload(content["name"], bytes(files[0]))
        with self.quiet():
            self.image.value = None

    def _pointed(self, content: dict) -> None:
        if content.get("kind") == "click":
            self.session.click(self.screen.first.areas, content["across"], content["down"])
        elif content.get("kind") == "step":
            self.session.move(content["rows"], content["columns"])

    def _report(self, done: int, of: int) -> None:
        self.progress.layout.visibility = "visible" if done < of else "hidden"
        self.progress.max, self.progress.value = of, done

    def _export(self, place: int) -> None:
        self.say(f"written: {export(self.session, self.screen, self.folder)[place]}")
