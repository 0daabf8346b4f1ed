"""Widgets that ipywidgets lacks, drawn in the page by the scripts in `page/`.

The kernel sends the scripts to the page: there is no build step, and nothing is loaded from
elsewhere.
"""

import anywidget
import traitlets

from dpp.browser.workbench import LARGEST_FILE
from dpp.system.paths import PACKAGE

HERE = PACKAGE / "browser" / "page"  # given a path, anywidget keeps every widget to update it
STYLE = (HERE / "style.css").read_text()


def script(name: str) -> str:
    """A widget's script, with what all of them share before it."""
    return (HERE / "shared.js").read_text() + (HERE / name).read_text()


class Board(anywidget.AnyWidget):
    """A prototype on an image and on its source image (`scenes.pair_scene`, `scenes.heat_scene`).

    It sends {"kind": "centre", "row", "column"} while its centre is dragged, {"kind": "step",
    "rows", "columns"} for arrow keys, and {"kind": "best"} for the best place.
    """

    _esm = script("board.js")
    _css = STYLE
    scene = traitlets.Dict().tag(sync=True)
    heat = traitlets.Dict().tag(sync=True)
    here_picture = traitlets.Bytes().tag(sync=True)
    there_picture = traitlets.Bytes().tag(sync=True)


class Sheet(anywidget.AnyWidget):
    """A score sheet (`scenes.sheet_scene`); its value is the number of the chosen prototype."""

    _esm = script("sheet.js")
    _css = STYLE
    data = traitlets.Dict().tag(sync=True)
    value = traitlets.Int(None, allow_none=True).tag(sync=True)


class Thumbs(anywidget.AnyWidget):
    """A grid of thumbnails; its value is the key of the chosen item.

    An item has a key, a title and a picture (`thumbnails.Thumbnails.get`), and perhaps a note, a
    badge, a mark and words that describe it.
    """

    _esm = script("thumbs.js")
    _css = STYLE
    description = traitlets.Unicode().tag(sync=True)
    items = traitlets.List().tag(sync=True)
    value = traitlets.Any(None, allow_none=True).tag(sync=True)
    none = traitlets.Unicode().tag(sync=True)
    closes = traitlets.Bool(False).tag(sync=True)


class Pick(anywidget.AnyWidget):
    """A button that shows what is chosen (title, note, picture) and opens a panel of the browser.

    The panel is the widget with the CSS class `panel`.
    """

    _esm = script("pick.js")
    _css = STYLE
    description = traitlets.Unicode().tag(sync=True)
    panel = traitlets.Unicode().tag(sync=True)
    data = traitlets.Dict().tag(sync=True)


class Upload(anywidget.AnyWidget):
    """A file upload: its bytes come as a message, and are not kept in the widget."""

    _esm = script("upload.js")
    _css = STYLE
    description = traitlets.Unicode("Your own picture").tag(sync=True)
    largest = traitlets.Int(LARGEST_FILE).tag(sync=True)


class Downloads(anywidget.AnyWidget):
    """Offers files that it is sent, by `offer`, as downloads."""

    _esm = script("download.js")
    _css = STYLE

    def offer(self, name: str, content: bytes, path: str) -> None:
        self.send({"kind": "file", "name": name, "path": path}, buffers=[content])
