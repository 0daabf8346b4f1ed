"""Every numbered equation of the paper has a test that names it, and a row in the README."""

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


@pytest.mark.parametrize("equation", range(1, 17))
def test_equation_of_the_paper_is_named_by_a_test(equation):
    assert equation in NAMED


@pytest.mark.parametrize("equation", range(1, 17))
def test_readme_leads_from_the_equation_to_its_function(equation):
    table = (ROOT / "README.md").read_text().partition("## From equation to function")[2]
    rows = [line for line in table.splitlines() if line.startswith("| equation")]
    paper = " ".join(row.split("|")[1] for row in rows)
    assert re.search(rf"\b{equation}\b", paper)


def test_readme_names_functions_and_files_that_exist():
    table = (ROOT / "README.md").read_text().partition("## From equation to function")[2]
    for file in set(re.findall(r"`(tests/\w+\.py)`", table)):
        assert (ROOT / file).is_file(), file
    for module, name in re.findall(r"`dpp\.(\w+)\.(\w+)`", table):
        assert f"def {name}(" in (ROOT / "dpp" / f"{module}.py").read_text(), name
