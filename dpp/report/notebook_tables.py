"""What a notebook tells: frames as tables, and sentences with computed numbers."""

from collections.abc import Mapping

import pandas as pd

FACE = [
    {"selector": "td, th", "props": "padding: 3px 9px; white-space: nowrap"},
    {"selector": "td", "props": "text-align: right; font-variant-numeric: tabular-nums"},
    {"selector": "th.col_heading", "props": "text-align: right"},
    {"selector": "th.row_heading", "props": "text-align: left; font-weight: normal"},
    {"selector": "caption", "props": "caption-side: bottom; text-align: left; max-width: 60em"},
    {"selector": "caption", "props": "padding-top: 6px; opacity: 0.75; white-space: normal"},
]


class Table:
    """A frame that a notebook displays as a table; unlike a pandas Styler, it has no random id.

    Args:
        frame: what is shown.
        formats: such as "{:.0%}" by column; "{:.2f}" for other fractions.
        caption: below the table.
        index: whether the index is shown.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        formats: Mapping[str, str] | None = None,
        caption: str = "",
        *,
        index: bool = True,
    ):
        styler = frame.style.set_uuid("frame").set_table_styles(FACE).set_caption(caption)
        styler = styler.format(precision=2, na_rep="–")
        for column, pattern in (formats or {}).items():
            styler = styler.format(pattern, subset=[column], na_rep="–")
        self.styler = styler if index else styler.hide()
        self.caption, self.size = caption, frame.shape

    def _repr_html_(self) -> str:
        return self.styler.to_html()

    def __repr__(self) -> str:
        rows, columns = self.size
        return f"A table of {rows} rows and {columns} columns"


def say(*lines: str) -> None:
    """Displays a sentence as Markdown, or several as a list."""
    from IPython.display import Markdown, display

    display(Markdown("\n".join(f"- {line}" for line in lines) if len(lines) > 1 else lines[0]))
