"""Every numbered equation of the paper has a test that names it, and a row in the docs."""

import re
from pathlib import Path

import pytest

from dpp.system.paths import ROOT

TESTS = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
NAMED = {
    int(number)
    for numbers in re.findall(r"def test_equations?_(\d+)(?:_and_(\d+))?", TESTS)
    for number in filter(None, numbers)
}
TABLE = (ROOT / "docs" / "equations.md").read_text()


@pytest.mark.parametrize("equation", range(1, 17))
def test_equation_of_the_paper_is_named_by_a_test(equation):
    assert equation in NAMED


@pytest.mark.parametrize("equation", range(1, 17))
def test_docs_lead_from_the_equation_to_its_function(equation):
    rows = [line for line in TABLE.splitlines() if line.startswith("| equation")]
    paper = " ".join(row.split("|")[1] for row in rows)
    assert re.search(rf"\b{equation}\b", paper)


def test_docs_name_functions_and_files_that_exist():
    for file in set(re.findall(r"`(tests/\w+\.py)`", TABLE)):
        assert (ROOT / file).is_file(), file
    functions = re.findall(r"`(dpp(?:\.\w+)+)\.(\w+)`", TABLE)
    assert len(functions) >= 15
    for module, name in functions:
        path = ROOT / module.replace(".", "/")
        if (path / name).with_suffix(".py").is_file():  # a whole module
            continue
        assert f"def {name}(" in path.with_suffix(".py").read_text(), (module, name)
