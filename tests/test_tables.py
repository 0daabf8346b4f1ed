"""Reported numbers beside stored runs: means by hand, what was not run, and files of it all."""

import csv
import io
import re
import shutil
import subprocess
from types import SimpleNamespace

import pandas as pd
import pytest

from dpp.paper import layout, regenerate, tables
from dpp.paper.regenerate import RegeneratedTable
from dpp.runs import records
from dpp.runs.ensembles import Ensemble
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment

RIGID, DEFORMED = ("Def. ProtoPNet (2x2,nd)", "Res50"), ("Def. ProtoPNet (2x2)", "Res50")
TABLES = list(tables.TITLES)


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """Results of its own for each test: the paper's numbers and no run."""
    shutil.copytree(paths.RESULTS / "paper", tmp_path / "results" / "paper")
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")


PHOTOGRAPHS = {"data": "cub", "weights": "none"}  # tested on the paper's images


def plan(seeds: int = 3, **changes) -> list:
    return [make_experiment("smoke", seed=seed, **changes) for seed in range(seeds)]


def store(experiments, accuracies, rows=()) -> None:
    """Puts made-up records where those of runs would be; `rows` are of each run's epochs."""
    for experiment, accuracy in zip(experiments, accuracies, strict=False):
        manifest = {"run": experiment.name, "results": {"test_accuracy": accuracy}, "seconds": 1.0}
        metrics = pd.DataFrame(rows or [{"stage": "test", "test_accuracy": accuracy}])
        records.store(SimpleNamespace(experiment=experiment, manifest=manifest, metrics=metrics))


def cell_of(frame: pd.DataFrame, place: tuple[str, str]) -> pd.Series:
    found = frame[(frame.row == place[0]) & (frame.column == place[1])]
    assert len(found) == 1
    return found.iloc[0]


@pytest.fixture
def frame():
    """Table 1 with one cell run, one half run, and the rest not."""
    rigid, deformed = plan(deformable=False, kernel_size=2), plan(kernel_size=2)
    store(rigid, [0.80, 0.83, 0.86])
    store(deformed, [0.875, 0.885])
    return tables.compare("table1", {RIGID: rigid, DEFORMED: deformed})


def test_stages_of_runs_are_averaged_by_hand():
    two = plan(2, kernel_size=2)
    for experiment, more in zip(two, (0.0, 0.1), strict=True):
        ends = [
            ("train", 0.9, 0.6, None),
            ("project", None, 0.4, 100),
            ("last layer", None, 0.5, 0),
        ]
        lines = [
            {
                "stage": stage,
                "accuracy": own,
                "test_accuracy": test + more,
                "source_images": sources,
            }
            for stage, own, test, sources in [("train", 0.2, 0.0, None), *ends]
        ]
        store([experiment], [0.5], lines)
    found = tables.by_stage(
        {DEFORMED: two, RIGID: plan(deformable=False)}, [RIGID[0], DEFORMED[0]], "Res50"
    )
    assert found.index.tolist() == [DEFORMED[0]]
    expected = {"runs": 2, "training": 90, "trained": 65, "projected": 45, "fitted": 55}
    assert found.iloc[0].to_dict() == pytest.approx(expected | {"sources": 100})
    assert tables.by_stage({RIGID: plan(deformable=False)}, [RIGID[0]], "Res50").empty


def test_mean_and_deviation_are_those_by_hand():
    experiments = plan()
    store(experiments, [0.80, 0.83, 0.89])
    (row,) = tables.regenerated({("a", "b"): experiments}).to_dict("records")
    assert (row["row"], row["column"], row["profile"]) == ("a", "b", "smoke")
    assert row["mean"] == pytest.approx(84.0)  # (80 + 83 + 89) / 3
    assert row["deviation"] == pytest.approx(21**0.5)  # ((-4)^2 + (-1)^2 + 5^2) / 2 = 21
    assert (row["runs"], row["planned"]) == (3, 3)


def test_partial_seeds_give_their_own_mean_and_say_how_many(frame):
    cell = cell_of(frame, DEFORMED)
    assert cell["mean"] == pytest.approx(88.0)
    assert cell.deviation == pytest.approx(0.5**0.5)
    assert cell.regenerated == "88.0 ± 0.7 (n = 2 of 3)"


