"""What holds for every notebook in the repository, as a function from a notebook to complaints."""

import ast
import base64
import re

from dpp.paper.notebooks import WIDGETS

IGNORED = "nbval-ignore-output"
ABSOLUTE_PATH = re.compile(
    r"(?<![\w.~:/])(/(?:home|root|tmp|usr|opt|mnt|var|work|Users)/|[A-Z]:\\)"
)
LARGEST_FIGURE = 150_000  # bytes


def violations(notebook: dict) -> list[str]:
    """Every way in which a notebook (as nbformat reads it) breaks the contract; empty if none."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    found = []
    if [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)):
        found.append("not executed from top to bottom")
    tagged = [cell for cell in code if "parameters" in tags(cell)]
    if len(tagged) != 1:
        found.append(f"{len(tagged)} cells tagged parameters, not 1")
    found += [complaint for cell in tagged for complaint in parameter_violations(cell["source"])]
    if not any(checked_text(cell) for cell in code):
        found.append("no output that nbval checks")
    if not notebook["cells"][0]["source"].startswith("# "):
        found.append("does not start with a title")
    headings = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    if not any(source.startswith("## What we found") for source in headings):
        found.append("no heading What we found")
    for cell in notebook["cells"]:
        found += cell_violations(cell)
    return found


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def checked_text(cell: dict) -> str:
    """The text that nbval compares in a cell."""
    if IGNORED in tags(cell):
        return ""
    return "".join(output_text(output) for output in cell["outputs"])


def output_text(output: dict) -> str:
    if output["output_type"] == "stream":
        return output["text"]
    data = output.get("data", {})
    return "".join(text for kind, text in data.items() if kind.startswith("text/"))


def parameter_violations(source: str) -> list[str]:
    """Parameters are `name: type = literal  # what it is`, a line each."""
    found = []
    lines = source.splitlines()
    for statement in ast.parse(source).body:
        line = lines[statement.end_lineno - 1]
        if not isinstance(statement, ast.AnnAssign) or statement.value is None:
            found.append(f"parameter without a type: {line}")
            continue
        try:
            ast.literal_eval(statement.value)
        except ValueError:
            found.append(f"parameter that is no literal: {line}")
        if "#" not in line:
            found.append(f"parameter without a comment: {line}")
    return found


def cell_violations(cell: dict) -> list[str]:
    found = []
    if ABSOLUTE_PATH.search(cell["source"]):
        found.append(f"absolute path in a cell: {cell['source'][:60]!r}")
    if cell["cell_type"] != "code":
        return found
    if cell["source"].rstrip().endswith(";"):
        found.append(f"trailing semicolon: {cell['source'][-40:]!r}")
    for output in cell["outputs"]:
        if output["output_type"] == "error":
            found.append(f"error output: {output['ename']}")
            continue
        if ABSOLUTE_PATH.search(output_text(output)):
            found.append(f"absolute path in an output of {cell['source'][:60]!r}")
        if WIDGETS in output.get("data", {}):
            found.append(f"widgets without a kernel after {cell['source'][:60]!r}")
        picture = output.get("data", {}).get("image/png")
        if picture and len(base64.b64decode(picture)) > LARGEST_FIGURE:
            found.append(f"figure over {LARGEST_FIGURE} bytes after {cell['source'][:60]!r}")
    return found
