"""The rooms of `dpp/` in order, each of which imports only those before it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from dpp.system.paths import PACKAGE

ROOMS = (  # from the ground up; a room is a package or a module of `dpp/`
    "system",
    "reference",
    "ops",
    "drawn",
    "data",
    "explanations",
    "backbones",
    "networks",
    "training",
    "methods",
    "extensions",
    "runs",
    "analysis",
    "evaluation",
    "figures",
    "sharing",
    "paper",
    "report",
    "browser",
    "site",
    "doctor",
    "commands",
    "__main__",
)
CORE = ("ops.py", "reference.py", "networks", "training", "methods")  # the paper's
MOST_LINES, MOST_INIT_LINES, MOST_MODULES, MOST_CORE_LINES = 350, 40, 8, 3500


def imported_modules(path: Path) -> list[str]:
    """The dotted names below `dpp` that a file imports, anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "dpp":
            names += [f"dpp.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path}: a relative import; write the whole name")
    return [name.removeprefix("dpp.") for name in names if name.startswith("dpp.")]


def upward_imports(package: Path) -> list[str]:
    """Every import of a room that lies above the importing one, as text."""
    found = []
    for path in sorted(package.rglob("*.py")):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for name in imported_modules(path):
            target = name.split(".")[0]
            if target in ROOMS and ROOMS.index(target) > ROOMS.index(room):
                found.append(f"{path.relative_to(package)} imports dpp.{name}")
    return found


def test_every_room_has_its_place():
    rooms = {path.stem for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    rooms |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert rooms == set(ROOMS)


def test_imports_point_downward():
    assert upward_imports(PACKAGE) == []


@pytest.mark.parametrize("line", ["from dpp import runs", "import dpp.runs.finished as runs"])
def test_planted_upward_import_is_found(tmp_path, line):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "planted.py").write_text(f"def late():\n    {line}\n")
    (found,) = upward_imports(tmp_path)
    assert found.startswith("data/planted.py imports dpp.runs")


def test_modules_are_short_and_few():
    lengths = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    most = {path: MOST_INIT_LINES if path.name == "__init__.py" else MOST_LINES for path in lengths}
    assert [path.name for path, length in lengths.items() if length > most[path]] == []
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_MODULES
    core = [lengths[path] for path in lengths if path.relative_to(PACKAGE).parts[0] in CORE]
    assert len(core) > 20 and sum(core) <= MOST_CORE_LINES


def test_figures_load_neither_runs_nor_widgets():
    modules = sorted(path.stem for path in (PACKAGE / "figures").glob("*.py"))
    names = [f"dpp.figures.{name}" for name in modules if name != "__init__"]
    code = f"import sys, dpp.figures, {', '.join(names)}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    loaded = done.stdout.split()
    assert set(names) <= set(loaded)
    assert [name for name in loaded if name.startswith(("dpp.runs", "ipywidgets"))] == []
