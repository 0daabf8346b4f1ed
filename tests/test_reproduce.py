"""The one command: what it checks first, what it says last, and that its guards bark."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import nbformat
import pandas as pd
import pytest
from stopping import stop

from dpp.paper import grid, notebooks, readme_table, reproduce, tables
from dpp.paper.regenerate import RegeneratedTable
from dpp.runs import records
from dpp.system import paths
from dpp.system.errors import UserError


def committed(profile: str = "mini") -> pd.DataFrame:
    return pd.read_csv(paths.RESULTS / profile / records.RUNS)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The committed mini records, in a folder of their own to be altered."""
    shutil.copytree(paths.RESULTS / "mini", tmp_path / "mini")
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    return tmp_path / "mini"


def alter(folder, change) -> str:
    """Changes the accuracy of the first ablation's first run."""
    [first, *_] = grid.cells("table2").values()
    table = pd.read_csv(folder / records.RUNS)
    mine = table.run == first[0].name
    assert mine.sum() == 1
    table["test_accuracy"] = table.test_accuracy.astype(object)
    table.loc[mine, "test_accuracy"] = change(table.test_accuracy[mine].iloc[0])
    table.to_csv(folder / records.RUNS, index=False)
    return first[0].name


@pytest.mark.parametrize("stem", grid.TABLES)
def test_table_notebooks_have_the_parameters_of_a_plan(stem):
    [path] = notebooks.find([stem])
    made = reproduce.tables_of(stem, notebooks.values(path, "mini", {}))
    assert [table.name for table in made] == list(grid.TABLES[stem])


def test_every_planned_mini_run_is_committed():
    wanted = [plan for table in tables.TITLES for plan in RegeneratedTable(table).plans]
    missing = {plan.name for plan in grid.unfold(wanted)} - set(committed().run)
    assert not missing


def test_committed_records_are_of_a_commit_without_changes():
    assert not committed().commit.str.contains("+", regex=False).any()


def test_same_records_do_not_differ(copied):
    found = records.differences("mini")
    assert len(found) == len(committed()) and found.difference.abs().max() == 0


def test_difference_beyond_the_tolerance_is_said_with_its_run(copied):
    name = alter(copied, lambda accuracy: accuracy - 0.2)
    said = reproduce.describe_differences("mini")
    assert "1 differ by more than" in said and name in said


def test_tolerance_and_readme_say_what_other_instructions_changed():
    """The pretrainings were made twice: as they are committed, with AVX2, and with AVX-512."""
    found = pd.read_csv(paths.RESULTS / "estimates" / "other_instructions.csv").set_index("run")
    known = committed().set_index("run").query("base_classes == True")
    assert sorted(found.index) == sorted(known.index) and len(known) == 7
    assert (100 * known.test_accuracy - found.committed).abs().max() < 0.01
    change = (found.now - found.committed).abs()
    assert change.max() <= reproduce.TOLERANCE
    said = f"by {change.median():.1f} in the median and {change.max():.1f} at most"
    assert said in readme_table.README.read_text()


@pytest.mark.parametrize("bad", ["ninety", 9.0])
def test_corrupt_record_is_named_and_set_aside(copied, bad):
    alter(copied, lambda _: bad)
    with pytest.raises(UserError, match=r"runs\.csv (is damaged|has an accuracy outside 0 to 1)"):
        records.read(copied / records.RUNS)
    [said] = records.set_aside_damaged("mini")
    assert "Set aside as runs.damaged.csv" in said and (copied / "runs.damaged.csv").is_file()
    assert not (copied / records.RUNS).exists() and (copied / records.EPOCHS).is_file()


