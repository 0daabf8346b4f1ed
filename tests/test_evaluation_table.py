"""`dpp evaluate`: all measures of a run in one table, whatever the run and its data."""

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from test_runs import environment, tiny
from tiny_data import write_folder

from dpp import runs
from dpp.evaluation import stored, systems, table
from dpp.evaluation.scores import Score
from dpp.figures.measure_charts import measures
from dpp.report import run_report
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0}
QUICK = ("compactness", "consistency")


def train(tmp_path_factory, name: str = "runs", **changes) -> runs.Run:
    after = {"project_after": (1,)}
    root = tmp_path_factory.mktemp(name)
    return runs.run(tiny(**(SHORT | after | changes)), root=root, device="cpu", progress=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> runs.Run:
    return train(tmp_path_factory)


@pytest.fixture(scope="module")
def folder_run(tmp_path_factory) -> runs.Run:
    """A run on a folder of images, without boxes and parts."""
    folder = write_folder(tmp_path_factory.mktemp("photographs") / "zoo", classes=3, images=8)
    return train(tmp_path_factory, data=str(folder))


@pytest.fixture
def own_file(run):
    """The file in the run's folder, where an evaluation is stored by default; not there yet."""
    path = run.folder / stored.FILE
    yield path
    for one in (path, path.with_suffix(".before.json")):
        one.unlink(missing_ok=True)


def scores_of(content: dict, family: str) -> list[Score]:
    return [stored.from_entry(entry) for entry in content["scores"][family]]


def test_evaluation_is_stored_and_later_measures_are_added(run, tmp_path):
    path = tmp_path / "deep" / "evaluation.json"
    told = []
    report = lambda family, done, total: told.append((family, done, total))  # noqa: E731
    first = table.evaluate(run, ["consistency"], out=path, report=report)
    assert json.loads(path.read_text()) == first
    assert {family for family, _, _ in told} == {"consistency"}
    assert all(0 <= done <= total for _, done, total in told)
    both = table.evaluate(run, ["compactness"], out=path)
    assert set(both["scores"]) == set(QUICK)
    assert both["scores"]["consistency"] == first["scores"]["consistency"]
    assert list(both["scores"]) == [name for name in table.FAMILIES if name in QUICK]


def test_an_evaluation_is_resumed_and_measured_again_if_asked(run, tmp_path):
    path, told = tmp_path / "e.json", []
    table.evaluate(run, ["consistency"], out=path)
    report = lambda family, done, total: told.append(family)  # noqa: E731
    table.evaluate(run, QUICK, out=path, report=report)
    assert set(told) == {"compactness"}
    told.clear()
    table.evaluate(run, QUICK, out=path, report=report, again=True)
    assert set(told) == set(QUICK)


def test_families_of_another_process_are_kept(run, tmp_path):
    path = tmp_path / "e.json"

    def report(family: str, done: int, total: int) -> None:  # while the first one is at work
        if not path.is_file():
            table.evaluate(run, ["consistency"], out=path)

    table.evaluate(run, ["compactness"], out=path, report=report)
    assert set(stored.read(path)["scores"]) == set(QUICK)


def test_a_renamed_run_keeps_its_evaluation(run, tmp_path):
    path = tmp_path / "e.json"
    content = table.evaluate(run, ["consistency"], out=path)
    path.write_text(json.dumps(content | {"run": "the name that it had"}))
    both = table.evaluate(run, QUICK, out=path)
    assert set(both["scores"]) == set(QUICK) and both["run"] == run.folder.name


@pytest.mark.parametrize(
    "changes,told",
    [
        ({"seed": 1}, "e.json is of seed 0: name another file with --out, or remove it"),
        ({"images": 1}, "e.json is of all images of each class: name another file"),
    ],
    ids=["seed", "images"],
)
def test_an_evaluation_of_other_images_or_another_seed_is_not_lost(run, tmp_path, changes, told):
    path = tmp_path / "e.json"
    before = table.evaluate(run, ["consistency"], out=path)
    with pytest.raises(UserError, match=told):
        table.evaluate(run, ["compactness"], out=path, **changes)
    assert stored.read(path) == before


def test_what_is_no_evaluation_of_the_run_is_not_replaced(run, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(UserError, match="notes.txt is there already and is no evaluation"):
        table.evaluate(run, ["compactness"], out=path)
    assert path.read_text() == "mine"
    path = tmp_path / "e.json"
    content = table.evaluate(run, ["compactness"], out=path)
    path.write_text(json.dumps(content | {"run": "another", "weights_sha256": "other"}))
    with pytest.raises(UserError, match=r"e.json is of another network \(another\): name another"):
        table.evaluate(run, ["compactness"], out=path)


def test_the_file_of_the_run_is_renewed_where_its_weights_are_new(own_file, run):
    content = table.evaluate(run, ["compactness"])
    before = {"weights_sha256": "of an earlier training", "seed": 5}
    own_file.write_text(json.dumps(content | before))
    assert table.evaluate(run, ["compactness"])["scores"] == content["scores"]
    assert stored.read(own_file)["seed"] == 0


def test_the_file_of_the_run_is_the_same_under_another_name_of_its_folder(own_file, run, tmp_path):
    (tmp_path / "link").symlink_to(run.folder)
    own_file.write_text("{")
    table.evaluate(run, ["compactness"], out=tmp_path / "link" / stored.FILE)
    assert stored.read(own_file)


def test_what_is_stored_is_shown_where_nothing_can_be_written(run, tmp_path, monkeypatch):
    path = tmp_path / "e.json"
    content = table.evaluate(run, ["compactness"], out=path)
    monkeypatch.setattr(table.files, "check_writable", lambda path: pytest.fail("was to write"))
    assert table.evaluate(run, ["compactness"], out=path) == content


def test_a_passing_mistake_is_not_stored_as_a_result(run, tmp_path, monkeypatch):
    def fail(*given, **options):
        raise UserError("there is no room on the disk")

    monkeypatch.setitem(table.FAMILIES, "consistency", fail)
    with pytest.raises(UserError, match="no room"):
        table.evaluate(run, QUICK, out=tmp_path / "e.json")
    assert set(stored.read(tmp_path / "e.json")["scores"]) == {"compactness"}


def test_a_score_that_is_not_finite_is_none(run, tmp_path, monkeypatch):
    wrong = lambda *given, **options: [Score("consistency", value=-math.inf)]  # noqa: E731
    monkeypatch.setitem(table.FAMILIES, "consistency", wrong)
    content = table.evaluate(run, QUICK, out=tmp_path / "e.json")
    assert "not measured" in table.as_text(content)
    assert set(stored.read(tmp_path / "e.json")["scores"]) == set(QUICK)


def test_an_evaluation_that_another_process_began_with_another_seed_is_kept(run, tmp_path):
    path = tmp_path / "e.json"

    def report(family: str, done: int, total: int) -> None:
        if not path.is_file():
            table.evaluate(run, ["compactness"], seed=1, out=path)

    with pytest.raises(UserError, match="e.json is of seed 1"):
        table.evaluate(run, ["compactness"], out=path, report=report)
    assert stored.read(path)["seed"] == 1


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(table, "measure_family", lambda *given: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "e.json", ""):
        with pytest.raises(UserError, match="cannot be written"):
            table.evaluate(run, ["compactness"], out=path)
    for seed in (-3, 2**32):
        with pytest.raises(UserError, match="expected a whole number from 0"):
            table.evaluate(run, ["compactness"], seed=seed, out=tmp_path / "e.json")


def test_the_same_seed_gives_the_same_scores(run, tmp_path):
    one, two = (
        table.evaluate(run, ["consistency", "stability"], seed=3, out=tmp_path / name)
        for name in ("a.json", "b.json")
    )
    assert one["scores"] == two["scores"]


def test_images_of_a_class_are_limited(run, tmp_path):
    content = table.evaluate(run, ["compactness"], images=2, out=tmp_path / "e.json")
    assert content["images"]["test"] == 2 * run.manifest["classes"]
    with pytest.raises(UserError, match="at least 1"):
        table.evaluate(run, ["compactness"], images=0, out=tmp_path / "e.json")


def test_data_without_parts_and_boxes_fail_no_other_measure(folder_run, tmp_path):
    families = ["compactness", "consistency", "stability", "purity", "pointing"]
    content = table.evaluate(folder_run, families, out=tmp_path / "e.json")
    assert 0 <= scores_of(content, "compactness")[0].value <= 100
    for family in families[1:]:
        (score,) = scores_of(content, family)
        assert math.isnan(score.value)
        assert "no marked parts" in score.note or "no boxes" in score.note
    assert "not measured" in table.as_text(content)


def test_a_plain_cnn_has_its_accuracy(tmp_path_factory, tmp_path):
    cnn = train(tmp_path_factory, model="cnn", project_after=())
    content = table.evaluate(cnn, out=tmp_path / "e.json")
    assert set(content["scores"]) == set(table.FAMILIES)
    (score,) = scores_of(content, "compactness")
    assert score.value == pytest.approx(100 * cnn.manifest["results"]["test_accuracy"])
    (score,) = scores_of(content, "purity")
    assert score.note == "does not apply: a plain CNN has no prototypes"
    measured = {score.measure: score.value for score in scores_of(content, "interventions")}
    assert 0 <= measured["background independence"] <= 100


def test_a_run_without_projection_is_refused_in_one_line(tmp_path_factory, tmp_path):
    unprojected = train(tmp_path_factory, project_after=())
    with pytest.raises(UserError, match="were not projected") as error:
        table.evaluate(unprojected, out=tmp_path / "e.json")
    assert "\n" not in str(error.value) and not (tmp_path / "e.json").exists()


def test_a_measure_that_does_not_exist_is_named(run):
    with pytest.raises(UserError, match="did you mean consistency"):
        table.evaluate(run, ["consistancy"])
    with pytest.raises(UserError, match="choose from compactness, consistency"):
        table.choose(["zzz"])
    assert table.choose(["purity", "compactness"]) == ["compactness", "purity"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: "{",
        lambda whole: "[]",
        lambda whole: '{"format": 1, "seconds": {}, "scores": {"a": [{"b": 1}]}}',
        lambda whole: whole.replace('"value": ', '"value": "high", "note": '),
        lambda whole: whole.replace('"value": ', '"value": Infinity, "x": '),
        lambda whole: whole.replace('"value": ', '"value": NaN, "x": '),
        lambda whole: whole.replace('"images"', '"x"'),
        lambda whole: whole.replace('"seed": 0', '"seed": "0"'),
        lambda whole: json.dumps(json.loads(whole) | {"seconds": {}}),
        lambda whole: json.dumps(json.loads(whole) | {"scores": {"compactness": []}}),
    ],
    ids="cut list unknown text infinite nan nameless typed untimed empty".split(),
)
def test_damaged_file_of_an_evaluation_is_replaced(own_file, run, capsys, damage):
    whole = json.dumps(table.evaluate(run, ["compactness"]))
    assert stored.read(own_file)
    own_file.write_text(damage(whole))
    assert stored.read(own_file) == {}
    assert run_report.measures(run) is None
    assert "another version: left out; dpp evaluate measures" in capsys.readouterr().err
    assert set(table.evaluate(run, ["compactness"])["scores"]) == {"compactness"}
    assert "another version: set aside as evaluation.before.json" in capsys.readouterr().err
    assert stored.read(own_file)
    assert own_file.with_suffix(".before.json").read_text() == damage(whole)


def test_table_has_a_row_for_each_score():
    scores = [
        Score("consistency", "centre", 12.34, 10, 15, "%", "higher", 1, 2, 3, "a note"),
        Score("prototypes", value=1999.0),
        Score("purity", note="there is none"),
    ]
    rows = table.rows_of(scores)
    assert rows[0] == ("consistency", "centre", "12.3 %", "10 to 15", "1", "2", "3")
    assert rows[1][2] == "1999" and rows[2][2] == "not measured"
    (row,) = table.rows_of([Score("rank change", value=1853.2, low=1821.4, high=1876.0)])
    assert row[2:4] == ("1850", "1820 to 1876")
    entries = [stored.from_entry(json.loads(json.dumps(stored.as_entry(one)))) for one in scores]
    assert str(entries) == str(scores)


def test_command_prints_the_table_and_bad_input_is_one_line(run, tmp_path):
    words = [sys.executable, "-m", "dpp", "evaluate", str(run.folder), "--out"]
    words += [str(tmp_path / "e.json"), "--measures", *QUICK]
    done = subprocess.run(words, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert "consistency" in done.stdout and "random weights" in done.stdout
    done = subprocess.run([*words, "nonsense"], capture_output=True, text=True, env=environment())
    assert done.returncode == 2
    assert done.stderr.startswith("dpp: there is no measure 'nonsense'")
    assert len(done.stderr.splitlines()) == 1
    done = subprocess.run([*words, "--images", "0"], capture_output=True, env=environment())
    assert done.returncode == 2  # and not a trace of the progress bar
    assert done.stderr == b"dpp: --images 0: a class needs at least 1 image\n"


def test_a_stopped_command_says_what_is_stored(dpp, run, monkeypatch):
    def stop(*given, **options):
        raise KeyboardInterrupt

    words = ("evaluate", run.folder, "--out", "e.json", "--measures", *QUICK)
    with monkeypatch.context() as patch:
        patch.setitem(table.FAMILIES, "compactness", stop)
        code, _, error = dpp(*words)
    assert code == 130
    assert error.endswith("stopped; nothing new was stored: run the same command to resume\n")
    with monkeypatch.context() as patch:
        patch.setitem(table.FAMILIES, "consistency", stop)
        _, _, error = dpp(*words)
        assert error.endswith("compactness stored in e.json: run the same command to resume\n")
        _, _, error = dpp(*words, "--again")
        assert error.endswith("stored in e.json: give --again --measures consistency to resume\n")
    code, shown, _ = dpp(*words)
    assert code == 0 and "\nmeasured before: compactness (--again measures anew)\n" in shown


def test_report_shows_what_was_measured(own_file, run, tmp_path):
    assert run_report.measures(run) is None
    table.evaluate(run, QUICK)
    shown = run_report.measures(run)
    assert [row[0] for row in shown["rows"]][-1] == "consistency"
    page = run_report.write_report(run, tmp_path / "card.html", examples=1).read_text()
    assert 'id="measures"' in page and "original" in page
    content = json.loads(own_file.read_text())
    own_file.write_text(json.dumps(content | {"weights_sha256": "other"}))
    assert run_report.measures(run) is None


def test_systems_are_one_row_each_and_measured_once(run, tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    monkeypatch.setattr(systems, "experiments", lambda *given: {("deformable", 0): run.experiment})
    monkeypatch.setattr(systems.runs, "get", lambda experiment: run)
    monkeypatch.setattr(table, "FAMILIES", {name: table.FAMILIES[name] for name in QUICK})
    frame = systems.collect("smoke", folder=tmp_path / "each")
    assert set(frame.family) == set(QUICK)
    monkeypatch.setattr(table, "measure_family", lambda *given: pytest.fail("measured twice"))
    again = systems.collect("smoke", folder=tmp_path / "each")
    assert again.equals(frame)
    other = frame.assign(data="other", run="elsewhere")
    systems.write("smoke", pd.concat([other, frame.assign(run="before")]))
    beside = systems.collect("smoke", folder=tmp_path / "each")
    assert list(beside.data) == len(frame) * ["other"] + list(frame.data)
    assert beside[beside.data != "other"].reset_index(drop=True).equals(frame)
    wide = systems.pivot(frame)
    assert list(wide.columns) == ["deformable"]
    assert wide.index[0] == ("accuracy", "")
    stored = systems.scores_of(frame, "deformable")
    assert stored[0].measure == "accuracy" and np.isfinite(stored[0].value)


def test_chart_has_a_panel_for_each_measure():
    row = {"at": "centre", "unit": "%", "random_weights": 1.0, "random_places": np.nan}
    frame = pd.DataFrame(
        [
            row | {"system": "a", "measure": "x", "value": 5.0, "low": 4.0, "high": 6.0},
            row | {"system": "b", "measure": "x", "value": 3.0, "low": np.nan, "high": np.nan},
            row | {"system": "c", "measure": "x", "value": np.nan, "low": 1.0, "high": 2.0},
        ]
    )
    figure = measures(frame, [("x", "centre"), ("y", "centre")])
    first = figure.axes[0]
    assert first.get_title() == "x, %"
    assert [label.get_text() for label in first.get_yticklabels()] == ["a", "b"]  # c has no value
    assert len(figure.axes) == 2
    pyplot.close(figure)


def test_further_seeds_are_of_some_systems_alone():
    chosen = systems.experiments("smoke", (3, 5))
    assert [name for name, seed in chosen if seed == 3] == list(systems.SYSTEMS)
    assert [name for name, seed in chosen if seed == 5] == list(systems.REPEATED)
    assert all(experiment.seed == seed for (_, seed), experiment in chosen.items())
    changed = systems.experiments("smoke", (3,), {"pose": 2.0, "kernel_size": 1})
    assert {one.pose for one in changed.values()} == {2.0}
    assert changed["deformable", 3].kernel_size == 1 and changed["ProtoTree", 3].seed == 3


def test_a_run_is_added_beside_others_and_replaces_its_own_rows(run, tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    monkeypatch.setattr(table, "FAMILIES", {name: table.FAMILIES[name] for name in QUICK})
    first = systems.add("deformable", run, tmp_path / "each")
    profile = run.experiment.profile
    assert set(first.run) == {run.folder.name} and "/" not in first.data.iloc[0]
    systems.write(profile, pd.concat([first.assign(run="another"), first]))
    again = systems.add("deformable", run, tmp_path / "each")
    assert list(again.run) == len(first) * ["another"] + len(first) * [run.folder.name]
    assert again[again.run != "another"].reset_index(drop=True).equals(first)


def test_a_run_is_added_with_the_families_that_are_asked_for(run, tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    some = systems.add("deformable", run, tmp_path / "each", measures=QUICK[:1])
    assert set(some.family) == {QUICK[0]}
    more = systems.add("deformable", run, tmp_path / "each", measures=QUICK[1:])
    assert set(more.family) == set(QUICK)
    with pytest.raises(UserError, match="no measure 'nonsense'"):
        systems.add("deformable", run, tmp_path / "each", measures=["nonsense"])


def test_systems_that_were_measured_are_kept_where_a_later_one_fails(run, tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    two = {("deformable", 0): "first", ("rigid", 0): "second"}
    monkeypatch.setattr(systems, "experiments", lambda *given: two)
    monkeypatch.setattr(systems.runs, "get", lambda one: {"first": run}[one])
    with pytest.raises(KeyError, match="second"):
        systems.collect("smoke", folder=tmp_path / "each", measures=QUICK)
    assert set(systems.read("smoke").system) == {"deformable"}


def test_mean_and_range_are_over_runs_and_the_interval_is_of_the_first():
    row = {"measure": "x", "at": "centre", "low": 1.0, "high": 3.0}
    frame = pd.DataFrame(
        [
            row | {"system": "a", "run_seed": 1, "value": 6.0, "low": 5.0, "high": 7.0},
            row | {"system": "a", "run_seed": 0, "value": 2.0},
            row | {"system": "a", "run_seed": 2, "value": 1.0},
            row | {"system": "b", "run_seed": 0, "value": 4.0},  # one run: nothing to compare
            row | {"system": "a", "run_seed": 0, "value": np.nan, "measure": "y"},
        ]
    )
    found = systems.over_seeds(frame)
    assert found.index.tolist() == [("a", "x", "centre")]
    assert found.iloc[0].tolist() == [3.0, 1.0, 6.0, 3, 1.0, 3.0]
    alone = frame[frame.run_seed == 0]
    assert systems.over_seeds(alone).empty
    assert systems.pivot(frame.assign(system="rigid")).loc[("x", "centre"), "rigid"] == 3.0


def test_changes_by_attacks_stand_beside_what_was_published():
    row = {"at": "centre", "original": 2.0, "random_weights": 3.0}
    rows = [
        row | {"system": system, "measure": measure, "value": value + place}
        for place, measure in enumerate(systems.ATTACKED)
        for system, value in {"TesNet": 10.0, "deformable": 20.0, "plain CNN": np.nan}.items()
    ]
    parts = [one | {"at": "parts", "value": 99.0} for one in rows]
    found = systems.beside_published(pd.DataFrame(rows + parts))
    assert list(found.index) == ["deformable", "TesNet"]
    assert list(found["attack"].loc["TesNet"]) == [10, 11, 12, 13]
    assert found["released attack"].loc["deformable", "PRC"] == 2
    assert list(found["published"].loc["TesNet"]) == [16.0, 2.9, 3.4]
    assert found["published"].loc["deformable"].isna().all()


def test_intervals_are_apart_if_they_do_not_overlap():
    ends = {"x": ((1.0, 2.0), (3.0, 4.0)), "y": ((1.0, 3.0), (2.0, 4.0)), "z": ((5.0, 6.0),)}
    ends["w"] = ((7.0, 8.0), (1.0, 2.0))
    rows = [
        {"measure": measure, "at": "centre", "system": system, "low": low, "high": high}
        for measure, own in ends.items()
        for system, (low, high) in zip(("a", "b"), own, strict=False)
    ]
    found = systems.intervals_apart(pd.DataFrame(rows), "a", "b")
    assert found.to_dict() == {("x", "centre"): True, ("y", "centre"): False, ("w", "centre"): True}
    assert systems.intervals_apart(pd.DataFrame(rows), "a", "missing").empty
