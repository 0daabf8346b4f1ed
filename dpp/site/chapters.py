"""A notebook as a page of Markdown: its texts, its code folded, and its committed outputs."""

import base64
import html
import re
from pathlib import Path

import nbformat

from dpp.system.errors import UserError

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def write(notebook: Path, page: Path) -> None:
    """Writes a notebook as a page, and its pictures beside it.

    Args:
        notebook: executed.
        page: a path that ends in .md; pictures go to a folder of its name.

    Raises:
        UserError: a cell has failed, or has an output that a page cannot show.
    """
    content = nbformat.read(notebook, as_version=4)
    pieces, heading, pictures, tables = [], notebook.stem, 0, 0
    for cell in content.cells:
        if cell.cell_type == "markdown":
            pieces.append(cell.source)
            titles = re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE)
            heading = titles[-1] if titles else heading
            continue
        if cell.source.strip():
            pieces.append(_folded(cell.source))
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                pictures += 1
                picture = page.with_suffix("") / f"{pictures}.png"
                picture.parent.mkdir(parents=True, exist_ok=True)
                picture.write_bytes(base64.b64decode(output.data["image/png"]))
                shown = html.escape(re.sub(r"[`*$\\]", "", heading))
                pieces.append(f"![Figure: {shown}]({page.stem}/{picture.name}){{ loading=lazy }}")
            else:
                tables += 1  # in a notebook all have the same name, and so the same style
                pieces.append(_shown(output, notebook).replace("T_table", f"T_{tables}"))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n\n".join(pieces) + "\n")


def _folded(code: str) -> str:
    lines = ["```python", *code.splitlines(), "```"]
    return '??? code "Code"\n\n' + "\n".join(f"    {line}".rstrip() for line in lines)


def _shown(output: nbformat.NotebookNode, notebook: Path) -> str:
    if output.output_type == "stream":
        return _fenced(output.text)
    if output.output_type == "error":
        raise UserError(f"{notebook} has a cell that failed: {output.ename}: execute it again")
    data = output.data
    if "text/html" in data:  # a block without empty lines, which would end it
        lines = (line for line in data["text/html"].splitlines() if line.strip())
        return '<div class="output">\n' + "\n".join(lines) + "\n</div>"
    if "text/markdown" in data:
        return data["text/markdown"]
    if "text/plain" in data:
        return _fenced(data["text/plain"])
    raise UserError(f"{notebook} has an output that a page cannot show: {', '.join(data)}")


def _fenced(text: str) -> str:
    return f"```text\n{ANSI.sub('', text).rstrip()}\n```"
