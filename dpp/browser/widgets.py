"""The prototype browser, for JupyterLab and Notebook 7.

    from dpp import browser, runs
    browser.show({"deformable": run, "rigid": other})

Widgets hold no logic: a `session.Session` holds the choices, `screens` makes every text and number
from it, and the page draws them. `Browser.close` frees everything that a browser holds.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from html import escape
from pathlib import Path
from threading import RLock

import ipywidgets as widgets

from dpp.browser import listings, screens
from dpp.browser.controls import EVERY, Controls, all_widgets, offer
from dpp.browser.elements import Board
from dpp.browser.scenes import sheet_scene
from dpp.browser.screens import Pair, Screen
from dpp.browser.session import Session
from dpp.browser.steering import FORGET, KEEP
from dpp.browser.texts import chart, sheet_text
from dpp.browser.thumbnails import Thumbnails, encode
from dpp.browser.workbench import LARGEST_FILE, Subject
from dpp.data.pictures import Picture
from dpp.figures.marked_pictures import shorten_name
from dpp.runs import Run
from dpp.system.errors import UserError

PICTURES = 8  # whose files are kept


def show(runs: Mapping[str, Run | Subject], folder: str | Path = "exports") -> "Browser":
    """A browser of runs; it is displayed if it is the last value of a cell.

    Args:
        runs: of deformable, protopnet or tesnet, by the names to display.
        folder: that exports are written to.
    """
    return Browser(Session(runs), Path(folder))


class Browser(Controls):
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
        self._thumbnails = Thumbnails(session)
        self._files: deque[tuple[Picture, bytes]] = deque(maxlen=PICTURES)
        super().__init__(list(session.runs))
        with self.quiet():
            self.other.value = session.other
            label = getattr(session.image, "label", 0)
            offer(self.image_class, listings.class_options(session), label)
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

    def _connect(self) -> None:
        session = self.session
        changed: dict[widgets.Widget, Callable] = {
            self.run: self._choose_run,
            self.label: self._choose_class,
            self.image: lambda key: session.choose_image(self._record(key)),
            self.view: lambda _: None,
            self.explained: partial(setattr, session, "explained"),
            self.sheet: session.choose_prototype,
            self.gallery: session.choose_prototype,
            self.nearest: self._choose_nearest,
            self.off: session.switch,
            self.rigid: session.hold,
            self.connected: lambda _: None,
            self.connection: lambda value: session.connect(self.connected.value, value),
            self.other: partial(setattr, session, "other"),
            self.search: lambda _: self._list_classes(),
            self.image_class: lambda _: self._list_images(),
            self.mistakes: lambda _: self._list_images(),
        }
        listed = {self.search, self.image_class, self.mistakes}  # the view stays as it is
        for widget, act in changed.items():

            def answer(event, act=act, changes=widget not in listed) -> None:
                if event["new"] is not None:
                    self._answer(act, event["new"], changes=changes)

            widget.observe(answer, names="value")
        pressed = {
            self.find: lambda _: session.find_neighbours(self._report(self.search_progress)),
            self.undo: lambda _: session.undo(),
            self.keep: lambda _: self._mark(KEEP),
            self.forget: lambda _: self._mark(FORGET),
            self.unmark: lambda _: session.run_marks.undo(),
            self.refit: lambda _: self._refit(),
        }
        for button, act in pressed.items():
            button.on_click(partial(self._answer, act))
        exports = {
            self.png: partial(screens.export, kind="png"),
            self.json: partial(screens.export, kind="json"),
            self.reasoning: screens.export_reasoning,
        }
        for button, write in exports.items():
            button.on_click(lambda _, write=write: self._answer(self._export, write, changes=False))
        self.upload.on_msg(lambda _, content, files: self._answer(self._uploaded, content, files))
        self.board.on_msg(lambda _, content, files: self._answer(self._pointed, content))
        shown = self.label, self.image, self.gallery, self.nearest, self.sheet
        for widget in (*shown, self.class_pick, self.image_pick):
            widget.on_msg(self._send_thumbnails)

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
        if view == "Compare runs" and not session.is_open(session.other):
            self.say(f"loading {session.other}")
            session.open(session.other)
            self.say("")
        self.screen = screens.show(session, view)
        with self.quiet():
            self._set_choices()
            {
                "Image": self._set_image,
                "Prototype": self._set_prototype,
                "What if": self._set_changes,
                "Compare runs": lambda: self._show_pairs(self.boards),
                "Keep or forget": self._set_marks,
            }[view]()
        for name, panel in self.panels.items():
            panel.layout.display = "flex" if name == view else "none"
        self.texts[view].value = self.screen.text

    def _set_choices(self) -> None:
        session = self.session
        offer(self.run, list(session.runs), session.run)
        offer(self.other, list(session.runs), session.other)
        self.class_pick.data = listings.class_title(session)
        self.image_pick.data = listings.image_title(session)
        self._list_classes()
        self._list_images(check=False)

    def _show_pairs(self, boards: tuple[Board, ...]) -> None:
        pairs = self.screen.pairs[: len(boards)]
        empty = [Pair({}, None, None)] * (len(boards) - len(pairs))
        for board, pair in zip(boards, (*pairs, *empty), strict=True):
            with board.hold_sync():
                board.here_picture, board.there_picture = map(self._file, (pair.here, pair.there))
                board.scene, board.heat = pair.scene, pair.heat

    def _file(self, picture: Picture | None) -> bytes:
        """A picture at its own resolution, encoded once."""
        if picture is None:
            return b""
        for one, content in self._files:
            if one is picture:
                return content
        self._files.append((picture, encode(picture.pixels)))
        return self._files[-1][1]

    def _set_image(self) -> None:
        screen, session = self.screen, self.session
        names, scores, sheet = session.subject.names, screen.data["scores"], screen.sheet
        order = sorted(range(len(scores)), key=lambda label: -scores[label])
        options = [(f"{shorten_name(names[one])}: {scores[one]:.2f}", one) for one in order]
        offer(self.explained, options, sheet.label)
        others = len(session.subject.network.labels) - len(sheet.matches)
        said = {"said": sheet_text(sheet, others)}
        self.sheet.data = sheet_scene(sheet, session.run, others) | said
        self.sheet.value = session.prototype
        self._show_pairs((self.board,))

    def _set_prototype(self) -> None:
        session, names = self.session, self.session.subject.names
        self.gallery.items = listings.gallery(session, self.screen.data["duplicates"])
        (group,) = (one for one in self.screen.data["duplicates"] if session.prototype in one)
        self.gallery.value = group[0]
        self._show_pairs((self.card,))
        connections = session.subject.connections(session.prototype)
        strong = sorted(range(len(names)), key=lambda label: -abs(connections[label]))
        shown = [session.label, *[label for label in strong if label != session.label]][:5]
        bars = [(names[label], {"": float(connections[label])}) for label in shown]
        self.connections.value = f"<b>Connections</b>{chart(bars, 3)}"
        done = session.neighbours is not None
        self.find.disabled = done
        self.find.description = "Nearest images are shown" if done else "Find its nearest images"
        self.nearest.items = listings.nearest(session)
        self.nearest.value = None

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

    def _set_marks(self) -> None:
        marks = self.session.run_marks
        self.unmark.disabled = not marks.undoable
        many = len(marks.forgotten)
        self.refit.description = f"Refit without {many} of them" if many else "Refit"

    def _list_classes(self) -> None:
        with self.quiet():
            self.label.items = listings.classes(self.session, self.search.value)
            self.label.none = f"no class has {self.search.value!r} in its name"
            self.label.value = self.session.label

    def _list_images(self, check: bool = True) -> None:
        """Lists the test images of a class, or those that are classified incorrectly."""
        session, label = self.session, self.image_class.value
        label = None if label == EVERY else label
        with self.quiet():
            if self.mistakes.value and check:
                self.image.items = []
                session.find_mistakes(label, self._report(self.progress))
            if check or not self.mistakes.value:
                self.image.items = listings.images(session, label, self.mistakes.value)
            what = "is classified incorrectly" if self.mistakes.value else "is in the test set"
            self.image.none = f"no image {what}"
            own = session.image_key in [item["key"] for item in self.image.items]
            self.image.value = session.image_key if own else None

    def _record(self, key: str):
        return self.session.subject.network.records[key]

    def _choose_run(self, name: str) -> None:
        self.session.choose_run(name)
        with self.quiet():
            self.search.value, self.mistakes.value = "", False
            options = listings.class_options(self.session)
            known = self.image_class.value in [label for _, label in options]
            offer(self.image_class, options, self.image_class.value if known else 0)

    def _choose_class(self, label: int) -> None:
        self.session.choose_class(label)
        with self.quiet():
            self.search.value = ""

    def _choose_nearest(self, key: str) -> None:
        label, prototype = self.session.label, self.session.prototype
        self.session.choose_image(self._record(key))
        self.session.choose_prototype(prototype)
        self.session.explained = label
        with self.quiet():
            self.view.value = "Image"

    def _uploaded(self, content: dict, files: list) -> None:
        if content.get("kind") == "refused":
            size = f"{content['size'] / 1e6:.1f} MB"
            limit = f"{LARGEST_FILE / 1e6:.0f} MB"
            raise UserError(f"{content['name']} has {size}: choose an image of at most {limit}")
        self.session.upload(content["name"], bytes(files[0]))

    def _pointed(self, content: dict) -> None:
        kind = content.get("kind")
        if kind == "centre":
            self.session.set_centre(content["row"], content["column"])
        elif kind == "step":
            self.session.move(content["rows"], content["columns"])
        elif kind == "best":
            self.session.centre = None

    def _send_thumbnails(self, widget, content: dict, buffers) -> None:
        if content.get("kind") != "want":
            return
        with self._lock:
            for picture in content["pictures"]:
                found = self._thumbnails.get(picture)
                widget.send({"kind": "thumbnail", "picture": picture}, buffers=[found])

    def _mark(self, kind: str) -> None:
        session = self.session
        (group,) = (one for one in self.screen.data["duplicates"] if session.prototype in one)
        session.run_marks.set(group, kind, self.reason.value)
        with self.quiet():
            self.reason.value = ""

    def _refit(self) -> None:
        self.say("refitting: this takes as long as fitting a last layer, or training if fine-tuned")
        self.session.refit(self.who.value, self.fine_tune.value)
        self.say("")

    def _report(self, progress: widgets.IntProgress) -> Callable[[int, int], None]:
        def report(done: int, of: int) -> None:
            progress.layout.visibility = "visible" if done < of else "hidden"
            progress.max, progress.value = of, done

        return report

    def _export(self, write: Callable) -> None:
        path = write(self.session, self.screen, self.folder)
        self.downloads.offer(path.name, path.read_bytes(), str(path))
        self.say(f"written: {path}")