def test_one_run_has_no_deviation():
    experiments = plan(1)
    store(experiments, [0.5])
    frame = tables.compare("table1", {RIGID: experiments})
    cell = cell_of(frame, RIGID)
    assert pd.isna(cell.deviation) and cell.regenerated == "50.0 (n = 1)"
    stored = pd.read_csv(io.StringIO(layout.as_long_csv(frame)), keep_default_na=False)
    assert cell_of(stored, RIGID).deviation == "one run"


def test_ensemble_is_a_run_like_any_other():
    ensemble = Ensemble(tuple(plan(5, **PHOTOGRAPHS)))
    store([ensemble], [0.878])
    place = ("Def. ProtoPNet** [2p,10pc]", "CUB-200-2011 (f)")
    cell = cell_of(tables.compare("table3", {place: [ensemble]}), place)
    assert cell["mean"] == pytest.approx(87.8) and cell.difference == pytest.approx(0)


@pytest.fixture
def photo_frame():
    """The same with runs on the paper's own photographs."""
    rigid, deformed = plan(deformable=False, **PHOTOGRAPHS), plan(**PHOTOGRAPHS)
    store(rigid, [0.80, 0.83, 0.86])
    store(deformed, [0.875, 0.885])
    return tables.compare("table1", {RIGID: rigid, DEFORMED: deformed})


def test_difference_is_positive_where_the_run_is_better(photo_frame):
    assert cell_of(photo_frame, RIGID).difference == pytest.approx(83.0 - 86.4)
    assert cell_of(photo_frame, DEFORMED).difference == pytest.approx(88.0 - 86.4)


def test_drawn_birds_have_no_difference_from_photographs(frame, photo_frame):
    assert frame.difference.isna().all() and photo_frame.difference.notna().sum() == 2
    for make in (layout.as_csv, layout.as_long_csv, layout.as_markdown, layout.as_latex):
        drawn, photographed = make(frame), make(photo_frame)
        assert "smoke - paper" not in drawn and "difference" not in drawn
        assert "smoke - paper" in photographed or "difference" in photographed
    assert "compare rows" in layout.caption(frame)
    assert "compare rows" not in layout.caption(photo_frame)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("given", ["no cells", "cells without records"])
def test_what_was_not_run_says_so_and_is_never_the_papers_number(table, given):
    printed = tables.reported(table)
    places = zip(printed.row, printed.column, strict=True)
    cells = {place: plan() for place in places} if given != "no cells" else {}
    frame = tables.compare(table, cells)
    assert list(frame.reported) == list(printed.value)
    quoted = frame.row.isin(tables.ELSEWHERE)
    assert set(frame.regenerated[~quoted]) == {"not run"} and not frame.best.any()
    assert set(frame.regenerated[quoted]) <= {"quoted"}
    assert frame["mean"].isna().all() and frame.difference.isna().all()
    stored = pd.read_csv(io.StringIO(layout.as_long_csv(frame)), keep_default_na=False)
    for column in ("mean", "deviation"):
        assert list(stored[column]) == list(frame.regenerated)
    for make in (layout.as_markdown, layout.as_latex, layout.as_csv, layout.as_text):
        text = make(frame)
        assert text.count("not run") == sum(~quoted)
        assert text.count("quoted") == sum(quoted)


def test_row_that_is_printed_twice_has_the_same_runs_twice():
    experiments = plan()
    store(experiments, [0.5, 0.6, 0.7])
    row = "Margin 0.1, Ortho Loss 0.1, Deformations Yes"
    frame = tables.compare("table2", {(row, "Accuracy"): experiments})
    assert list(frame.group[frame.row == row]) == ["top", "bottom"]
    assert list(frame["mean"][frame.row == row]) == pytest.approx([60, 60])
    assert (frame.regenerated[frame.row != row] == "not run").all()


def test_group_called_none_is_not_missing():
    assert set(tables.reported("table3").group[:2]) == {"None"}
    assert set(tables.compare("table3", {}).group[:2]) == {"None"}


