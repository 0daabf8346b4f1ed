"""What the prototype browser adds to a page: figures that can be pointed at, and uploads.

ipywidgets' own image has no clicks and no words for those who cannot see it, and its own upload
sends a file however large it is. The scripts beside this file come to the page through the kernel:
nothing is built, nothing is loaded from elsewhere.
"""

import anywidget
import traitlets

from dpp.browser.workbench import LARGEST_FILE
from dpp.system.paths import PACKAGE

HERE = PACKAGE / "browser" / "page"  # given a path, anywidget keeps every widget to update it


class Figure(anywidget.AnyWidget):
    """PNG bytes and what they show in words; sends clicks and arrow keys if it is `pointed` at."""

    _esm = (HERE / "picture.js").read_text()
    _css = (HERE / "style.css").read_text()
    value = traitlets.Bytes().tag(sync=True)
    words = traitlets.Unicode().tag(sync=True)
    pointed = traitlets.Bool(False).tag(sync=True)


class Upload(anywidget.AnyWidget):
    """A file of a person's own: its bytes come as a message, and are not kept."""

    _esm = (HERE / "upload.js").read_text()
    description = traitlets.Unicode("Your own picture").tag(sync=True)
    largest = traitlets.Int(LARGEST_FILE).tag(sync=True)
