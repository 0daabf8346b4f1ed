"""Controls of the prototype browser: widgets with labels, rows of them, and their clean-up."""

from collections.abc import Iterator

import ipywidgets as widgets


def make_control(kind: type, description: str, width: int | None = None, **options):
    """A widget with its label; `width` in pixels."""
    layout = {"width": f"{width}px"} if width else {}
    widget = kind(description=description, layout=layout, **options)
    if hasattr(widget.style, "description_width"):
        widget.style.description_width = "initial"
    return widget


def offer(widget, options: list[tuple], value) -> None:
    """Sets options and value; equal options are not set again, which would reset the page."""
    if widget.options != tuple(options):
        widget.options = options
    widget.value = value


def make_text() -> widgets.HTML:
    text = widgets.HTML()
    text.add_class("dpp-text")
    return text


def make_row(*children: widgets.Widget) -> widgets.HBox:
    return widgets.HBox(list(children), layout={"flex_flow": "row wrap"})


def all_widgets(widget: widgets.Widget) -> Iterator[widgets.Widget]:
    """A widget, its layout and style, and all below it."""
    for child in getattr(widget, "children", ()):
        yield from all_widgets(child)
    for part in ("layout", "style"):
        if isinstance(owned := getattr(widget, part, None), widgets.Widget):
            yield owned
    yield widget