@pytest.mark.parametrize("table", TABLES)
def test_rule_for_the_best_gives_the_papers_bold(table):
    """Runs with the paper's own numbers: bold where the paper has it, but for where it departs.

    Table 3 marks no number of the models without interpretability, and in two more groups marks
    the best on full images and not the one on cropped ones.
    """
    printed = tables.reported(table)
    cells = {}
    for line in printed.itertuples():
        share = round(line.value / 100, 3)
        number = round(line.value * 10)
        cells[line.row, line.column] = [make_experiment("smoke", seed=number)]
        store(cells[line.row, line.column], [share])
    frame = tables.compare(table, cells)
    departs = frame[frame.best != frame.bold]
    expected = set()
    if table == "table3":
        expected = {("B-CNN", "(bb)"), ("B-CNN", "(f)"), ("MG-CNN", "(bb)"), ("TesNet*", "(bb)")}
    assert set(zip(departs.row, departs.mark, strict=True)) == expected
    assert list(frame["mean"]) == pytest.approx(list(printed.value))


def test_best_are_all_that_print_alike():
    first, second = plan(1), plan(1, deformable=False)
    store([*first, *second], [0.80004, 0.80001])
    frame = tables.compare("table1", {DEFORMED: first, RIGID: second})
    assert cell_of(frame, DEFORMED).best and cell_of(frame, RIGID).best
    assert frame.best.sum() == 2


def test_page_has_the_papers_rows_and_columns_in_order(frame):
    page = layout.arrange(frame)
    columns = "VGG16 VGG19 Res34 Res50 Res152 Dense121 Dense161".split()
    assert list(page.columns) == [(c, source) for c in columns for source in ("paper", "smoke")]
    assert list(page.index.get_level_values("row"))[::5] == ["Baseline", "Def. ProtoPNet (2x2)"]
    assert page.at[(0, "", DEFORMED[0]), ("Res50", "smoke")].text == "88.0 ± 0.7 (2 of 3)"
    halves = layout.arrange(tables.compare("table2", {}))
    assert list(halves.index.get_level_values("group")) == ["top"] * 4 + ["bottom"] * 4


def test_table_3_has_birds_above_dogs_as_on_the_page():
    page = layout.arrange(tables.compare("table3", {}))
    texts = page.map(lambda entry: entry.text)
    dogs = (texts["Stanford Dogs"] != "").any(axis=1).to_numpy()
    assert dogs.sum() == 5 and dogs[-5:].all()
    assert list(page.index.get_level_values("row")).count("RA-CNN") == 2


def test_profiles_stand_side_by_side(frame, photo_frame):
    photo_frame["profile"] = photo_frame.profile.replace("smoke", "mini")
    page = layout.arrange(photo_frame, frame)
    sources = ["paper", "mini", "smoke"]  # the difference would make the page too wide
    assert list(page.columns.unique("source")) == sources
    for make in (layout.as_csv, layout.as_markdown, layout.as_latex, layout.as_text):
        assert "smoke" in make(photo_frame, frame)


def test_runs_of_the_paper_profile_do_not_hide_what_the_paper_prints(frame):
    frame["profile"] = frame.profile.replace("smoke", "paper")
    page = layout.arrange(frame)
    assert list(page.columns.unique("source")) == ["paper", "paper profile"]
    assert page.at[(0, "", RIGID[0]), ("Res50", "paper")].text == "86.4"


def entries_of(frame: pd.DataFrame) -> list[list[str]]:
    """The page, row by row, bold shown as a leading !."""
    page, table = layout.arrange(frame), frame.table[0]
    rows, above = [], None
    for (block, group, row), entries in zip(page.index, page.to_numpy(), strict=True):
        names = layout.row_names(table, group, row)
        if len(names) > 1 and block == above:
            names[0] = ""
        above = block
        rows.append(names + ["!" * (e.bold and e.text != "") + e.text for e in entries])
    return rows


def markdown_rows(text: str) -> list[list[str]]:
    """Cells of the table, escapes undone and bold shown as a leading !."""
    lines = [line[2:-2] for line in text.splitlines() if line.startswith("| ")][2:]
    rows = [re.split(r" (?<!\\)\| ", line) for line in lines]
    bold = [[re.sub(r"^\*\*(.*?)\*\*$", r"!\1", cell.strip()) for cell in row] for row in rows]
    return [[re.sub(r"\\(.)", r"\1", cell) for cell in row] for row in bold]


