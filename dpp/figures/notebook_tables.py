"""What a notebook tells besides figures: frames as tables, and sentences with computed numbers.

`DataFrame.style` alone has an object's address in its plain text and random ids in its HTML, so
that no two executions agree and nbval fails.
"""

from collections.abc import Callable, Mapping

import pandas as pd

FACE = [  # of all tables in notebooks; no colours, which would fail in a dark theme
    {"selector": "tbody tr", "props": "background: none"},  # stripes would cross groups of rows
    {"selector": "td, th", "props": "padding: 3px 7px; white-space: nowrap"},
    {"selector": "td", "props": "text-align: right; font-variant-numeric: tabular-nums"},
    {"selector": "th.col_heading", "props": "text-align: right"},
    {"selector": "th.row_heading, th.index_name", "props": "text-align: left; vertical-align: top"},
    {"selector": "th.row_heading", "props": "font-weight: normal; white-space: normal"},
    {"selector": "caption", "props": "caption-side: bottom; text-align: left; max-width: 60em"},
    {"selector": "caption", "props": "padding-top: 6px; opacity: 0.75; white-space: normal"},
]


class Table:
    """A frame that a notebook displays as a table, the same bytes on every execution.

    Args:
        frame: what is shown.
        formats: by column, or one for all: a format string or a function of a value.
        caption: below the table.
        index: whether the index is shown.
        digits: of fractions that no format is for.
        missing: what stands for NaN and None.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        formats: Mapping[str, str | Callable] | str | None = None,
        caption: str = "",
        *,
        index: bool = True,
        digits: int = 2,
        missing: str = "–",
    ):
        styler = frame.style.set_uuid("table").set_table_styles(FACE)
        styler = styler.format(formats, precision=digits, na_rep=missing)
        styler = styler.format_index(lambda name: f"{name:g}" if isinstance(name, float) else name)
        if caption:
            styler = styler.set_caption(caption)
        self.styler = styler if index else styler.hide(axis="index")

    def _repr_mimebundle_(self, **_) -> dict[str, str]:
        text = self.styler.to_string(delimiter="  ").rstrip()
        return {"text/html": self.styler.to_html(), "text/plain": text}


def say(*lines: str) -> None:
    """Displays a sentence as Markdown, or several as a list."""
    from IPython.display import Markdown, display

    display(Markdown("\n".join(f"- {line}" for line in lines) if len(lines) > 1 else lines[0]))
