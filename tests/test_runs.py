"""Runs: found or trained, killed and gone on with, refused when something is wrong with them."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch
from tiny_data import write_folder
from tiny_network import Enough

from dpp import runs
from dpp.data import folder_digest
from dpp.runs import checkpoints, making, resumable
from dpp.system import files, paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, make_experiment

# A network that trains in seconds: no pretraining, three classes, 2x2 prototypes.
TINY = {
    "weights": "none",
    "backbone": "slim_resnet50",
    "kernel_size": 2,
    "per_class": 2,
    "image_size": 32,
    "epochs": 4,
    "project_after": (3, 4),
    "prototype_start": "uniform",
    "offset_start": "normal",
}


def tiny(**changes) -> Experiment:
    return make_experiment("smoke", **(TINY | changes))


def command(root: Path, **changes) -> list[str]:
    """`dpp train` for a tiny experiment."""
    words = [sys.executable, "-m", "dpp", "train", "--profile", "smoke", "--root", str(root)]
    for name, value in (TINY | changes).items():
        values = value if isinstance(value, tuple) else (value,)
        words += ["--" + name.replace("_", "-"), *map(str, values)]
    return words


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> runs.Run:
    """An undisturbed run, from the command line."""
    root = tmp_path_factory.mktemp("undisturbed")
    done = subprocess.run(command(root), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "test_accuracy" in done.stdout
    return runs.find(tiny(), root)


def digest(run: runs.Run) -> str:
    return run.manifest["weights_sha256"]


def test_finished_run_has_its_records(finished):
    assert {path.name for path in finished.folder.iterdir() if path.name[0] != "."} == {
        "experiment.json",
        "familiarity.json",
        "manifest.json",
        "metrics.csv",
        "prototypes.json",
        "weights.safetensors",
    }
    metrics = finished.metrics
    assert metrics.stage.tolist() == [
        *("train", "train", "train", "project", "last layer"),
        *("train", "project", "last layer"),
    ]
    manifest = finished.manifest
    assert {"commit", "torch", "device", "seconds", "threads"} <= manifest.keys()
    assert manifest["results"]["test_accuracy"] == metrics.test_accuracy.iloc[-1]
    assert len(finished.origins) == 3 * 2


def test_loaded_model_gives_the_accuracy_of_the_record(finished, one_thread):
    model = finished.load_model()
    splits = runs.load_splits(finished.experiment, finished.source)
    batch = splits.test.batch([(0, index) for index in range(len(splits.test))])
    with torch.no_grad():
        hits = model.measure(batch.images, batch.labels)["accuracy"]
    assert float(hits.mean()) == pytest.approx(finished.manifest["results"]["test_accuracy"])


def test_finished_run_is_found_not_trained(finished, monkeypatch):
    monkeypatch.setattr(making, "make_trainer", None)
    assert runs.run(tiny(), root=finished.folder.parent) == finished
    assert runs.open_run(finished.folder).experiment == tiny()


def test_workers_do_not_change_the_weights(finished, tmp_path, one_thread):
    run = runs.run(tiny(), root=tmp_path, workers=1, progress=False)
    assert digest(run) == digest(finished)


@pytest.mark.slow
def test_compiled_backbone_trains_to_about_the_same_loss(finished, tmp_path):
    run = runs.run(tiny(compile=True), root=tmp_path, progress=False)
    first = [r.metrics.loss.iloc[0] for r in (run, finished)]
    assert first[0] == pytest.approx(first[1], rel=1e-3)


def test_tensorboard_is_written_or_its_absence_explained(tmp_path, one_thread):
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match="pip install tensorboard"):
            runs.run(tiny(), root=tmp_path, progress=False, tensorboard=True)
    else:
        run = runs.run(tiny(), root=tmp_path, progress=False, tensorboard=True)
        assert list((run.folder / "tensorboard").iterdir())


@pytest.mark.slow
def test_killed_three_times_and_resumed_gives_the_same_weights(finished, tmp_path):
    folder = tmp_path / tiny().name
    chance = random.Random(os.getpid())
    for kill in range(1, 4):
        process = subprocess.Popen(
            command(tmp_path), env=environment(), stderr=subprocess.DEVNULL, start_new_session=True
        )
        states = len(list(folder.glob("metrics.csv"))) and (folder / "metrics.csv").stat().st_size
        while process.poll() is None:  # until it has done something more
            there = folder / "metrics.csv"
            if there.is_file() and there.stat().st_size > states:
                break
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert kill == 3 or not (folder / "manifest.json").exists() or process.returncode == 0
    done = subprocess.run(command(tmp_path), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    resumed = runs.find(tiny(), tmp_path)
    assert digest(resumed) == digest(finished)
    assert resumed.metrics.drop(columns="seconds").equals(finished.metrics.drop(columns="seconds"))
    assert resumed.origins == finished.origins


@pytest.mark.parametrize(
    "number,code",
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_signal_saves_between_two_steps_and_leaves_cleanly(finished, tmp_path, number, code):
    process = subprocess.Popen(
        command(tmp_path), env=environment(), stderr=subprocess.PIPE, text=True
    )
    folder = tmp_path / tiny().name
    while not list(folder.glob("state-*.pt")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    message = process.communicate()[1]
    assert process.returncode == code, message
    assert "run the same command to resume" in message and "Traceback" not in message
    again = subprocess.run(command(tmp_path), env=environment(), capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert digest(runs.find(tiny(), tmp_path)) == digest(finished)


@pytest.mark.slow
def test_signal_to_the_group_saves_although_workers_get_it_too(finished, tmp_path):
    words = [*command(tmp_path), "--workers", "2"]
    process = subprocess.Popen(
        words, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    folder = tmp_path / tiny().name
    while not list(folder.glob("state-*.pt")) and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)
    message = process.communicate()[1]
    assert process.returncode == 143, message
    assert "run the same command to resume" in message and "Traceback" not in message
    with pytest.raises(ProcessLookupError):  # none of the group is left
        os.killpg(process.pid, 0)
    again = subprocess.run(command(tmp_path), env=environment(), capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert digest(runs.find(tiny(), tmp_path)) == digest(finished)


@pytest.fixture
def stopped(tmp_path, monkeypatch, one_thread) -> Path:
    """The folder of a run that ended after its second epoch."""

    def stop(bar, writer, record, place):
        if place == 2:
            raise Enough

    with monkeypatch.context() as patch:
        patch.setattr(resumable, "report", stop)
        with pytest.raises(Enough):
            runs.run(tiny(), root=tmp_path, progress=False)
    return tmp_path / tiny().name


def test_damaged_state_is_named_and_the_one_before_it_is_taken(stopped, finished):
    newest = checkpoints.find_states(stopped)[0]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match=newest.name):
        run = runs.run(tiny(), root=stopped.parent, progress=False)
    assert digest(run) == digest(finished)


def test_state_of_another_experiment_is_refused_and_nothing_is_lost(stopped):
    state = checkpoints.latest_state(stopped)
    for path in checkpoints.find_states(stopped):
        path.unlink()
    other = checkpoints.save_state(stopped, 5, state | {"experiment": "another"})
    with pytest.raises(UserError, match="belongs to another experiment"):
        runs.run(tiny(), root=stopped.parent, progress=False)
    assert other.exists()


def test_altered_weights_are_refused(finished, tmp_path):
    folder = tmp_path / finished.folder.name
    folder.mkdir()
    for path in finished.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = folder / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match="weights.safetensors is damaged"):
        runs.open_run(folder).load_model()


def test_full_disk_leaves_the_last_state(stopped, monkeypatch, finished):
    before = [path.name for path in checkpoints.find_states(stopped)]

    def no_room(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(UserError, match="no room"):
            runs.run(tiny(), root=stopped.parent, progress=False)
    assert [path.name for path in checkpoints.find_states(stopped)] == before
    assert digest(runs.run(tiny(), root=stopped.parent, progress=False)) == digest(finished)


def test_second_process_on_a_run_is_refused(tmp_path):
    folder = tmp_path / tiny().name
    with files.locked(folder), pytest.raises(UserError, match="another process"):
        runs.run(tiny(), root=tmp_path, progress=False)


def test_loss_that_is_not_finite_is_explained(tmp_path, one_thread):
    experiment = tiny(prototype_rate=1e38, backbone_rate=1e38, warm_epochs=0)
    with pytest.raises(UserError, match="not finite") as caught:
        runs.run(experiment, root=tmp_path, progress=False)
    record = json.loads((tmp_path / experiment.name / "not_finite.json").read_text())
    assert len(record["images"]) == experiment.batch_size
    assert "not_finite.json" in str(caught.value)


def test_experiments_differ_by_any_field_and_not_by_how_it_is_written():
    experiment = make_experiment("mini", project_after=(), frozen_trunk="layer3")
    assert (
        make_experiment("mini", margin=0).identity == make_experiment("mini", margin=0.0).identity
    )
    for entry in fields(Experiment):
        value = getattr(experiment, entry.name)
        others = {
            "profile": "smoke",
            "model": "cnn",
            "variant": "released",
            "last_layer": "fixed",
            "precision": "bfloat16",
            "project_after": (experiment.epochs,),
            "data": "posedogs",
            "offset_start": "normal",
            "prototype_start": "uniform",
            "deformation": "search",
            "projection": "distinct",
        }
        other = others.get(entry.name, f"{value}x" if isinstance(value, str) else None)
        if other is None:
            other = not value if isinstance(value, bool) else value + 1
        changed = Experiment(**(vars(experiment) | {entry.name: other}))
        assert changed.identity != experiment.identity, entry.name


def test_released_variant_trains_and_loads(tmp_path, one_thread):
    run = runs.run(tiny(variant="released"), root=tmp_path, progress=False)
    assert run.load_model().prototypes.switches == run.experiment.switches
    assert not run.experiment.stacked_branch
    assert make_experiment("paper", variant="released", weights="bbn.pth").stacked_branch
    assert not make_experiment("paper", variant="released").stacked_branch


def test_folder_of_images_counts_by_its_files(tmp_path):
    folder = write_folder(tmp_path / "own")
    before = make_experiment("mini", data=str(folder), weights="none")
    known = before.identity
    assert make_experiment("mini", data=f"{folder}/", weights="none").identity == known
    (folder / "kind_0" / "one_more.png").write_bytes(b"more")
    assert before.identity != known


def test_folder_of_images_counts_by_its_contents(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_DATA", str(tmp_path / "data"))
    folder = write_folder(tmp_path / "own")
    experiment = make_experiment("mini", data=str(folder), weights="none")
    one, other = folder / "kind_0" / "0.png", folder / "kind_1" / "0.png"
    for path in (one, other):  # of equal sizes and times
        path.write_bytes(path.read_bytes().ljust(2000, b"0"))
        os.utime(path, (1, 1))
    known = experiment.identity
    contents = one.read_bytes(), other.read_bytes()
    for path, content in zip((other, one), contents, strict=True):
        path.write_bytes(content)
        os.utime(path, (1, 1))
    assert experiment.identity != known
    other.rename(folder / "aside")
    one.rename(other)
    (folder / "aside").rename(one)
    assert experiment.identity == known


def test_contents_of_a_folder_are_read_once(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_DATA", str(tmp_path / "data"))
    folder = write_folder(tmp_path / "own")
    known = folder_digest.folder_digest(folder)
    folder_digest._digest.cache_clear()  # as in another process
    with monkeypatch.context() as patch:
        patch.setattr(files, "sha256", None)
        assert folder_digest.folder_digest(folder) == known
    [kept] = (tmp_path / "data" / "cache" / "hashes").iterdir()
    for damage in ("{", "[]", kept.read_text().replace("png", "gif")):
        kept.write_text(damage)
        folder_digest._digest.cache_clear()
        assert folder_digest.folder_digest(folder) == known


def test_class_folder_that_is_a_link_counts_too(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_DATA", str(tmp_path / "data"))
    folder, elsewhere = write_folder(tmp_path / "own"), write_folder(tmp_path / "more")
    (folder / "kind_2").symlink_to(elsewhere / "kind_1")
    (elsewhere / "kind_1" / "round").symlink_to(elsewhere)  # a circle, which must not hang
    known = folder_digest.folder_digest(folder)
    (elsewhere / "kind_1" / "0.png").write_bytes(b"other")
    assert folder_digest.folder_digest(folder) != known


def test_edited_experiment_is_refused(finished, tmp_path):
    folder = tmp_path / "edited"
    folder.mkdir()
    for path in finished.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    described = folder / "experiment.json"
    described.write_text(described.read_text().replace('"paper"', '"released"'))
    with pytest.raises(UserError, match="experiment.json was changed"):
        runs.open_run(folder)


def test_root_that_is_a_file_is_refused(tmp_path, one_thread):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UserError, match="cannot be written to"):
        runs.run(tiny(), root=tmp_path / "file", progress=False)


def test_one_class_is_refused(tmp_path):
    with pytest.raises(UserError, match="one class"):
        runs.run(tiny(classes=1), root=tmp_path, progress=False)


def test_last_metrics_are_there_even_if_it_was_killed_before_writing_them(
    tmp_path, monkeypatch, one_thread
):
    from dpp.runs import resumable

    write = resumable.write_metrics

    def fail(folder, history):
        if len(history) == 8:
            raise Enough
        write(folder, history)

    with monkeypatch.context() as patch:
        patch.setattr(resumable, "write_metrics", fail)
        with pytest.raises(Enough):
            runs.run(tiny(), root=tmp_path, progress=False)
    assert len(runs.run(tiny(), root=tmp_path, progress=False).metrics) == 8


def test_projection_follows_the_number_of_epochs():
    assert make_experiment("mini", epochs=40).project_after == (20, 30, 40)
    assert make_experiment("paper", epochs=25).project_after == (20, 25)
    assert make_experiment("mini", model="cnn", epochs=30).project_after == ()
    with pytest.raises(UserError, match="the last must be the last epoch"):
        make_experiment("mini", project_after=(7,))


def test_weights_file_counts_by_its_content(tmp_path):
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (make_experiment("mini", weights=str(tmp_path / name)).identity for name in "abc")
    assert a == b != c


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"nonsense": 1}, "has no 'nonsense'"),
        ({"model": "forest"}, "model: 'forest' is not one of"),
        ({"epochs": 2}, "warm epochs do not fit"),
        ({"project_after": (35,)}, "no epoch 35"),
        ({"margin": "wide"}, "margin: expected float"),
        ({"batch_size": 0}, "batch_size: expected a number from 1"),
        ({"margin": 3.2}, "margin: expected an angle below pi"),
        ({"variant": "released:nonsense"}, "no variant 'nonsense'"),
        ({"backbone_rate": float("nan")}, "backbone_rate"),
    ],
)
def test_wrong_fields_are_refused_with_their_name(changes, message):
    with pytest.raises(UserError, match=message):
        make_experiment("mini", **changes)


def put(folder: Path, experiment: Experiment) -> Path:
    """What finds a run there, and nothing more."""
    files.write_json(folder / experiment.name / "experiment.json", asdict(experiment))
    digest = files.sha256(folder / experiment.name / "experiment.json")
    files.write_json(folder / experiment.name / "manifest.json", {"experiment_sha256": digest})
    return folder / experiment.name


@pytest.fixture
def homes(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """Empty folders of runs and of what is committed; nothing can be trained."""
    monkeypatch.setenv("DPP_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(making, "run", lambda experiment, **options: (experiment, options))
    return tmp_path / "runs", tmp_path / "results" / "smoke" / "networks"


def test_run_to_look_at_is_that_which_is_there_then_the_committed_then_trained(homes):
    experiment = tiny()
    assert runs.get(experiment, progress=False) == (experiment, {"progress": False})
    committed = put(homes[1], experiment)
    assert runs.get(experiment) == runs.Run(experiment, committed)
    mine = put(homes[0], experiment)
    assert runs.get(experiment) == runs.Run(experiment, mine)
    assert runs.get(experiment, root=homes[0] / "other").folder == committed


def test_chosen_run_is_that_of_the_folder_if_one_is_given(homes):
    mine, other = tiny(seed=1), tiny(seed=2)
    folder = put(homes[0] / "elsewhere", mine)
    committed = put(homes[1], other)
    assert runs.choose(str(folder), other) == runs.Run(mine, folder)
    assert runs.choose("", other) == runs.Run(other, committed)
    with pytest.raises(UserError, match="there is no finished run in nowhere"):
        runs.choose("nowhere", other)


def test_help_of_train_covers_every_field():
    done = subprocess.run(
        [sys.executable, "-m", "dpp", "train", "--help"], capture_output=True, text=True
    )
    for entry in fields(Experiment):
        assert "--" + entry.name.replace("_", "-") in done.stdout


def test_wrong_command_line_ends_with_2_and_one_line(tmp_path):
    words = command(tmp_path, backbone="resnet9000")
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("dpp: there is no backbone resnet9000")
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


def test_commit_has_a_plus_for_changed_code_and_none_for_changed_results(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for name in ("code.py", "results/runs.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    known = making.commit()
    assert len(known) == 12
    (tmp_path / "results" / "runs.csv").write_text("new")
    assert making.commit() == known
    (tmp_path / "code.py").write_text("new")
    assert making.commit() == known + "+"