def latex_body(text: str) -> list[str]:
    """The lines between the heading and the end of the table, without rules."""
    inside = text.partition("\\hline\n")[2].partition("\n\\end{tabular}")[0]
    return [line for line in inside.splitlines() if line != "\\hline"]


def latex_rows(text: str) -> list[list[str]]:
    """The same of LaTeX."""
    rows = [line.removesuffix(r" \\").split(" & ") for line in latex_body(text)[2:]]
    plain = {r"$\pm$": "±", "{[}": "[", "{*}": "*", r" \times ": "x", "$": ""}
    cleaned = []
    for row in rows:
        for old, new in plain.items():
            row = [cell.replace(old, new).strip() for cell in row]
        cleaned.append([re.sub(r"^\\textbf\{(.*)\}$", r"!\1", cell) for cell in row])
    return cleaned


@pytest.mark.parametrize("read", [markdown_rows, latex_rows])
def test_numbers_and_bold_come_back_from_files(frame, read, tmp_path):
    layout.write(tmp_path / "new" / "folder", "table1", frame)
    suffix = {markdown_rows: "md", latex_rows: "tex"}[read]
    rows = read((tmp_path / "new" / "folder" / f"table1.{suffix}").read_text())
    assert rows == entries_of(frame) and len(rows) == 6
    by_name = {row[0]: row for row in rows}
    place = 1 + 2 * 3  # of Res50: after the name, and three backbones with two sources each
    assert by_name[RIGID[0]][place : place + 2] == ["!86.4", "83.0 ± 3.0"]
    assert by_name[DEFORMED[0]][place : place + 2] == ["!86.4", "!88.0 ± 0.7 (2 of 3)"]
    assert by_name["ProtoPNet"][1:3] == ["70.3*", "not run"]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("read", [markdown_rows, latex_rows])
def test_names_with_stars_and_brackets_come_back(table, read):
    frame = tables.compare(table, {})
    text = layout.as_markdown(frame) if read is markdown_rows else layout.as_latex(frame)
    assert read(text) == entries_of(frame)


def test_csv_opens_without_pandas(frame, tmp_path):
    layout.write(tmp_path, "table1", frame)
    content = (tmp_path / "table1.csv").read_bytes()
    assert content.isascii()  # a spreadsheet may guess any encoding
    rows = {row["Model"]: row for row in csv.DictReader(io.StringIO(content.decode()))}
    assert len(rows) == 6
    rigid = rows[RIGID[0]]
    assert (rigid["Res50: paper"], rigid["Res50: smoke"]) == ("86.4", "83.0")
    assert (rows["ProtoPNet"]["VGG16: paper"], rigid["VGG16: smoke"]) == ("70.3", "not run")


def test_csv_by_cell_opens_without_pandas(frame, tmp_path):
    layout.write(tmp_path, "table1", frame)
    content = (tmp_path / "table1_cells.csv").read_bytes()
    assert content.isascii()
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    (cell,) = (row for row in rows if (row["row"], row["column"]) == RIGID)
    assert (cell["reported"], cell["mean"], cell["deviation"]) == ("86.4", "83.0", "3.0")
    assert (cell["runs"], cell["planned"]) == ("3", "3")
    assert cell["profile"] == "smoke" and rows[0]["profile"] == "not run"


def test_files_name_the_profile(frame):
    for text in (layout.as_markdown(frame), layout.as_latex(frame)):
        assert "smoke" in text and "its numbers mean nothing" in text
        assert "compare rows, not absolute numbers" in text
    assert "compare rows" not in layout.as_markdown(tables.compare("table1", {}))


@pytest.mark.parametrize("table", TABLES)
def test_latex_has_its_braces_and_columns(table):
    frame = tables.compare(table, {})
    text = layout.as_latex(frame)
    plain = re.sub(r"\\[{}]", "", text)
    depth = [plain.count("{", 0, end) - plain.count("}", 0, end) for end in range(len(plain) + 1)]
    assert min(depth) == 0 and depth[-1] == 0
    assert text.count("$") % 2 == 0
    over, *lines = latex_body(text)
    columns = len(layout.HEADINGS[table]) + layout.arrange(frame).shape[1]
    assert over.count("&") == len(layout.HEADINGS[table]) + frame.column.nunique() - 1
    for line in lines:
        assert line.endswith(r" \\") and line.count(" & ") == columns - 1
        assert not line.startswith(("[", "*"))  # which \\ would take for its own


