"""The controls of the prototype browser, and how they are laid out; what they do is elsewhere."""

from collections.abc import Iterator, Sequence

import ipywidgets as widgets

from dpp.browser.elements import Board, Downloads, Pick, Sheet, Thumbs, Upload
from dpp.browser.screens import VIEWS
from dpp.browser.steering import REASONS

EVERY = -1  # instead of a class: all classes


def make_control(kind: type, description: str, width: int | None = None, **options):
    """A widget with its label; `width` in pixels."""
    layout = {"width": f"{width}px"} if width else {"width": "auto"}
    widget = kind(description=description, layout=layout, **options)
    if hasattr(widget.style, "description_width"):
        widget.style.description_width = "initial"
    return widget


def offer(widget, options: Sequence, value) -> None:
    """Sets options and value; equal options are not set again, which would reset the page."""
    if widget.options != tuple(options):
        widget.options = options
    widget.value = value


def make_text(*classes: str) -> widgets.HTML:
    text = widgets.HTML()
    for name in ("dpp-text", *classes):
        text.add_class(name)
    return text


def make_box(name: str, *children: widgets.Widget) -> widgets.Box:
    """A box that the style sheet lays out."""
    box = widgets.Box(list(children))
    box.add_class(name)
    return box


def all_widgets(widget: widgets.Widget) -> Iterator[widgets.Widget]:
    """A widget, its layout and style, and all below it."""
    for child in getattr(widget, "children", ()):
        yield from all_widgets(child)
    for part in ("layout", "style"):
        if isinstance(owned := getattr(widget, part, None), widgets.Widget):
            yield owned
    yield widget


class Controls:
    """All widgets of a browser.

    Args:
        runs: names to choose from.
    """

    def __init__(self, runs: Sequence[str]):
        self._make_choices(runs)
        self._make_image_view()
        self._make_prototype_view()
        self._make_changes(runs)
        self._make_marks()
        self.texts = {view: make_text() for view in VIEWS}
        views = zip(VIEWS, self._lay_out(), strict=True)
        self.panels = {view: make_box("dpp-view", *content) for view, content in views}
        bar = (self.run, self.class_pick, self.image_pick, self.upload, self.png, self.json)
        self.box = make_box(
            "dpp-browser",
            make_box("dpp-controls", *bar),
            make_box("dpp-controls", self.view, self.message, self.downloads),
            self.class_panel,
            self.image_panel,
            *self.panels.values(),
        )

    def _make_choices(self, runs: Sequence[str]) -> None:
        self.run = make_control(widgets.Dropdown, "Run", 215, options=runs)
        self.class_pick = Pick(description="Class", panel="dpp-classes")
        self.image_pick = Pick(description="Image", panel="dpp-images")
        self.search = make_control(widgets.Text, "Find class", 330, placeholder="part of a name")
        self.search.continuous_update = True
        self.label = Thumbs(description="Class", closes=True)
        self.image_class = make_control(widgets.Dropdown, "Images of", 330)
        self.mistakes = make_control(widgets.Checkbox, "Only mistakes", 140, indent=False)
        self.progress = make_control(widgets.IntProgress, "Images", 260)
        self.progress.layout.visibility = "hidden"
        self.image = Thumbs(description="Test image", closes=True)
        self.upload = Upload()
        self.view = make_control(widgets.ToggleButtons, "View", options=list(VIEWS))
        self.view.style.button_width = "auto"
        self.view.add_class("dpp-tabs")
        self.png, self.json = (
            make_control(widgets.Button, f"Export {kind}", tooltip=f"Download as {kind}")
            for kind in ("PNG", "JSON")
        )
        self.message, self.downloads = make_text("dpp-message"), Downloads()
        self.class_panel = make_box("dpp-panel", self.search, self.label)
        self.class_panel.add_class("dpp-classes")
        chosen = make_box("dpp-line", self.image_class, self.mistakes, self.progress)
        self.image_panel = make_box("dpp-panel", chosen, self.image)
        self.image_panel.add_class("dpp-images")

    def _make_image_view(self) -> None:
        self.board = Board()
        self.explained = make_control(widgets.Dropdown, "Score of", 380)
        self.sheet = Sheet()
        self.reasoning = make_control(
            widgets.Button, "Export the reasoning", tooltip="The best class and the next, as PNG"
        )

    def _make_prototype_view(self) -> None:
        self.gallery = Thumbs(description="Prototypes of the class")
        self.card = Board()
        self.connections = make_text("dpp-bars")
        self.find = make_control(widgets.Button, "Find its nearest images", 200)
        self.search_progress = make_control(widgets.IntProgress, "Images", 260)
        self.search_progress.layout.visibility = "hidden"
        self.nearest = Thumbs(description="Nearest images")
        self.reason = make_control(
            widgets.Combobox, "Reason", 400, options=REASONS, ensure_option=False
        )
        self.keep = make_control(widgets.Button, "Keep", 90)
        self.forget = make_control(widgets.Button, "Forget", 90)

    def _make_changes(self, runs: Sequence[str]) -> None:
        self.off = make_control(widgets.Checkbox, "Switch off", 215, indent=False)
        self.rigid = make_control(widgets.Checkbox, "All offsets zero", 150, indent=False)
        self.connected = make_control(widgets.Dropdown, "Connection to", 300)
        self.connection = make_control(widgets.FloatText, "Value", 130, step=0.1)
        self.undo = make_control(widgets.Button, "Undo all changes")
        self.other = make_control(widgets.Dropdown, "With run", 275, options=runs)
        self.boards = Board(), Board()

    def _make_marks(self) -> None:
        self.unmark = make_control(widgets.Button, "Undo the last mark")
        self.who = make_control(widgets.Text, "Your name", 220, placeholder="for the new run")
        self.fine_tune = make_control(
            widgets.BoundedIntText, "Epochs of fine-tuning", 220, min=0, max=1000
        )
        self.refit = make_control(widgets.Button, "Refit without them", button_style="primary")

    def _lay_out(self) -> Iterator[Sequence[widgets.Widget]]:
        """The content of each view."""
        image, prototype, changes, compare, marks = (self.texts[view] for view in VIEWS)
        score = make_box("dpp-column", self.explained, self.sheet, self.reasoning)
        score.add_class("dpp-score")
        yield image, make_box("dpp-columns", self.board, score)
        marking = make_box("dpp-line", self.reason, self.keep, self.forget)
        find = make_box("dpp-line", self.find, self.search_progress)
        left = make_box("dpp-column", self.gallery, find, self.nearest)
        left.add_class("dpp-galleries")
        right = make_box("dpp-column", prototype, self.card, self.connections, marking)
        yield (make_box("dpp-columns", left, right),)
        tried = (self.off, self.rigid, self.connected, self.connection, self.undo)
        yield make_box("dpp-line", *tried), changes
        yield self.other, compare, make_box("dpp-twins", *self.boards)
        yield marks, make_box("dpp-line", self.unmark, self.who, self.fine_tune, self.refit)
