"""Widgets that ipywidgets lacks: figures with clicks and alternative text, and limited uploads.

ipywidgets' own image has neither clicks nor alternative text, and its own upload has no size limit.
The kernel sends the scripts beside this file to the page: there is no build step, and nothing is
loaded from elsewhere.
"""

import anywidget
import traitlets

from dpp.browser.workbench import LARGEST_FILE
from dpp.system.paths import PACKAGE

HERE = PACKAGE / "browser" / "page"  # given a path, anywidget keeps every widget to update it


class Figure(anywidget.AnyWidget):
    """PNG bytes and alternative text; sends clicks and arrow keys if it is `pointed`."""

    _esm = (HERE / "picture.js").read_text()
    _css = (HERE / "style.css").read_text()
    value = traitlets.Bytes().tag(sync=True)
    words = traitlets.Unicode().tag(sync=True)
    pointed = traitlets.Bool(False).tag(sync=True)


class Upload(anywidget.AnyWidget):
    """A file upload: its bytes come as a message, and are not kept in the widget."""

    _esm = (HERE / "upload.js").read_text()
    description = traitlets.Unicode("Your own picture").tag(sync=True)
    largest = traitlets.Int(LARGEST_FILE).tag(sync=True)