def test_latex_escapes_what_means_something_to_it(frame):
    frame.loc[frame.row == "Baseline", "row"] = r"[50%_a&b#$] {c} ~^ \d"
    (line,) = (line for line in layout.as_latex(frame).splitlines() if "50\\%" in line)
    expected = r"{[}50\%\_a\&b\#\$] \{c\} \textasciitilde{}\textasciicircum{} \textbackslash{}d & "
    assert line.startswith(expected)


def test_markdown_escapes_what_means_something_to_it(frame):
    frame.loc[frame.row == "Baseline", "row"] = r"a|b_c *d* `e` \f"
    (line,) = (line for line in layout.as_markdown(frame).splitlines() if " 70.9 |" in line)
    assert line.startswith(r"| a\|b\_c \*d\* \`e\` \\f | ")


def test_styled_table_is_the_same_each_time_and_sets_no_colour(frame):
    page = layout.as_styler(frame).to_html()
    assert page == layout.as_styler(frame).to_html()
    assert "<b>88.0 ± 0.7 (2 of 3)</b>" in page and "<b>86.4</b>" in page
    assert page.count("not run</span>") == 40  # greyed
    coloured = r"(?<!-)color|#[0-9a-f]{3,6}\b|background(?!: none)"
    assert not re.search(coloured, page)  # dark mode has its own


def test_styled_table_escapes_html(frame):
    frame.loc[0, "mark"] = "<script>"
    page = layout.as_styler(frame).to_html()
    assert "<script>" not in page and "&lt;script&gt;" in page


def compile_latex(folder, table: str) -> str:
    """What pdflatex says of a table: the fonts that it used, and lines that do not fit."""
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"{table}.tex"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout[-2000:]
    return ran.stdout


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="there is no pdflatex to compile with")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("given", ["no cells", "the widest cells"])
def test_latex_compiles_and_fits_its_page(table, given, tmp_path):
    cells = {}
    if given != "no cells":
        experiments, printed = plan(10), tables.reported(table)
        store(experiments, [0.0, 1.0] * 4)  # bold everywhere: 50.0 ± 53.5 (n = 8 of 10)
        cells = dict.fromkeys(zip(printed.row, printed.column, strict=True), experiments)
    frame = tables.compare(table, cells)
    assert frame.best.all() == bool(cells)
    layout.write(tmp_path, table, frame)
    message = compile_latex(tmp_path, table)
    assert "Overfull" not in message
    if cells:
        assert "cmbsy" in message  # the bold sign in a bold number


def test_mistakes_are_said():
    with pytest.raises(UserError, match="no table 'table9'"):
        tables.reported("table9")
    with pytest.raises(UserError, match=r"table1 has no cell \('Baseline', 'Res18'\).*'Res34'"):
        tables.compare("table1", {("Baseline", "Res18"): plan()})
    with pytest.raises(UserError, match="listed twice"):
        tables.regenerated({RIGID: plan() + plan(1)})
    with pytest.raises(UserError, match="mini and smoke"):
        tables.regenerated({RIGID: [*plan(1), make_experiment("mini")]})


def test_regenerated_table_says_what_its_cells_have():
    table = RegeneratedTable("table1", "smoke", seeds=(0, 1))
    assert table.ours(*DEFORMED) == "not run" and table.paper(*DEFORMED) == 86.4
    store(table.cells[RIGID], [0.5, 0.6])
    store(table.cells[DEFORMED], [0.6, 0.75])
    table = RegeneratedTable("table1", "smoke", seeds=(0, 1))
    assert table.ours(*DEFORMED) == "67.5 ± 10.6"
    difference = table.contrast(RIGID[0], DEFORMED[0])
    assert difference.pairs == 2 and difference.mean == pytest.approx(12.5)
    assert table.gain(RIGID[0], DEFORMED[0]) == pytest.approx(0.5 / 7)
    assert [len(table.records(*key)) for key in (RIGID, ("Baseline", "Res50"))] == [2, 0]