def test_results_that_cannot_be_written_are_refused_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    done = subprocess.run(
        [sys.executable, "-m", "dpp", "reproduce", "--only", "00"],
        env=os.environ | {"DPP_RESULTS": str(tmp_path / "file")},
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "set DPP_RESULTS to a writable folder" in done.stderr


def test_records_of_another_profile_are_the_committed_ones_until_there_are_own(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    [plan, *_] = grid.cells("table2")[grid.ablation(0.1, 0.1, True), "Accuracy"]
    assert records.stored(plan) is not None  # mini beside a reproduction of photo
    records.begin("mini")  # as a reproduction of mini does
    assert records.stored(plan) is None
    assert len(records.read(tmp_path / "mini" / records.RUNS)) == 0


@pytest.mark.slow
def test_nbval_fails_when_a_record_is_changed(copied, tmp_path):
    shutil.copy(paths.NOTEBOOKS / "05_table2_ablations.ipynb", tmp_path)
    command = [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider"]
    command += ["05_table2_ablations.ipynb"]
    run = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 600}
    untouched = subprocess.run(command, **run)
    assert untouched.returncode == 0, untouched.stdout[-3000:]
    alter(copied, lambda accuracy: accuracy - 0.01)
    changed = subprocess.run(command, **run)
    assert changed.returncode == 1, changed.stdout[-3000:]
    assert re.search(r"^FAILED", changed.stdout, flags=re.MULTILINE)


def test_readme_status_is_that_of_the_records():
    text = readme_table.README.read_text()
    assert readme_table.place(text, readme_table.as_markdown()) == text, "run: make status"


def test_readme_status_goes_stale_when_a_record_changes(copied):
    [first, *_] = grid.cells("table1")["Baseline", "Res50"]
    table = committed()
    table.loc[table.run == first.name, "test_accuracy"] -= 0.01
    table.to_csv(copied / records.RUNS, index=False)
    text = readme_table.README.read_text()
    assert readme_table.place(text, readme_table.as_markdown()) != text


def test_readme_status_has_photo_runs_as_they_come(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    records.begin("photo")
    before = readme_table.as_markdown()
    assert "| 1 | Baseline, Res34 | 76.0 | not run |" in before and "| 0 run | 81 run |" in before
    [plan] = grid.cells("table1", "photo")["Baseline", "Res34"]
    rows = pd.DataFrame({"run": [plan.name], "test_accuracy": [0.7123], "seconds": [1.0]})
    for name in (records.RUNS, records.EPOCHS):
        records.replace_rows(tmp_path / "photo" / name, rows)
    after = readme_table.as_markdown()
    assert (
        "| 1 | Baseline, Res34 | 76.0 | 71.2 (n = 1) |" in after and "| 1 run | 81 run |" in after
    )


def test_readme_without_marks_is_refused():
    with pytest.raises(UserError, match="put them where the table belongs"):
        readme_table.place("# dpp", "| a |")


@pytest.mark.slow
def test_executed_notebook_is_left_alone_until_something_changes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path / "results"))
    [path] = notebooks.find(["00"])
    work = {path: notebooks.values(path, "smoke", {})}
    assert notebooks.execute(work, tmp_path) == []
    before = (tmp_path / path.name).read_bytes()
    results = paths.results("smoke")
    results.mkdir(parents=True, exist_ok=True)
    (results / "part_share.csv").write_text("what another notebook wrote")
    assert notebooks.execute(work, tmp_path) == []
    assert "unchanged" in capsys.readouterr().out
    assert (tmp_path / path.name).read_bytes() == before
    assert json.loads(before)["metadata"]["dpp"]
    (results / records.RUNS).write_text("a record that it may have read")
    notebooks.execute(work, tmp_path)
    assert "unchanged" not in capsys.readouterr().out
    notebooks.execute({path: work[path] | {"map_size": 9}}, tmp_path)
    assert (tmp_path / path.name).read_bytes() != before


@pytest.mark.slow
def test_notebooks_side_by_side_do_not_keep_one_another_from_running(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path / "results"))
    paths_of = notebooks.find(["00", "12"])
    work = {path: notebooks.values(path, "smoke", {}) for path in paths_of}
    work[paths_of[1]]["run"] = "no such run"
    assert notebooks.execute(work, tmp_path, jobs=2) == [paths_of[1]]
    said = capsys.readouterr().out
    assert "failed: UserError: there is no finished run in no such run" in said
    assert "[2/2]" in said and (tmp_path / paths_of[0].name).is_file()


def write_notebook(path, source: str) -> None:
    cells = [nbformat.v4.new_code_cell(source)]
    spec = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec}), path)


STOPPED = """
import sys
from pathlib import Path
from dpp.paper import notebooks
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    try:
        notebooks.execute({path: {} for path in folder.glob("*.ipynb")}, folder / "out", jobs=2)
    except KeyboardInterrupt as stop:
        print(stop)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_stop_starts_no_other_notebook(tmp_path, number):
    for place in range(4):
        began = f"open({str(tmp_path / f'began-{place}')!r}, 'w')"
        write_notebook(tmp_path / f"{place}.ipynb", f"{began}; import time; time.sleep(600)")
    said = stop(tmp_path, STOPPED, number, lambda: len(list(tmp_path.glob("began-*"))) == 2)
    stopped = "stopped; finished notebooks are kept: run the same command to resume"
    assert said.splitlines() == ["4 notebooks", stopped]  # and nothing of the kernels' own
    assert len(list(tmp_path.glob("began-*"))) == 2


def test_notebook_whose_kernel_dies_is_a_notebook_that_failed(tmp_path, capsys):
    write_notebook(tmp_path / "dies.ipynb", "import os; os._exit(1)")
    work = {tmp_path / "dies.ipynb": {}}
    assert notebooks.execute(work, tmp_path / "out") == [tmp_path / "dies.ipynb"]
    assert "failed: DeadKernelError" in capsys.readouterr().out


STORING = """
import sys
from pathlib import Path
import pandas as pd
from dpp.runs import records
for number in range(20):
    row = {"run": [f"{sys.argv[2]}-{number}"], "test_accuracy": [0.5], "seconds": [1.0]}
    records.replace_rows(Path(sys.argv[1]) / records.RUNS, pd.DataFrame(row))
"""


def test_records_that_two_processes_store_are_all_there(tmp_path):
    (tmp_path / "storing.py").write_text(STORING)
    command = [sys.executable, str(tmp_path / "storing.py"), str(tmp_path / "results")]
    both = [subprocess.Popen([*command, name]) for name in ("one", "other")]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert len(records.read(tmp_path / "results" / records.RUNS)) == 40


def test_notebooks_that_explain_have_their_networks_made_first(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RUNS", str(tmp_path))
    for stem, count in {
        "03_train": 2,
        "08_reasoning_process": 4,
        "12_browse_prototypes": 2,
    }.items():
        [path] = notebooks.find([stem])
        wanted = reproduce.plans_of(stem, notebooks.values(path, "smoke", {}))
        assert len({plan.name for plan in wanted}) >= count
        mine = notebooks.values(path, "mini", {})
        if stem != "03_train":  # mini's are committed
            assert reproduce.plans_of(stem, mine) == []
            assert reproduce.plans_of(stem, mine | {"run": "mine"}) == []
