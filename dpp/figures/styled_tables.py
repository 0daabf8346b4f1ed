"""Tables in notebooks: formatted for a reader, with a plain text that nbval can compare."""

from collections.abc import Callable, Mapping

import pandas as pd


class StyledTable:
    """A frame that a notebook shows as HTML; its plain text is the same on every execution.

    `DataFrame.style` alone names the object's address in its plain text and draws random ids, so
    that no two executions agree.

    Args:
        frame: what to show.
        formats: by column, or one for all: a format string or a function of a value.
        caption: above the table.
        missing: what stands for NaN and None.
        hide_index: leave out the index.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        formats: Mapping[str, str | Callable] | str | None = None,
        *,
        caption: str = "",
        missing: str = "–",
        hide_index: bool = False,
    ):
        style = frame.style.format(formats, na_rep=missing)
        if pd.api.types.is_float_dtype(frame.index):
            style = style.format_index("{:g}")
        style = style.hide(axis="index") if hide_index else style
        if caption:
            style = style.set_caption(caption)
            above = "caption-side: top; text-align: left; white-space: nowrap"
            style = style.set_table_styles([{"selector": "caption", "props": above}])
        self.style = style

    def _repr_mimebundle_(self, **_) -> dict[str, str]:
        html = self.style.set_uuid("table").to_html()
        text = self.style.to_string(delimiter="  ").rstrip()
        return {"text/html": html, "text/plain": text}