def test_check_of_a_table_barks(monkeypatch):
    table = RegeneratedTable("table2", "mini", seeds=(0,))
    assert table.check().startswith("0 of 8 cells were run")
    store(table.plans, [0.9] * 6)
    assert RegeneratedTable("table2", "mini", seeds=(0,)).check().startswith("8 of 8")
    store(table.plans[:1], [0.1])
    with pytest.raises(AssertionError, match="at chance"):
        RegeneratedTable("table2", "mini", seeds=(0,)).check()
    far = pd.DataFrame({"difference": [-8.1]})
    store(table.plans[:1], [0.9])
    monkeypatch.setattr(records, "differences", lambda profile: far)
    with pytest.raises(AssertionError, match="8.1 points from its committed record"):
        RegeneratedTable("table2", "mini", seeds=(0,)).check()


def photo_runs(table: RegeneratedTable, accuracies: dict[str, float]) -> None:
    """Stores made-up photo records of Table 1's ResNet-34 and VGG-16, the same in both columns."""
    for row, accuracy in accuracies.items():
        for column in ("Res34", "VGG16"):
            store(table.photo.cells[row, column], [accuracy] * 3)


def test_table_without_photo_runs_says_so():
    table = RegeneratedTable("table1", "smoke", seeds=(0, 1))
    assert "**not run yet**" in table.photographs()
    assert "`make reproduce PROFILE=photo ONLY=04_table1_architectures`" in table.photographs()
    assert "On photographs: not run yet." in table_text(table, {"Moving": (RIGID[0], DEFORMED[0])})
    page = layout.arrange(*table.frames)
    assert list(page.columns.unique("source")) == ["paper", "photo", "smoke"]
    assert page.at[(0, "", RIGID[0]), ("Res34", "photo")].text == "not run"


def table_text(table: RegeneratedTable, rows: dict) -> str:
    """What `claims` displays."""
    shown = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regenerate, "say", shown.append)
        table.claims(rows)
    (text,) = shown
    return text


def test_photo_runs_are_compared_with_the_paper_claim_by_claim():
    rows = {"Prototypes": ("Baseline", DEFORMED[0]), "Moving": (RIGID[0], DEFORMED[0])}
    table = RegeneratedTable("table1", "smoke", seeds=(0, 1, 2))
    photo_runs(table, {"Baseline": 0.66, RIGID[0]: 0.70, DEFORMED[0]: 0.69})
    said = table_text(table, rows)
    assert "On photographs: 2 of 2 claims have photo runs, 0 as in the paper." in said
    # Res34 has 76.8 and 76.8, VGG-16 75.7 and 75.6 in the paper
    assert "Photo: -1.0 ± 0.0 points over 4 pairs: worse; the paper on VGG16, Res34" in said
    about = RegeneratedTable("table1", "smoke", seeds=(0, 1, 2)).photographs()
    assert "6 of 42 cells were run" in about
    mini = RegeneratedTable("table1", "photo", seeds=(0, 1, 2))
    assert mini.photo is mini and mini.drawn.profile == "mini"
    assert mini.ours("Baseline", "Res34") == "66.0"


def test_order_of_rows_is_compared_with_the_papers():
    table = RegeneratedTable("table1", "smoke", seeds=(0,))
    store(table.photo.cells["Baseline", "VGG16"], [0.7])
    store(table.photo.cells[DEFORMED[0], "VGG16"], [0.8])  # as in the paper
    store(table.photo.cells["ProtoPNet", "VGG16"], [0.9])  # the paper's lowest
    assert "Of 3 pairs of rows that the paper tells apart in a column, 1 have" in (
        table.photographs()
    )


def test_notes_say_which_backbone_photo_has():
    table = RegeneratedTable("table2", "smoke", seeds=(0,))
    assert "Photo: on ResNet-34, the paper on ResNet-50." in layout.caption(*table.frames)
    assert "ResNet-34" not in layout.caption(table.frame)


def test_photo_tables_train_nothing_in_a_notebook(monkeypatch):
    monkeypatch.setattr(records, "get", lambda *_, **__: pytest.fail("a run was made"))
    regenerate.regenerate("table2", "photo", seeds=(0,))
