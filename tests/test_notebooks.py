"""The notebook contract holds for every notebook, and each of its guards barks."""

import copy
import re
import subprocess
import sys

import nbformat
import pytest
from notebook_contract import IGNORED, checked_text, violations

from dpp.paper import notebooks

ALL = notebooks.find()
FIRST = ALL[0]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_notebook_keeps_the_contract(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert violations(notebook) == []


def test_notebooks_are_numbered_without_gaps_in_their_names():
    assert all(re.fullmatch(r"\d\d_[a-z0-9_]+", path.stem) for path in ALL)
    assert len({path.stem[:2] for path in ALL}) == len(ALL)


def clear_count(cells):
    next(cell for cell in cells if cell.cell_type == "code").execution_count = None


def swap_counts(cells):
    first, second = [cell for cell in cells if cell.cell_type == "code"][:2]
    first.execution_count, second.execution_count = second.execution_count, first.execution_count


def parameters_cell(cells):
    return next(cell for cell in cells if "parameters" in cell.metadata.get("tags", []))


def untag(cells):
    parameters_cell(cells).metadata["tags"] = []


def ignore_everything(cells):
    for cell in cells:
        cell.metadata.setdefault("tags", []).append(IGNORED)


def add_error(cells):
    error = nbformat.v4.new_output("error", ename="ValueError", evalue="", traceback=[])
    parameters_cell(cells).outputs.append(error)


def add_output(cells, **data):
    parameters_cell(cells).outputs.append(nbformat.v4.new_output("display_data", data=data))


def append(text):
    def change(cells):
        parameters_cell(cells).source += text

    return change


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (clear_count, "not executed"),
        (swap_counts, "not executed"),
        (untag, "0 cells tagged"),
        (ignore_everything, "no output that nbval checks"),
        (add_error, "error output"),
        (append("\ndepth: int = 2;"), "trailing semicolon"),
        (append("\ndepth: int = 1 + 1 # sum"), "no literal"),
        (append("\ndepth = 2 # untyped"), "without a type"),
        (append("\ndepth: int = 2"), "without a comment"),
        (append('\nfolder: str = "/home/me/data"  # mine'), "absolute path in a cell"),
        (lambda cells: add_output(cells, **{"text/plain": "/home/me"}), "absolute path in an out"),
        (lambda cells: add_output(cells, **{"image/png": "A" * 400_000}), "figure over"),
        (lambda cells: add_output(cells, **{notebooks.WIDGETS: {"model_id": ""}}), "widgets"),
        (lambda cells: cells.pop(0), "title"),
        (lambda cells: cells.__delitem__(slice(-2, None)), "What we found"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_contract_barks_at(damage, complaint):
    notebook = copy.deepcopy(nbformat.read(FIRST, as_version=4))
    damage(notebook.cells)
    assert any(complaint in found for found in violations(notebook))


def test_widgets_leave_their_picture_in_a_stored_notebook():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell()])
    bundles = {"image/png": "AAAA", notebooks.WIDGETS: {}}, {notebooks.WIDGETS: {}}
    notebook.cells[0].outputs = [nbformat.v4.new_output("display_data", data=it) for it in bundles]
    kept, _ = notebooks.keep_pictures(notebook)
    assert [set(output.data) for output in kept.cells[0].outputs] == [
        {"image/png"},
        {notebooks.WIDGETS},
    ]


@pytest.mark.slow
def test_nbval_fails_when_a_stored_number_is_altered(tmp_path):
    notebook = nbformat.read(FIRST, as_version=4)
    cell, output = next(
        (cell, output)
        for cell in notebook.cells
        if cell.cell_type == "code" and checked_text(cell)
        for output in cell.outputs
        if output.output_type == "stream" and re.search(r"\d", output.text)
    )
    output.text = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), output.text, count=1)
    nbformat.write(notebook, tmp_path / "altered.ipynb")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider", "altered.ipynb"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout
    failed = re.findall(r"^FAILED \S+::Cell (\d+)", done.stdout, flags=re.MULTILINE)
    assert failed == [str(cell.execution_count - 1)], done.stdout
